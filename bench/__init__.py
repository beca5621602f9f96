"""The benchmark tool behind `./dev bench`; README.md says how to use it.

One module per concern, listed so that each may use only those above it, and of other packages
only `common`:

    stats      medians, spread, percentiles, ratios
    arms       what is compared: builds and their settings
    machine    what the report says about the machine
    storage    where clusters live while they are measured
    server     one PostgreSQL server on a data directory
    slow       a server whose writes to relation files, or syncs, take longer
    counters   what noise cannot touch: counts, bytes, CPU time
    clients    pgbench and sysbench, and how their output is read
    loads      what happens between two snapshots of the counters
    latency    transactions at a fixed rate: what they wait for, and what grows meanwhile
    recovery   saved WAL, and what its replay costs
    restart    from a crash to the first query, by parts
    standby    how long a standby takes to catch up, what its readers wait, and to be promoted; its lag
    suites     the cases: data, settings, load
    sceptic    more of them: fixed rates, long runs, storage without a cache, TPC-C, YCSB
    summary    medians of a series of runs: the file that git keeps
    runner     interleaved runs, each on a fresh copy of a prepared cluster
    restore    what a restore costs in builds of two commits, as a program of its own
    bars       what must be shown, and whether it was
    report     tables of a series of runs
    money      what measured WAL and requests cost, at the reader's prices
    figures    what the committed results show, for docs/figures.md, README.md and the site
    render     Markdown, HTML and plots
    cli        arguments

Measuring needs the standard library only.  `render` needs matplotlib and
jinja2, so it runs in a process of the system's own Python.
"""
