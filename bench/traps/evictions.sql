-- One row anywhere; no index has the column, and its page has room for the new version.
\set r random(1, :rows)
UPDATE hot SET k = k + 1 WHERE id = :r;
