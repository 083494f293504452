"""The clock of a server: how far the shares of each step have come in."""

from __future__ import annotations

from .protocol import ProtocolError


class Clocks:
    """Counts the shares of each clock.

    Clock c is the c-th step of this run; its `shares` leases may come in any order, together with those of
    other clocks. That no worker's own pace enters is what lets a lease move to another worker, and a worker
    leave.

    Attributes:
        complete: all shares of all clocks below this one have come.
    """

    def __init__(self) -> None:
        self.complete = 0
        self._seen: dict[int, set[int]] = {}
        self._of: dict[int, int] = {}

    def arrived(self, clock: int, share: int, shares: int) -> bool:
        """Note a share; returns whether its clock has all now. Raises ProtocolError for one too many."""
        seen = self._seen.setdefault(clock, set())
        expected = self._of.setdefault(clock, shares)
        if clock < self.complete or share in seen or not 0 <= share < shares or shares != expected:
            raise ProtocolError(f"share {share} of {shares} of clock {clock} came twice or does not belong")
        seen.add(share)
        whole = len(seen) == shares
        while len(self._seen.get(self.complete, ())) == self._of.get(self.complete, -1):
            del self._seen[self.complete], self._of[self.complete]
            self.complete += 1
        return whole
