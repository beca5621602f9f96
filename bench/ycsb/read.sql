\set key 1 + permute(random_zipfian(1, :rows, 1.001) - 1, :rows)
SELECT * FROM usertable WHERE key = :key;
