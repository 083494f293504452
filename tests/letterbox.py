"""A letter box that leads nowhere, for ranks of a parameter server that are tested by themselves."""

from __future__ import annotations

import numpy as np

from lightctr_mpi.ps.protocol import Kind, Message


class Box:
    """In the place of a Mail: keeps what is sent, and hands out what a test puts into `inbox`."""

    def __init__(self) -> None:
        self.out: list[tuple[int, Message]] = []
        self.inbox: list[list[Message]] = []
        self.sent = self.received = self.pokes = 0

    def send(self, dest: int, data: np.ndarray) -> None:
        self.out.append((dest, Message(data.copy(), 1)))

    def receive(self) -> list[Message]:
        return self.inbox.pop(0)

    def poke(self) -> None:
        self.pokes += 1

    def rest(self) -> None:
        pass

    def last(self, dest: int, kind: Kind) -> Message:
        to, message = self.out[-1]
        assert (to, message.kind) == (dest, kind)
        return message
