-- A mix of transactions in the manner of TPC-C: the same tables, the same
-- shares, skew left out.  :warehouses is the scale; districts, customers and
-- items have the sizes of TPC-C divided by ten, so that a warehouse takes
-- about 13 MB.
CREATE TABLE warehouse (w int PRIMARY KEY, ytd numeric NOT NULL DEFAULT 0, name text);
CREATE TABLE district (w int, d int, ytd numeric NOT NULL DEFAULT 0,
	next_order int NOT NULL DEFAULT 301, PRIMARY KEY (w, d));
CREATE TABLE customer (w int, d int, c int, balance numeric NOT NULL DEFAULT 0,
	payments int NOT NULL DEFAULT 0, name text, data text, PRIMARY KEY (w, d, c));
CREATE TABLE history (w int, d int, c int, at timestamptz, amount numeric, data text);
CREATE TABLE item (i int PRIMARY KEY, price numeric, name text);
CREATE TABLE stock (w int, i int, quantity int NOT NULL DEFAULT 100, ytd int NOT NULL DEFAULT 0,
	orders int NOT NULL DEFAULT 0, data text, PRIMARY KEY (w, i));
CREATE TABLE orders (w int, d int, o int, c int, at timestamptz, carrier int, lines int,
	PRIMARY KEY (w, d, o));
CREATE TABLE new_order (w int, d int, o int, PRIMARY KEY (w, d, o));
CREATE TABLE order_line (w int, d int, o int, line int, i int, quantity int, amount numeric,
	delivered timestamptz, PRIMARY KEY (w, d, o, line));

INSERT INTO warehouse SELECT w, 0, 'warehouse ' || w FROM generate_series(1, :warehouses) w;
INSERT INTO district SELECT w, d FROM generate_series(1, :warehouses) w, generate_series(1, 10) d;
INSERT INTO customer
	SELECT w, d, c, 0, 0, 'customer ' || c, repeat(md5(c::text), 10)
	FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 300) c;
INSERT INTO item SELECT i, 1 + i % 100, 'item ' || i FROM generate_series(1, 10000) i;
INSERT INTO stock
	SELECT w, i, 100, 0, 0, repeat(md5(i::text), 8)
	FROM generate_series(1, :warehouses) w, generate_series(1, 10000) i;
INSERT INTO orders
	SELECT w, d, o, o, now(), 1, 10
	FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 300) o;
INSERT INTO new_order SELECT w, d, o FROM orders WHERE o > 200;
INSERT INTO order_line
	SELECT w, d, o, line, 1 + (o * 10 + line) % 10000, 5, 10, now()
	FROM orders, generate_series(1, 10) line;
CREATE INDEX ON orders (w, d, c, o);
