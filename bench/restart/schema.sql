-- Bodies out of line, and an index of each kind that loads of documents use.
CREATE TABLE documents (key uuid, owner int, made timestamptz, words int[], body text);
INSERT INTO documents
SELECT md5(i::text)::uuid, i % 5000, timestamptz '2026-01-01' + i * interval '1 second',
       ARRAY(SELECT hashint4(i * 20 + j) & 4095 FROM generate_series(1, 20) j),
       (SELECT string_agg(md5((i * 100 + j)::text), '') FROM generate_series(1, 120) j)
FROM generate_series(1, :rows) i;
ALTER TABLE documents ADD PRIMARY KEY (key);
CREATE INDEX ON documents USING gin (words);
CREATE INDEX ON documents USING hash (owner);
CREATE INDEX ON documents USING brin (made);
