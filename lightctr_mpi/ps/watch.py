"""Who was heard of when, and what the silent ones said last."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..errors import Fault
from .roles import Roles

NOTE_SECONDS = 30.0  # of silence before a person is told
GAP_SECONDS = 1.0  # between two looks: what goes beyond is no silence of others


class Lost(Fault):
    """A rank that gives no sign any more: nobody can wait for it, not even to leave together."""


class Watch:
    """Watches over the other ranks.

    Args:
        silence: seconds without a sign after which the run ends.

    Attributes:
        last: rank -> time.monotonic() of its last message; later by the time in which nobody looked.
    """

    def __init__(self, roles: Roles, silence: float, note: Callable[[str], None]):
        self.roles, self.silence, self.note = roles, silence, note
        self._looked = time.monotonic()
        self.last = dict.fromkeys(range(1, roles.size), self._looked)
        self._said = dict.fromkeys(self.last, "starting")
        self._told: set[int] = set()

    def heard(self, rank: int) -> None:
        self.last[rank] = time.monotonic()
        if rank in self._told:
            self._told.discard(rank)
            self.note(f"{self.roles.name(rank)} is back")

    def says(self, rank: int, doing: str) -> None:
        self._said[rank] = doing

    def look(self, now: float) -> None:
        """Tell of silent ranks. Raises Lost for one that has been silent too long.

        A Master that was away itself, writing a model or suspended with the whole job, finds signs of others
        that MPI has yet to hand over: that time does not count.
        """
        away = now - self._looked - min(GAP_SECONDS, self.silence / 5)
        self._looked = now
        if away > 0:
            self.last = {rank: min(at + away, now) for rank, at in self.last.items()}
        for rank, at in self.last.items():
            seconds = now - at
            if seconds > self.silence:
                raise Lost(self._about(rank, seconds))
            if seconds > min(NOTE_SECONDS, self.silence / 2) and rank not in self._told:
                self._told.add(rank)
                self.note(self._about(rank, seconds))

    def _about(self, rank: int, seconds: float) -> str:
        time_text = f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}"
        return f"{self.roles.name(rank)} has been silent for {time_text} s; it last said: {self._said[rank]}"
