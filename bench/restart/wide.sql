-- 100 rows on as many pages; in the order of the index, so that no two of these deadlock.
\set start random(1, :rows)
UPDATE pgbench_accounts SET abalance = abalance + 1
WHERE aid = ANY (ARRAY(SELECT 1 + (:start + i * 7919) % :rows FROM generate_series(1, 100) i));
