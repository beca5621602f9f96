\set w random(1, :warehouses)
\set d random(1, 10)
\set c random(1, 300)
\set i1 random(1, 10000)
\set i2 random(1, 10000)
\set i3 random(1, 10000)
\set i4 random(1, 10000)
\set i5 random(1, 10000)
\set i6 random(1, 10000)
\set i7 random(1, 10000)
\set i8 random(1, 10000)
\set i9 random(1, 10000)
\set i10 random(1, 10000)
BEGIN;
SELECT name FROM customer WHERE w = :w AND d = :d AND c = :c;
UPDATE district SET next_order = next_order + 1 WHERE w = :w AND d = :d RETURNING next_order - 1 AS o \gset
INSERT INTO orders VALUES (:w, :d, :o, :c, now(), NULL, 10);
INSERT INTO new_order VALUES (:w, :d, :o);
-- An index scan takes the items in order, so that no two of these deadlock.
UPDATE stock SET quantity = CASE WHEN quantity > 15 THEN quantity - 5 ELSE quantity + 86 END, ytd = ytd + 5, orders = orders + 1 WHERE w = :w AND i IN (:i1, :i2, :i3, :i4, :i5, :i6, :i7, :i8, :i9, :i10);
INSERT INTO order_line SELECT :w, :d, :o, row_number() OVER (), i, 5, 5 * price, NULL FROM item WHERE i IN (:i1, :i2, :i3, :i4, :i5, :i6, :i7, :i8, :i9, :i10);
END;
