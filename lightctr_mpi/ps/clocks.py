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
        """Note a share; returns whether its clock has all now.

        Raises ProtocolError, and notes nothing, for one that came before or cannot be.
        """
        expected = self._of.get(clock, shares)
        twice = clock < self.complete or share in self._seen.get(clock, ())
        if twice or not 0 <= share < shares or shares != expected:
            raise ProtocolError(f"share {share} of {shares} of clock {clock} came twice or does not belong")
        self._of[clock] = shares
        seen = self._seen.setdefault(clock, set())
        seen.add(share)
        whole = len(seen) == shares
        while len(self._seen.get(self.complete, ())) == self._of.get(self.complete, -1):
            del self._seen[self.complete], self._of[self.complete]
            self.complete += 1
        return whole
