"""Delta debugging: the fewest departures from a healthy state that still fail."""

from collections.abc import Callable
from typing import Any


def ddmin(pieces: Any, fails: Callable[..., bool]) -> Any:
    """Return a subset of `pieces` for which `fails` holds and no part can go.

    `fails(subset)` must hold for all of them.  The result is 1-minimal: it no
    longer fails if any single piece is taken out.
    """
    pieces = list(pieces)
    parts = 2
    while len(pieces) >= 2:
        size = -(-len(pieces) // parts)
        chunks = [pieces[i:i + size] for i in range(0, len(pieces), size)]
        rests = [[p for c in chunks if c is not chunk for p in c] for chunk in chunks]
        smaller = next((chunk for chunk in chunks if fails(chunk)), None)
        if smaller is not None:
            pieces, parts = smaller, 2
            continue
        smaller = next((rest for rest in rests if len(chunks) > 2 and fails(rest)), None)
        if smaller is not None:
            pieces, parts = smaller, max(parts - 1, 2)
        elif parts >= len(pieces):
            break
        else:
            parts = min(len(pieces), parts * 2)
    return pieces
