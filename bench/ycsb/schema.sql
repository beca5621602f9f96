-- The table of YCSB: ten fields of 100 bytes; its key as a number.
CREATE TABLE usertable (key int PRIMARY KEY, field0 text, field1 text, field2 text, field3 text,
	field4 text, field5 text, field6 text, field7 text, field8 text, field9 text);
INSERT INTO usertable
	SELECT i, f, f, f, f, f, f, f, f, f, f
	FROM (SELECT i, left(repeat(md5(i::text), 4), 100) AS f FROM generate_series(1, :rows) i);
