\set w random(1, :warehouses)
\set d random(1, 10)
BEGIN;
-- The oldest order that no other client delivers right now; there may be none.
SELECT coalesce((SELECT o FROM new_order WHERE w = :w AND d = :d ORDER BY o LIMIT 1 FOR UPDATE SKIP LOCKED), 0) AS o \gset
DELETE FROM new_order WHERE w = :w AND d = :d AND o = :o;
UPDATE orders SET carrier = 5 WHERE w = :w AND d = :d AND o = :o;
UPDATE order_line SET delivered = now() WHERE w = :w AND d = :d AND o = :o;
UPDATE customer SET balance = balance + 50 WHERE w = :w AND d = :d AND c = (SELECT c FROM orders WHERE w = :w AND d = :d AND o = :o);
END;
