\set w random(1, :warehouses)
\set d random(1, 10)
\set c random(1, 300)
BEGIN;
SELECT balance, name FROM customer WHERE w = :w AND d = :d AND c = :c;
SELECT l.* FROM order_line l WHERE w = :w AND d = :d AND o = (SELECT max(o) FROM orders WHERE w = :w AND d = :d AND c = :c);
END;
