-- One table for each session, and the same as a file to COPY from.
SELECT format('CREATE TABLE part%s (id int PRIMARY KEY, k int, pad text)', i),
       format('INSERT INTO part%s SELECT j, hashint4(j), repeat(md5(j::text), 3)'
              ' FROM generate_series(1, %s) j WHERE j %% %s = %s', i, :rows, :parts, i),
       format('COPY part%s TO %L', i, current_setting('data_directory') || '/part' || i || '.copy')
FROM generate_series(0, :parts - 1) i \gexec
