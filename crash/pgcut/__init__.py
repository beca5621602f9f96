"""The power-cut explorer: record a server's I/O, build crash images, judge them.

One module per concern, listed so that each may use only those above it:

    limits       limits of time for steps
    server       PostgreSQL's programs and servers
    recording    what a server did to its files
    mount        a mounted recorder
    content      what operations do to a file's content
    disk         the durability model
    image        a state as a directory
    block        a block device that is recorded
    fileplayer   random things done to files
    modelcheck   is the model true?
    states       faults, and where to cut
    minimise     the fewest damages that fail
    logformat    what a batch of the double-write log looks like
    wal          reading WAL
    walindex     the WAL of a recording, by page
    watched      the protocol monitor: what is durable at each operation
    watchedlog   ... its rules for the double-write log
    watchedhome  ... its rules for pages at home
    monitor      ... all of it: is each write of a recording allowed?
    matrix       settings, drawn at random
    table        a table of the load, and the rows that it must have
    plans        a table, by every plan
    client       clients, which know what must survive
    load_rows    kinds of load: rows change
    load_files   kinds of load: files come and go
    load_server  kinds of load: the rest
    workload     all kinds of load, prepared and run
    readers      sessions that read while others write
    oracle       what a recovered cluster must say
    pages        what its pages say without a server
    alarms       what logs, errors and complaints say that is a finding
    primary      scenarios: a primary is recorded
    sequel       a server goes on from an image, and is cut off again
    judge        recovers images, and says what is wrong with them
    explore      builds the images of a recording, and has them judged
    probes       clients that must get on, whatever happens to files of others
    failing      ... a primary whose files fail
    record       ... standbys and others; makes a recording
    blockstates  states of a block device
    controls     what is broken on purpose
    broken       servers that break a rule
    trial        one recording, and states of it
    controlled   controls must be found in recordings
    campaign     many of both, in processes
    report       the outcome of a campaign
    realcut      real power cuts
    scripts      statements and faults in an order that matters
    world        what is known of the servers of a history
    steps        what may be done to servers
    history      lists of steps
    recipes      what histories begin with, so that rare orders are met
    drawing      histories drawn at random
    ledger       what a server of a history must hold
    store        a data directory whose power can be cut
    machine      a server of a history, with its disk
    judged       what is wrong with the servers of a history
    lives        ... steps: starts, load, ends
    copies       ... standbys, backups, recovery, pg_rewind
    refused      ... what must be refused
    play         plays a history
    histories    many histories
    restarts     one server, crashed again and again
    __main__     the command line
"""

import sys
from pathlib import Path

# For common, which knows the user that runs servers.
sys.path.append(str(Path(__file__).resolve().parents[2]))
