"""What a server of a history must have."""

from typing import Any

from . import oracle


class Ledger:
    """What a server must have: events of clients, and how far it is known to have come."""

    def __init__(self, events: Any = None, floor: Any = None) -> None:
        """With `floor`, a moment, it is derived: what came later may be there or not."""
        self.events = [] if events is None else events
        self.floor = floor
        self.ceiling = float("inf")

    @property
    def derived(self) -> bool:
        return self.floor is not None

    def expectation(self) -> Any:
        """Return what oracle.verify() asks for."""
        expected = oracle.expectation(list(self.events), self.ceiling)
        if not self.derived:
            return expected
        before = oracle.expectation(list(self.events), self.floor)["clients"]
        expected = oracle.lagging(expected)
        for client, known in expected["clients"].items():
            known["acked"] = before.get(client, {"acked": 0})["acked"]
        return expected
