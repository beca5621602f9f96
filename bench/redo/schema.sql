-- One table for each workload; their rows are as wide as pgbench's.
CREATE TABLE bulk (id bigserial PRIMARY KEY, k int, pad char(84));
INSERT INTO bulk (k, pad) SELECT hashint4(i), '' FROM generate_series(1, :rows) i;
CREATE TABLE ranges (id bigint PRIMARY KEY, k int, pad char(84));
INSERT INTO ranges SELECT i, hashint4(i), '' FROM generate_series(1, :rows) i;
-- Room in each page keeps new versions beside the old ones.
CREATE TABLE hot (id bigint PRIMARY KEY, k int, pad char(84)) WITH (fillfactor = 60);
INSERT INTO hot SELECT i, hashint4(i), '' FROM generate_series(1, :rows) i;
CREATE TABLE cold (id bigint PRIMARY KEY, k int, pad char(84));
INSERT INTO cold SELECT i, hashint4(i), '' FROM generate_series(1, :rows) i;
CREATE INDEX ON cold (k);
