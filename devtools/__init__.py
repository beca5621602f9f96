"""Build, repository and test tooling behind `./dev`.

One module per concern, listed so that each may use only those above it, and of other packages
only `common` and `bench`:

    deps      Debian packages
    lock      upstream.lock, and the version constants in a source tree
    apt       PostgreSQL's source, and newer tools, by package name, from a private apt state
    source    the pristine upstream tree, from whichever origin works
    patch     the format of the files in patches/
    git       the repository in work/, by plumbing commands
    worktree  work/: import, export, sync
    build     meson and ninja
    chroot    clean chroots of Debian's suites
    sbom      SPDX documents and checksums of what is built
    dist      an archive that runs from any directory
    deb       Debian packages, built in a chroot
    image     a container image of these packages
    cluster   the cluster of `./dev run`
    patroni   a cluster with Patroni
    paf       a cluster with Pacemaker, in a copy of the machine that is thrown away
    advise    predictions of pg_doublewrite_advise, and what came
    failures  where logs of failed tests are kept
    pytests   what runs our Python tests in a process of their own
    suites    test suites, and how their results are counted
    indent    C as pgindent lays it out, Perl as perltidy does
    atomic    tests of atomic writes, on file systems made for them
    atomicvm  a virtual machine whose disks write atomically, or do not
    rules     the rules for Prometheus, tried with its own tool
    trial     what trials of tools share: a cluster, clients, a crash with torn pages
    backups   trials of tools that make backups
    doors     trials of what stands between clients and a server, or beside it
    upgrade   the trial of pg_upgrade
    tools     all these trials: `./dev tools`
    series    the review series: written, built and tested patch by patch
    lint      linters for the manifest of Kubernetes, the dashboard and the RPM spec
    crash     the power-cut explorer
    browser   the static site in a real browser, as a program of its own
    clean     removing what builds and tests have left
    mutate    mutations: does a test notice when a rule is broken?
    fit       do they still apply and compile?
    generate  documents that are made of other files
    site      the documents as a static site
    layers    which file may use which
    english   words that must not come back in comments, messages and documents
    redo      what redo page by page must know, compared with PostgreSQL's source
    check     the gate
    cli       commands
"""
