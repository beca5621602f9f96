-- Ten rows anywhere; no index has the column.
\set r1 random(1, :rows)
\set r2 random(1, :rows)
\set r3 random(1, :rows)
\set r4 random(1, :rows)
\set r5 random(1, :rows)
\set r6 random(1, :rows)
\set r7 random(1, :rows)
\set r8 random(1, :rows)
\set r9 random(1, :rows)
\set r10 random(1, :rows)
UPDATE hot SET k = k + 1 WHERE id IN (:r1, :r2, :r3, :r4, :r5, :r6, :r7, :r8, :r9, :r10);
