\set w random(1, :warehouses)
\set d random(1, 10)
SELECT count(DISTINCT s.i) FROM district t JOIN order_line l ON l.w = t.w AND l.d = t.d AND l.o >= t.next_order - 20 JOIN stock s ON s.w = l.w AND s.i = l.i WHERE t.w = :w AND t.d = :d AND s.quantity < 30;
