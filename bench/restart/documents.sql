-- A new document with a random key, and another that gets words and a body.
\set new random(1, 2000000000)
\set old random(1, :rows)
BEGIN;
INSERT INTO documents
SELECT md5('new' || :new)::uuid, :new % 5000, timestamptz '2026-06-01' + :new % 100000 * interval '1 second',
       ARRAY(SELECT hashint4(:new + j) & 4095 FROM generate_series(1, 20) j),
       (SELECT string_agg(md5((:new + j)::text), '') FROM generate_series(1, 120) j)
ON CONFLICT DO NOTHING;
UPDATE documents
SET words = ARRAY(SELECT hashint4(:new - j) & 4095 FROM generate_series(1, 20) j),
    body = (SELECT string_agg(md5((:new - j)::text), '') FROM generate_series(1, 120) j)
WHERE key = md5((:old)::text)::uuid;
COMMIT;
