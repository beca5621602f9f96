--
-- The oracle inside the cluster: what the clients of workload.py tell it, and
-- the verdict on a recovered cluster.
--
-- A client is one connection that numbers its transactions 1, 2, 3, ...  Each
-- of them adds a row to oracle.journal in the same transaction, with the state
-- of the client's objects as it must be once that number is committed.  The
-- state comes from the client's own model, never from the server, so that a
-- wrong read before the crash is found as well.  Thus a recovered cluster says
-- itself how far each client came, and what has to follow from that.
--
-- oracle.verify() returns one complaint per row.  Checks do not throw: an
-- error in one of them is a complaint, and the next one runs.
--
-- Tables of the workload are in schema load and have the columns id, v and
-- body; others are generated from these.  Stock PostgreSQL 18 can run all of
-- it, in single-user mode as well.
--

CREATE EXTENSION amcheck;

-- Functions call each other, in no particular order.
SET check_function_bodies = off;

-- Visibility maps are checked only where the build has the extension.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_visibility') THEN
        CREATE EXTENSION pg_visibility;
    END IF;
END
$$;

CREATE SCHEMA load;
CREATE SCHEMA oracle;

-- state: {"tables": {name: {"rows", "sum", "unlogged", "indexes"}},
--         "sequences": {name: highest value that was used},
--         "large": {number of a large object: [length, CRC]},
--         "transfer": [from, to, amount]}; all keys are optional
CREATE TABLE oracle.journal (
    client text,
    n int,
    state jsonb NOT NULL,
    PRIMARY KEY (client, n)
);

