"""The power-cut explorer: record a server's I/O, build crash images, judge them."""
