"""Leases: which worker has which share of which step, and which of them have run out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np


@dataclass(eq=False)  # a lease is itself and no other; NumPy would compare the rows one by one
class Lease:
    """Some rows of a step, to be learned once.

    A lease that runs out gets a new number when it is given to another worker: the old number means nothing
    from then on, which is how a late result is known.
    """

    clock: int
    share: int
    shares: int
    rows: np.ndarray  # int64[m]
    number: int = -1
    worker: int = -1
    given: float = 0.0
    passed_on: int = 0  # how often it has run out


@dataclass
class Leases:
    """The Master's book.

    Args:
        seconds: how long a worker may be silent with a lease in its hands, at least.

    Attributes:
        waiting: leases that nobody has had yet, in order.
        overdue: those that ran out and are for another worker.
        held: number -> lease.
        refused, passed_on: late results, and leases that changed hands.
    """

    seconds: float
    waiting: deque[Lease] = field(default_factory=deque)
    held: dict[int, Lease] = field(default_factory=dict)
    overdue: deque[Lease] = field(default_factory=deque)
    refused: int = 0
    passed_on: int = 0
    _numbers: int = 0
    _slowest: float = 0.0

    def add(self, clock: int, rows: np.ndarray, shares: int) -> None:
        """Cut the rows of a step into shares as even as can be."""
        cuts = [i * len(rows) // shares for i in range(shares + 1)]
        for i in range(shares):
            self.waiting.append(Lease(clock, i, shares, rows[cuts[i] : cuts[i + 1]]))

    def give(self, worker: int, now: float, urgent: bool = False) -> Lease | None:
        """The next lease, now held by this worker: one that is overdue if it is `urgent`, else a new one."""
        lease = None
        if urgent:
            lease = self._overdue_for(worker)
        elif self.waiting:
            lease = self.waiting.popleft()
        if lease is None:
            return None
        self._numbers += 1
        lease.number, lease.worker, lease.given = self._numbers, worker, now
        self.held[lease.number] = lease
        return lease

    def _overdue_for(self, worker: int) -> Lease | None:
        """An overdue lease, but not to the one who let it run out."""
        for lease in self.overdue:
            if lease.worker != worker:
                self.overdue.remove(lease)
                return lease
        return None

    def commit(self, number: int, seconds: float) -> Lease | None:
        """The lease of a finished result, which counts; None if it had run out, and does not."""
        lease = self.held.pop(number, None)
        if lease is None:
            self.refused += 1
        else:
            self._slowest = max(0.98 * self._slowest, seconds)
        return lease

    def expire(self, heard: dict[int, float], now: float) -> list[Lease]:
        """Take the leases back of workers that were silent too long, if another one is there to take them.

        Args:
            heard: worker -> when it was last heard of, for all workers.

        A worker says nothing while it computes, so the limit is never below ten times the slowest batch (of
        which each further commit takes away 2 %), and it doubles each time a lease is passed on. Another
        worker counts if it was heard of in the last half of the limit: when all are silent, it is the network
        or the Master itself that was away.
        """
        limit = max(self.seconds, 10 * self._slowest)
        gone = []
        for number, lease in list(self.held.items()):
            since = max(lease.given, heard[lease.worker])
            others = any(now - at < limit / 2 for worker, at in heard.items() if worker != lease.worker)
            if now - since > limit * 2**lease.passed_on and others:
                del self.held[number]
                lease.passed_on += 1
                self.passed_on += 1
                self.overdue.append(lease)
                gone.append(lease)
        return gone

    @property
    def outstanding(self) -> int:
        return len(self.waiting) + len(self.overdue) + len(self.held)