-- Accounts are shared by all transfer clients, thus they are verified from the
-- history, and not with a sum that one client could know.
CREATE TABLE load.accounts (
    id int PRIMARY KEY,
    balance bigint NOT NULL,
    filler varchar(96) NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE load.history (
    client varchar(40),
    n int,
    src int NOT NULL,
    dst int NOT NULL,
    amount bigint NOT NULL,
    PRIMARY KEY (client, n)
);

CREATE FUNCTION oracle.initial_balance() RETURNS bigint
    LANGUAGE sql IMMUTABLE RETURN 1000;

CREATE FUNCTION oracle.accounts() RETURNS int
    LANGUAGE sql IMMUTABLE RETURN 1500;

-- On some 40 pages: more than shared_buffers of 128 kB can hold, and few enough
-- for transfers to meet on them.
INSERT INTO load.accounts
    SELECT g, oracle.initial_balance(), repeat(md5(g::text), 3)
    FROM generate_series(1, oracle.accounts()) g;

CREATE FUNCTION oracle.digest(id int, v bigint, body text) RETURNS bigint
    LANGUAGE sql STABLE
    RETURN crc32(convert_to(concat_ws('|', id, v, body), 'UTF8'));

-- The last state of each client.
CREATE VIEW oracle.now AS
    SELECT client, n, state
    FROM (SELECT client, max(n) AS n FROM oracle.journal GROUP BY client) m
    JOIN oracle.journal USING (client, n);

-- All relations but the catalogs, TOAST tables included.
CREATE VIEW oracle.relations AS
    SELECT oid, oid::regclass::text AS name, relkind, relpersistence, relam, relnamespace
    FROM pg_class
    WHERE oid >= 16384 AND relkind IN ('r', 't', 'i', 'S')
          AND NOT (relpersistence = 'u' AND pg_is_in_recovery());

--
-- Checks.  Each takes the expectation and returns complaints.
--

-- Numbers of a client are 1..m, every acknowledged one is there, and none is
-- there that was never issued.  What the clients themselves complained of comes
-- first.
CREATE FUNCTION oracle.check_journal(expectation jsonb) RETURNS SETOF text
LANGUAGE sql AS $$
    WITH found AS (
        SELECT client, count(*) AS numbers, min(n) AS first, max(n) AS last
        FROM oracle.journal
        GROUP BY client
    ), expected AS (
        SELECT key AS client, (value->>'acked')::int AS acked,
               (value->>'issued')::int AS issued
        FROM jsonb_each(expectation->'clients')
    )
    SELECT jsonb_array_elements_text(expectation->'complaints')
    UNION ALL
    SELECT format('client %s: %s numbers from %s to %s, not a gapless prefix',
                  client, numbers, first, last)
    FROM found
    WHERE first <> 1 OR last <> numbers
    UNION ALL
    SELECT format('client %s: transaction %s was acknowledged, the last one there is %s',
                  client, acked, coalesce(last, 0))
    FROM expected LEFT JOIN found USING (client)
    WHERE acked > coalesce(last, 0)
    UNION ALL
    SELECT format('client %s: transaction %s is there, the last one issued was %s',
                  client, last, issued)
    FROM expected JOIN found USING (client)
    WHERE last > issued
$$;

-- The tables that the journal names, and no others, with the persistence and
-- the indexes that it says.
CREATE FUNCTION oracle.check_objects(expectation jsonb) RETURNS SETOF text
LANGUAGE sql AS $$
    WITH said AS (
        SELECT client, t.key AS name,
               coalesce((t.value->>'unlogged')::boolean, false) AS unlogged,
               ARRAY(SELECT jsonb_array_elements_text(t.value->'indexes')
                     ORDER BY 1) AS indexes
        FROM oracle.now, jsonb_each(state->'tables') t
    ), found AS (
        SELECT 'load.' || relname AS name, relpersistence = 'u' AS unlogged,
               ARRAY(SELECT x.relname::text COLLATE "default"
                     FROM pg_index i JOIN pg_class x ON x.oid = indexrelid
                     WHERE indrelid = c.oid AND NOT indisprimary AND indisvalid
                     ORDER BY 1) AS indexes
        FROM pg_class c
        WHERE relnamespace = 'load'::regnamespace AND relkind = 'r'
              AND relname NOT IN ('accounts', 'history')
    )
    SELECT CASE
           WHEN f.name IS NULL THEN format('client %s: table %s is missing', client, s.name)
           WHEN s.name IS NULL THEN format('table %s should not be there', f.name)
           WHEN s.unlogged <> f.unlogged
           THEN format('table %s: unlogged is %s, not %s', f.name, f.unlogged, s.unlogged)
           ELSE format('table %s: indexes are %s, not %s', f.name, f.indexes, s.indexes)
           END
    FROM said s FULL JOIN found f ON f.name = s.name
    WHERE (s.name, s.unlogged, s.indexes) IS DISTINCT FROM (f.name, f.unlogged, f.indexes)
$$;

-- Every table has the rows that the journal says; read without indexes, then
-- by the primary key.  Unlogged tables may be empty, but must then be usable.
CREATE FUNCTION oracle.check_tables(expectation jsonb) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    t record;
    r record;
    by_key record;
BEGIN
    -- Nothing but a sequential scan can answer the first of the two queries below.
    PERFORM oracle.force('indexscan');
    FOR t IN
        SELECT o.client, o.n, x.key AS name, (x.value->>'rows')::bigint AS rows,
               (x.value->>'sum')::numeric AS sum, c.relpersistence = 'u' AS unlogged
        FROM oracle.now o, jsonb_each(o.state->'tables') x
        JOIN pg_class c ON c.oid = to_regclass(x.key)
        WHERE NOT (c.relpersistence = 'u' AND pg_is_in_recovery())
    LOOP
        BEGIN
            EXECUTE format('SELECT count(*) AS rows, sum(oracle.digest(id, v, body)) AS sum, sum(id) AS ids'
                           ' FROM %s', t.name)
                INTO r;
            EXECUTE format('SELECT count(*) AS rows, sum(id) AS ids FROM %s WHERE id >= 0', t.name)
                INTO by_key;
            IF (r.rows, coalesce(r.sum, 0)) <> (t.rows, t.sum) AND NOT (t.unlogged AND r.rows = 0) THEN
                RETURN NEXT format('client %s: table %s after %s: %s rows with sum %s, not %s with %s',
                                   t.client, t.name, t.n, r.rows, r.sum, t.rows, t.sum);
            END IF;
            IF (r.rows, r.ids) IS DISTINCT FROM (by_key.rows, by_key.ids) THEN
                RETURN NEXT format('table %s: %s rows by primary key, %s by scan',
                                   t.name, by_key.rows, r.rows);
            END IF;

            IF t.unlogged THEN
                BEGIN
                    EXECUTE format('INSERT INTO %s (id, v, body) VALUES (2147483647, 1, '''')', t.name);
                    RAISE EXCEPTION USING errcode = 'PGCUT', message = 'as intended';
                EXCEPTION WHEN SQLSTATE 'PGCUT' THEN
                    NULL;       -- the row is gone again
                END;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            RETURN NEXT format('table %s: %s', t.name, sqlerrm);
        END;
    END LOOP;
END
$$;

-- Let the planner use one kind of scan only.
CREATE FUNCTION oracle.force(scan text) RETURNS void
LANGUAGE sql AS $$
    SELECT set_config('enable_' || kind, CASE WHEN kind = scan THEN 'on' ELSE 'off' END, true)
    FROM unnest(ARRAY['seqscan', 'indexscan', 'indexonlyscan', 'bitmapscan']) kind
$$;

-- No money is made or lost: the history is what the journal says, and the
-- balances are what the history says.
CREATE FUNCTION oracle.check_transfers(expectation jsonb) RETURNS SETOF text
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM oracle.force('seqscan');
    RETURN QUERY
        WITH said AS MATERIALIZED (
            SELECT client, n, (state->'transfer'->>0)::int AS src,
                   (state->'transfer'->>1)::int AS dst,
                   (state->'transfer'->>2)::bigint AS amount
            FROM oracle.journal
            WHERE state ? 'transfer'
        )
        SELECT format('client %s: transfer %s is (%s, %s, %s) in the history, (%s, %s, %s) in the journal',
                      client, n, h.src, h.dst, h.amount, s.src, s.dst, s.amount)
        FROM load.history h FULL JOIN said s USING (client, n)
        WHERE (h.src, h.dst, h.amount) IS DISTINCT FROM (s.src, s.dst, s.amount);
    RETURN QUERY
        WITH moved AS (
            SELECT account, sum(amount) AS amount
            FROM (SELECT src AS account, -amount AS amount FROM load.history
                  UNION ALL
                  SELECT dst, amount FROM load.history) m
            GROUP BY account
        )
        SELECT format('account %s: balance is %s, by the history %s',
                      id, balance, oracle.initial_balance() + coalesce(amount, 0))
        FROM load.accounts FULL JOIN moved ON account = id
        WHERE balance IS DISTINCT FROM oracle.initial_balance() + coalesce(amount, 0);
    RETURN QUERY
        SELECT format('accounts: %s hold %s together, not %s',
                      count(*), sum(balance), count(*) * oracle.initial_balance())
        FROM load.accounts
        HAVING sum(balance) <> count(*) * oracle.initial_balance()
               OR count(*) <> oracle.accounts();
END
$$;

-- A value that a committed transaction took is never handed out again.
CREATE FUNCTION oracle.check_sequences(expectation jsonb) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    s record;
    next bigint;
BEGIN
    FOR s IN
        SELECT client, n, x.key AS name, x.value::bigint AS used
        FROM oracle.now, jsonb_each_text(state->'sequences') x
    LOOP
        BEGIN
            EXECUTE format('SELECT last_value + is_called::int FROM %s', s.name) INTO next;
            IF next <= s.used THEN
                RETURN NEXT format('sequence %s: the next value is %s, but client %s used %s in transaction %s',
                                   s.name, next, s.client, s.used, s.n);
            END IF;
        EXCEPTION WHEN OTHERS THEN
            RETURN NEXT format('sequence %s: %s', s.name, sqlerrm);
        END;
    END LOOP;
    RETURN QUERY
        SELECT format('sequence %s should not be there', oid::regclass)
        FROM pg_class
        WHERE relnamespace = 'load'::regnamespace AND relkind = 'S'
              AND 'load.' || relname NOT IN
                  (SELECT x.key FROM oracle.now, jsonb_each(state->'sequences') x);
END
$$;

-- Large objects are those that the journal names, and hold what it says.
CREATE FUNCTION oracle.check_large(expectation jsonb) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    r record;
    held bytea;
BEGIN
    FOR r IN
        SELECT client, n, x.key::oid AS number, (x.value->>0)::int AS length, (x.value->>1)::bigint AS crc
        FROM oracle.now, jsonb_each(state->'large') x
    LOOP
        BEGIN
            held := lo_get(r.number);
            IF (length(held), crc32(held)) <> (r.length, r.crc) THEN
                RETURN NEXT format('client %s: large object %s after %s: %s bytes, not %s, or others',
                                   r.client, r.number, r.n, length(held), r.length);
            END IF;
        EXCEPTION WHEN OTHERS THEN
            RETURN NEXT format('large object %s: %s', r.number, sqlerrm);
        END;
    END LOOP;
    RETURN QUERY
        SELECT format('large object %s should not be there', oid)
        FROM pg_largeobject_metadata
        WHERE oid::text NOT IN (SELECT x.key FROM oracle.now, jsonb_each(state->'large') x);
END
$$;

-- expectation "prepared": {gid: {"client", "n", "fate"}}; fate "there": it
-- must be prepared; "may": it may; "decided": its commit was issued, thus it
-- is prepared, or else the journal has its number.  A standby does not show
-- what is prepared.
CREATE FUNCTION oracle.check_prepared(expectation jsonb) RETURNS SETOF text
LANGUAGE sql AS $$
    WITH said AS (
        SELECT key AS gid, value->>'client' AS client, (value->>'n')::int AS n,
               value->>'fate' AS fate
        FROM jsonb_each(expectation->'prepared')
        WHERE NOT pg_is_in_recovery()
    ), found AS (
        SELECT gid FROM pg_prepared_xacts
        WHERE database = current_database() AND expectation ? 'prepared'
    )
    SELECT CASE
           WHEN said.gid IS NULL THEN format('transaction %s should not be prepared', found.gid)
           ELSE format('prepared transaction %s is lost', said.gid)
           END
    FROM said FULL JOIN found USING (gid)
    WHERE said.gid IS NULL
          OR found.gid IS NULL
             AND (fate = 'there'
                  OR fate = 'decided'
                     AND NOT EXISTS (SELECT FROM oracle.journal j
                                     WHERE j.client = said.client AND j.n = said.n))
$$;

-- Where a database has the files of its default tablespace
CREATE FUNCTION oracle.directory(database oid) RETURNS text
LANGUAGE sql AS $$
    SELECT CASE spcname
           WHEN 'pg_default' THEN format('base/%s', d.oid)
           ELSE format('pg_tblspc/%s/PG_%s_%s/%s', t.oid,
                       current_setting('server_version_num')::int / 10000,
                       catalog_version_no, d.oid)
           END
    FROM pg_database d JOIN pg_tablespace t ON t.oid = dattablespace, pg_control_system()
    WHERE d.oid = database
$$;

-- Each database has its files, on a standby as well.
-- expectation "databases" and "tablespaces": {name: true, it must be there;
-- false, it must not; null, either}.  Databases that "copies" names have never
-- been written to; their files are those of template0, except page headers.
CREATE FUNCTION oracle.check_databases(expectation jsonb) RETURNS SETOF text
LANGUAGE sql AS $$
    SELECT format('database %s: there is no %s/PG_VERSION', datname, oracle.directory(oid))
    FROM pg_database
    WHERE datconnlimit <> -2
          AND (pg_stat_file(oracle.directory(oid) || '/PG_VERSION', true)).size IS NULL
    UNION ALL
    SELECT format('database %s: present is %s, not %s', key, datname IS NOT NULL, value)
    FROM jsonb_each_text(expectation->'databases')
    LEFT JOIN pg_database ON datname = key
    WHERE value::boolean <> (datname IS NOT NULL)
    UNION ALL
    SELECT format('tablespace %s: present is %s, not %s', key, spcname IS NOT NULL, value)
    FROM jsonb_each_text(expectation->'tablespaces')
    LEFT JOIN pg_tablespace ON spcname = key
    WHERE value::boolean <> (spcname IS NOT NULL)
    UNION ALL
    SELECT oracle.differences(t.oid, d.oid, d.datname::text)
    FROM jsonb_array_elements_text(expectation->'copies') c
    JOIN pg_database d ON d.datname = c AND d.datconnlimit <> -2
    JOIN pg_database t ON t.datname = 'template0'
    WHERE NOT pg_is_in_recovery()
$$;

-- What a copy of a page must have in common with it: LSN and checksum, bytes 0
-- to 9, are the copy's own, and images in WAL leave out what is between
-- pd_lower and pd_upper.
CREATE FUNCTION oracle.page_content(content bytea, page int) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN lower BETWEEN 24 AND upper AND upper <= 8192
                THEN substr(content, page * 8192 + 11, lower - 10)
                     || substr(content, page * 8192 + upper + 1, 8192 - upper)
                ELSE substr(content, page * 8192 + 11, 8182) END
    FROM (SELECT get_byte(content, page * 8192 + 12) + 256 * get_byte(content, page * 8192 + 13),
                 get_byte(content, page * 8192 + 14) + 256 * get_byte(content, page * 8192 + 15))
         AS header(lower, upper)
$$;

-- How the tables and indexes of a database differ from those that it was copied
-- from.  Maps may differ: CREATE DATABASE logs images of them without content.
-- Autovacuum comes to both because of shared catalogs, and writes statistics
-- and pg_class there; their files, which have the numbers of their relations in
-- template0, are left out then.
CREATE FUNCTION oracle.differences(source oid, copy oid, name text) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    f text;
    a bytea;
    b bytea;
    page int;
BEGIN
    FOR f IN SELECT pg_ls_dir(oracle.directory(source)) LOOP
        CONTINUE WHEN f !~ '^[0-9]+$'
            OR current_setting('autovacuum')::boolean
               AND f ~ '^(1259|2619|2696|2840|2841)(_|$)';
        BEGIN
            a := pg_read_binary_file(format('%s/%s', oracle.directory(source), f));
            b := pg_read_binary_file(format('%s/%s', oracle.directory(copy), f));
            IF length(a) <> length(b) THEN
                RETURN NEXT format('database %s: file %s has %s bytes, not %s',
                                   name, f, length(b), length(a));
                CONTINUE;
            END IF;
            CONTINUE WHEN a = b;
            FOR page IN 0 .. length(a) / 8192 - 1 LOOP
                IF oracle.page_content(a, page) <> oracle.page_content(b, page) THEN
                    RETURN NEXT format('database %s: file %s differs in block %s', name, f, page);
                END IF;
            END LOOP;
        EXCEPTION WHEN OTHERS THEN
            RETURN NEXT format('database %s: file %s: %s', name, f, sqlerrm);
        END;
    END LOOP;
END
$$;

-- Does verify_heapam() miss chunks of a value whose row is dead, on a standby?  It expects
-- them unless the transaction that removed the row is older than all that its snapshot
-- takes for running.  VACUUM takes a number when it wants the lock to truncate, and waits
-- for that lock; its number keeps no row from being removed on the primary, but a standby
-- counts it among the running.  So chunks of rows that were removed after it may be gone
-- there.  Stock says the same.  Once the standby is promoted, they are not asked for.
CREATE FUNCTION oracle.is_gone(rel oid, block bigint, item int, msg text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    seen boolean;
BEGIN
    IF NOT pg_is_in_recovery()
        OR msg !~ '^toast value .* (not found in|was expected to end at|when expecting) ' THEN
        RETURN false;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE ctid = %L)',
                   rel::regclass, format('(%s,%s)', block, item))
        INTO seen;
    RETURN NOT seen;
END
$$;

-- Heaps and their TOAST tables.
CREATE FUNCTION oracle.check_heaps(expectation jsonb) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    FOR r IN SELECT * FROM oracle.relations WHERE relkind IN ('r', 't', 'S') LOOP
        BEGIN
            RETURN QUERY
                SELECT format('heap %s: block %s, item %s, attribute %s: %s',
                              r.name, blkno, offnum, attnum, msg)
                FROM verify_heapam(r.oid, check_toast => r.relkind = 'r')
                WHERE NOT oracle.is_gone(r.oid, blkno, offnum, msg);
        EXCEPTION WHEN OTHERS THEN
            RETURN NEXT format('heap %s: %s', r.name, sqlerrm);
        END;
    END LOOP;
END
$$;

-- The visibility map never says more than is true.
CREATE FUNCTION oracle.check_visibility(expectation jsonb) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    r record;
    wrong text;
BEGIN
    IF to_regproc('pg_check_visible') IS NULL OR pg_is_in_recovery() THEN
        RETURN;
    END IF;
    FOR r IN
        SELECT * FROM oracle.relations
        WHERE relkind IN ('r', 't') AND pg_relation_size(oid, 'vm') > 0
    LOOP
        BEGIN
            SELECT string_agg(t_ctid::text, ' ') INTO wrong FROM pg_check_visible(r.oid);
            IF wrong IS NOT NULL THEN
                RETURN NEXT format('heap %s: not all-visible, though the map says so: %s', r.name, wrong);
            END IF;
            SELECT string_agg(t_ctid::text, ' ') INTO wrong FROM pg_check_frozen(r.oid);
            IF wrong IS NOT NULL THEN
                RETURN NEXT format('heap %s: not all-frozen, though the map says so: %s', r.name, wrong);
            END IF;
        EXCEPTION WHEN OTHERS THEN
            RETURN NEXT format('visibility map of %s: %s', r.name, sqlerrm);
        END;
    END LOOP;
END
$$;

-- B-trees: structure, an entry for every row, unique.  GIN: structure.
CREATE FUNCTION oracle.check_indexes(expectation jsonb) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    FOR r IN
        SELECT o.oid, o.name, amname, i.indisunique
        FROM oracle.relations o
        JOIN pg_index i ON i.indexrelid = o.oid AND i.indisvalid
        JOIN pg_am a ON a.oid = o.relam
        WHERE amname IN ('btree', 'gin')
    LOOP
        BEGIN
            IF r.amname = 'btree' THEN
                PERFORM bt_index_check(r.oid, true, r.indisunique);
            ELSE
                PERFORM gin_index_check(r.oid);
            END IF;
        EXCEPTION WHEN OTHERS THEN
            RETURN NEXT format('index %s: %s', r.name, sqlerrm);
        END;
    END LOOP;
END
$$;

-- How each access method is asked for all rows, key by key: keys follow from
-- v, as the indexed columns do, and together find each row as often as said.
CREATE TABLE oracle.probes (
    method varchar(10) PRIMARY KEY,
    times varchar(80) NOT NULL,         -- a row is found
    keys varchar(80) NOT NULL,          -- all keys, as k
    condition varchar(160) NOT NULL     -- rows with key k
);
INSERT INTO oracle.probes VALUES
    ('btree', '1', 'generate_series(0, 3) k', 'v BETWEEN k * 250000 AND k * 250000 + 249999'),
    ('hash', '1', '(SELECT DISTINCT v FROM %s) x(k)', 'v = k'),
    ('gin', 'CASE WHEN arr[1] = arr[2] THEN 1 ELSE 2 END', 'generate_series(0, 19) k', 'arr @> ARRAY[k]'),
    ('gist', '1', 'generate_series(0, 15) k',
     'p <@ box(point(k / 4 * 250, k % 4 * 250), point(k / 4 * 250 + 249, k % 4 * 250 + 249))'),
    ('spgist', '1', 'generate_series(0, 15) k',
     'p <@ box(point(k / 4 * 250, k % 4 * 250), point(k / 4 * 250 + 249, k % 4 * 250 + 249))'),
    ('brin', '1', 'generate_series(0, 9) k', 'v BETWEEN k * 100000 AND k * 100000 + 99999');

-- What is wrong with an index, or null: a search for each key must find its row.
CREATE FUNCTION oracle.probe(index oid) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    r record;
    by_scan bigint[];
    by_index bigint[];
BEGIN
    SELECT i.indrelid::regclass::text AS tablename, times, condition,
           format(keys, i.indrelid::regclass) AS keys
    INTO r
    FROM pg_index i
    JOIN pg_class c ON c.oid = i.indexrelid
    JOIN pg_am a ON a.oid = c.relam
    JOIN oracle.probes ON method = amname
    WHERE i.indexrelid = index AND i.indisvalid;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- The only way left to use a condition is a bitmap scan of its index; there
    -- is no such way for the query without a condition.
    PERFORM oracle.force('bitmapscan');
    EXECUTE format('SELECT ARRAY[sum(%1$s), sum((%1$s) * id::bigint)] FROM %2$s', r.times, r.tablename)
        INTO by_scan;
    EXECUTE format('SELECT ARRAY[nullif(count(*), 0), sum(id)] FROM %s, %s WHERE %s',
                   r.keys, r.tablename, r.condition)
        INTO by_index;
    IF by_index IS DISTINCT FROM by_scan THEN
        RETURN format('rows and sum of ids are %s by index, %s by scan', by_index, by_scan);
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION oracle.check_probes(expectation jsonb) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    r record;
    wrong text;
BEGIN
    FOR r IN
        SELECT o.oid, o.name
        FROM oracle.relations o
        JOIN pg_index i ON i.indexrelid = o.oid AND NOT i.indisprimary
        WHERE o.relnamespace = 'load'::regnamespace
    LOOP
        BEGIN
            wrong := oracle.probe(r.oid);
            IF wrong IS NOT NULL THEN
                RETURN NEXT format('index %s: %s', r.name, wrong);
            END IF;
        EXCEPTION WHEN OTHERS THEN
            RETURN NEXT format('index %s: %s', r.name, sqlerrm);
        END;
    END LOOP;
END
$$;

-- Every fork can be read to its end, and each page is empty or a page.  This
-- looks at files: the caller sees to it that they are current.  Main forks of
-- heaps are left to verify_heapam(), which reads all of them.
CREATE FUNCTION oracle.check_forks(expectation jsonb) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    r record;
    content bytea;
    nothing constant bytea := decode(repeat('00', 8192), 'hex');
    segment_bytes constant bigint := (SELECT blocks_per_segment::bigint * database_block_size
                                      FROM pg_control_init());
BEGIN
    FOR r IN
        SELECT name, fork, size,
               pg_relation_filepath(oid) || CASE fork WHEN 'main' THEN '' ELSE '_' || fork END AS path
        FROM oracle.relations,
             unnest(CASE relkind WHEN 'i' THEN ARRAY['main', 'init'] ELSE ARRAY['fsm', 'vm', 'init'] END) fork,
             pg_relation_size(oid, fork) size
        WHERE size > 0
    LOOP
        BEGIN
            content := string_agg(
                pg_read_binary_file(r.path || CASE segment WHEN 0 THEN '' ELSE '.' || segment END),
                '' ORDER BY segment)
                FROM generate_series(0, (r.size - 1) / segment_bytes) segment;
            IF length(content) / 8192 <> r.size / 8192 THEN
                RETURN NEXT format('relation %s: %s fork has %s bytes, %s could be read',
                                   r.name, r.fork, r.size, length(content));
            END IF;
            -- Size and version are at bytes 18 and 19 of a page.
            RETURN QUERY
                SELECT format('relation %s: block %s of its %s fork (%s) is not a page',
                              r.name, page, r.fork, r.path)
                FROM generate_series(0, length(content) / 8192 - 1) page
                WHERE (get_byte(content, page * 8192 + 18), get_byte(content, page * 8192 + 19)) <> (4, 32)
                      AND substr(content, page * 8192 + 1, 8192) <> nothing;
        EXCEPTION WHEN OTHERS THEN
            RETURN NEXT format('relation %s: %s fork: %s', r.name, r.fork, sqlerrm);
        END;
    END LOOP;
    RETURN QUERY
        SELECT format('relation %s: no init fork', name)
        FROM oracle.relations
        WHERE relpersistence = 'u' AND pg_relation_size(oid, 'init') = 0
              AND relkind = 'i';
END
$$;

-- Files that belong to no relation: the caller knows which may be there.  An empty one
-- is what a dropped relation leaves when a crash comes after the checkpoint and before
-- the unlink that waited for it, in stock PostgreSQL as well.
CREATE FUNCTION oracle.check_orphans(expectation jsonb) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    database constant oid := (SELECT oid FROM pg_database WHERE datname = current_database());
BEGIN
    RETURN QUERY
        WITH directories AS (
            SELECT 'base/' || database AS path
            UNION ALL
            SELECT 'global'
            UNION ALL
            SELECT format('pg_tblspc/%s/%s/%s', t.oid, version, database)
            FROM pg_tablespace t, pg_ls_dir(format('pg_tblspc/%s', t.oid), true, false) version
            WHERE spcname NOT IN ('pg_default', 'pg_global') AND version ~ '^PG_'
        ), files AS (
            SELECT path, f AS name, substring(f FROM '^[0-9]+') AS number
            FROM directories, pg_ls_dir(path, true, false) f
            WHERE f ~ '^[0-9]+(_(fsm|vm|init))?([.][0-9]+)?$'
        ), owned AS (
            SELECT pg_relation_filenode(oid)::text AS number, relisshared FROM pg_class
        ), orphans AS (
            SELECT path || '/' || number AS path,
                   sum((pg_stat_file(path || '/' || name, true)).size) AS size
            FROM files
            WHERE NOT EXISTS (SELECT FROM owned
                              WHERE owned.number = files.number
                                    AND owned.relisshared = (files.path = 'global'))
            GROUP BY 1
        )
        SELECT format('file %s of %s bytes belongs to no relation', path, size)
        FROM orphans
        WHERE size > 0;
    RETURN QUERY
        SELECT format('directory base/%s belongs to no database', d)
        FROM pg_ls_dir('base') d
        WHERE d ~ '^[0-9]+$' AND d::oid NOT IN (SELECT oid FROM pg_database);
END
$$;

-- Catalogs: those that DDL of the workload changes, or all of them.
CREATE FUNCTION oracle.check_catalogs(expectation jsonb) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    everything constant boolean := coalesce(expectation->>'catalogs' = 'all', false);
    c record;
    i record;
BEGIN
    FOR c IN
        SELECT oid, relname, relkind FROM pg_class
        WHERE relkind IN ('r', 't') AND pg_relation_filenode(oid) IS NOT NULL
              AND CASE WHEN everything
                  THEN oid < 16384
                  ELSE oid IN ('pg_class'::regclass, 'pg_attribute'::regclass,
                               'pg_type'::regclass, 'pg_index'::regclass,
                               'pg_depend'::regclass, 'pg_constraint'::regclass,
                               'pg_attrdef'::regclass, 'pg_sequence'::regclass,
                               'pg_largeobject'::regclass, 'pg_largeobject_metadata'::regclass,
                               'pg_database'::regclass, 'pg_tablespace'::regclass,
                               'pg_shdepend'::regclass)
                  END
    LOOP
        BEGIN
            RETURN QUERY
                SELECT format('catalog %s: block %s, item %s, attribute %s: %s',
                              c.relname, blkno, offnum, attnum, msg)
                FROM verify_heapam(c.oid);
        EXCEPTION WHEN OTHERS THEN
            RETURN NEXT format('catalog %s: %s', c.relname, sqlerrm);
        END;
        FOR i IN SELECT indexrelid, indisunique FROM pg_index WHERE indrelid = c.oid LOOP
            BEGIN
                PERFORM bt_index_check(i.indexrelid, true, i.indisunique);
            EXCEPTION WHEN OTHERS THEN
                RETURN NEXT format('index %s: %s', i.indexrelid::regclass, sqlerrm);
            END;
        END LOOP;
    END LOOP;
END
$$;

-- All checks, in order; a new one is one line.  With quick, catalogs are left out.
CREATE FUNCTION oracle.verify(expectation jsonb, quick boolean DEFAULT false)
RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    complaint text;
    name text;
BEGIN
    -- Otherwise, what is asked of each relation would be planned anew for the first five.
    PERFORM set_config('jit', 'off', true), set_config('lock_timeout', '5s', true),
            set_config('max_parallel_workers_per_gather', '0', true),
            set_config('plan_cache_mode', 'force_generic_plan', true);
    FOREACH name IN ARRAY ARRAY[
        'check_journal',
        'check_objects',
        'check_tables',
        'check_transfers',
        'check_sequences',
        'check_large',
        'check_prepared',
        'check_databases',
        'check_heaps',
        'check_visibility',
        'check_indexes',
        'check_probes',
        'check_forks',
        'check_orphans',
        'check_catalogs']
    LOOP
        CONTINUE WHEN quick AND name = 'check_catalogs';
        BEGIN
            PERFORM oracle.force('indexscan');
            PERFORM set_config('enable_seqscan', 'on', true);
            FOR complaint IN EXECUTE format('SELECT * FROM oracle.%I($1)', name) USING expectation LOOP
                RETURN NEXT complaint;
            END LOOP;
        EXCEPTION WHEN OTHERS THEN
            RETURN NEXT format('%s: %s', name, sqlerrm);
        END;
    END LOOP;
END
$$;

-- The verdict in a form that survives the output of single-user mode: one row
-- per complaint as hexadecimal digits, then one that says how many there were.
CREATE FUNCTION oracle.verdict(expectation jsonb, quick boolean DEFAULT false)
RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    complaint text;
    complaints int := 0;
BEGIN
    FOR complaint IN SELECT * FROM oracle.verify(expectation, quick) LOOP
        RETURN NEXT 'pgcut-complaint:' || encode(convert_to(complaint, 'UTF8'), 'hex');
        complaints := complaints + 1;
    END LOOP;
    RETURN NEXT 'pgcut-complaints:' || complaints;
END
$$;
