\set key 1 + permute(random_zipfian(1, :rows, 1.001) - 1, :rows)
\set value random(1, 1000000000)
SELECT * FROM usertable WHERE key = :key;
UPDATE usertable SET field0 = left(repeat(md5(:value::text), 4), 100) WHERE key = :key;
