-- 100 neighbouring rows, and some rows that go and come.
\set low random(1, :rows - 100)
\set gone random(1, :rows)
BEGIN;
UPDATE ranges SET k = k + 1 WHERE id BETWEEN :low AND :low + 99;
DELETE FROM ranges WHERE id BETWEEN :gone AND :gone + 4;
INSERT INTO ranges SELECT :gone + i, i, '' FROM generate_series(0, 4) i ON CONFLICT DO NOTHING;
COMMIT;
