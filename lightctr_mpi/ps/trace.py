"""A record of what a server let out and took in, in its order: for looking into staleness."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import writing

PULLED, PUSHED = 0, 1
EVENT = np.dtype(
    [
        ("kind", "u1"),  # PULLED: rows were read for a lease; PUSHED: its gradient was applied
        ("worker", "<i4"),  # rank
        ("clock", "<i8"),  # of the lease
        ("share", "<i4"),
        ("complete", "<i8"),  # clocks below this one were complete at the time
        ("keys", "<i8"),
    ]
)


class Trace:
    """Collects events in memory; `save` writes them as an array of EVENT."""

    def __init__(self, path: Path):
        self.path = path
        self._events: list[tuple] = []

    def add(self, kind: int, worker: int, clock: int, share: int, complete: int, keys: int) -> None:
        self._events.append((kind, worker, clock, share, complete, keys))

    def save(self) -> None:
        """Raises UserError when the file cannot be written."""
        with writing(self.path):
            np.save(self.path, np.array(self._events, EVENT))
