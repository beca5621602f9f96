-- One row of one of many tables; no index has the column.
\set t random(1, :tables)
\set r random(1, :rows)
UPDATE many:t SET k = k + 1 WHERE id = :r;
