-- 100 rows a transaction.
INSERT INTO bulk (k, pad) SELECT hashint4(i), '' FROM generate_series(1, 100) i;
