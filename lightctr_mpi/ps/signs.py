"""Signs of life: what a rank tells the Master while it has nothing else to say."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..config import PsOptions
from .mail import Mail
from .protocol import STOP, Kind, compose_bytes
from .roles import MASTER

BEAT_SECONDS = 1.0
BEATS = 5  # in each of the spans after which silence has consequences


def beat_seconds(options: PsOptions) -> float:
    """Time between two beats: a second, or less where the Master will not wait that long."""
    return min(BEAT_SECONDS, options.lease_seconds / BEATS, options.silence_seconds / BEATS)


class Signs:
    """Beats to the Master from time to time.

    Args:
        stop: whether this rank was asked to stop; that goes with each beat, at once the first time.
        seconds: between two beats (`beat_seconds`).

    Attributes:
        doing: what the rank is at, for people.
    """

    def __init__(self, mail: Mail, stop: Callable[[], bool], seconds: float):
        self.mail, self.stop, self.seconds = mail, stop, seconds
        self.doing = "starting"
        self._next = time.monotonic() + seconds
        self._told = False

    def beat(self, flags: int = 0, now: bool = False) -> None:
        """Send a sign if it is time for one, or at once."""
        stop = self.stop()
        if now or (stop and not self._told) or time.monotonic() >= self._next:
            self._told = stop
            self._next = time.monotonic() + self.seconds
            flags |= STOP if stop else 0
            self.mail.send(MASTER, compose_bytes(Kind.ALIVE, self.doing.encode(), flags=flags))
