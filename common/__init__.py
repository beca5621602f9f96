"""What all tools of this repository share: devtools, bench, and the power-cut explorer.

These modules use none of those.  They are listed so that each may use only those above it:

    base      errors, paths, processes, the unprivileged user
    progress  how far a long step is
    postgres  a server on a data directory: made, configured, asked, killed
"""
