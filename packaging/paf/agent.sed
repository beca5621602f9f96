# For PAF's agent pgsqlms: a backup_label without this line is our marker, not a backup's label.
s/if ( -f "$datadir\/backup_label" )/if ( -f "$datadir\/backup_label" and qx{ grep "^START WAL LOCATION" "$datadir\/backup_label" } )/
