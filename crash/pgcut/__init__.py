"""The power-cut explorer: record a server's I/O, build crash images, judge them."""

import sys
from pathlib import Path

# For devtools, which knows the user that runs servers.
sys.path.append(str(Path(__file__).resolve().parents[2]))
