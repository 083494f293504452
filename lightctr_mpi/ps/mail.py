"""Messages between ranks without waiting: sends are let go, receives are looked for, and rest between.

No call here blocks. A sent buffer is kept until MPI has done with it; arriving messages are received piece by
piece and handed out in the order in which their sender sent them. Who finds nothing to do calls `rest`, which
gives up the core, for longer and longer.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

import numpy as np

from .. import comm as wire
from .protocol import HEADER_BYTES, Kind, Message, ProtocolError, compose

TAG = 17
SMALL_BYTES = 4096  # up to here a message is in this process before it is seen: receiving takes no time
# Waiting: yield the core this often, then sleep, up to so many seconds. A thousand looks a second cost 4 % of
# a core; a long message moves only while both sides look.
YIELDS = 60
NAP_SECONDS = 50e-6
MOVING_NAP_SECONDS = 50e-6
LONGEST_NAP_SECONDS = 2.5e-3


class _Arrival:
    """A message on its way in: its buffer, and the requests that fill it."""

    def __init__(self, source: int, nbytes: int):
        self.source, self.data, self.filled = source, np.empty(nbytes, np.uint8), 0
        self.requests: list[Any] = []

    def take(self, message: Any, count: int) -> None:
        if self.filled + count > len(self.data):
            raise ProtocolError(f"rank {self.source} sends more than the {len(self.data)} bytes it announced")
        piece = self.data[self.filled : self.filled + count]
        self.filled += count
        if count <= SMALL_BYTES:
            message.Recv(piece)
        else:
            self.requests.append(message.Irecv(piece))

    def done(self) -> bool:
        self.requests = [request for request in self.requests if not request.Test()]
        return not self.requests and self.filled == len(self.data)


class Mail:
    """The letter box of a rank.

    Args:
        comm: a communicator for this purpose alone.
        status: makes an MPI status (mpi.World.status).

    Attributes:
        sent, received: bytes so far.
    """

    def __init__(self, comm: Any, status: Any):
        self.comm, self.rank = comm, comm.Get_rank()
        self._status = status()
        self._sending: deque[tuple[Any, np.ndarray]] = deque()
        self._arriving: list[_Arrival] = []
        self._long: dict[int, _Arrival] = {}  # by sender: a message whose pieces are still to come
        self._fruitless = 0
        self.sent = self.received = 0

    def send(self, dest: int, data: np.ndarray) -> None:
        """Let a message go; `data` must not change afterwards."""
        self.sent += len(data)
        if len(data) > wire.CHUNK_BYTES:
            self._isend(compose(Kind.LONG, spare=len(data)), dest)
        for start in range(0, len(data), wire.CHUNK_BYTES):
            self._isend(data[start : start + wire.CHUNK_BYTES], dest)

    def _isend(self, piece: np.ndarray, dest: int) -> None:
        self._sending.append((self.comm.Isend(piece, dest, TAG), piece))

    def receive(self) -> list[Message]:
        """What has arrived, complete messages only. Raises ProtocolError for a torn one."""
        self.poke()
        if not self._arriving:
            return []
        ready, waiting, blocked = [], [], set()
        for arrival in self._arriving:
            if arrival.source not in blocked and arrival.done():
                self.received += len(arrival.data)
                ready.append(Message(arrival.data, arrival.source))
            else:
                blocked.add(arrival.source)
                waiting.append(arrival)
        self._arriving = waiting
        if ready:
            self._fruitless = 0
        return ready

    def poke(self) -> None:
        """Keep what is on its way moving: to be called now and then in the midst of long work."""
        self._push_on()
        while (message := self.comm.Improbe(tag=TAG, status=self._status)) is not None:
            self._begin(message, self._status.Get_source(), self._status.Get_count())

    def _begin(self, message: Any, source: int, count: int) -> None:
        self._fruitless = 0
        arrival = self._long.get(source)
        if arrival is None:
            arrival = _Arrival(source, count)
            arrival.take(message, count)
            if count == HEADER_BYTES and not arrival.requests:
                note = Message(arrival.data, source)
                if note.kind is Kind.LONG:
                    self._long[source] = arrival = _Arrival(source, note.spare)
                    self._arriving.append(arrival)
                    return
            self._arriving.append(arrival)
            return
        arrival.take(message, count)
        if arrival.filled == len(arrival.data):
            del self._long[source]

    def _push_on(self) -> None:
        """Drop the buffers of sends that are done, whichever they are."""
        for _ in range(len(self._sending)):
            entry = self._sending.popleft()
            if not entry[0].Test():
                self._sending.append(entry)

    def moving(self) -> bool:
        """Whether something is on its way in or out."""
        return bool(self._sending or self._arriving)

    def rest(self) -> None:
        """Give up the core for a moment: nothing was found to do."""
        self._fruitless += 1
        beyond = self._fruitless - YIELDS
        if beyond < 0:
            os.sched_yield()
            return
        longest = MOVING_NAP_SECONDS if self.moving() and beyond < 5000 else LONGEST_NAP_SECONDS
        time.sleep(min(NAP_SECONDS * 1.25 ** min(beyond, 40), longest))

    def close(self) -> None:
        """Leave with all others: no message stays under way, whatever state the ranks are in.

        Everybody goes on receiving until everybody has sent all that was begun (non-blocking consensus:
        Hoefler, Siebert, Lumsdaine 2010).
        """
        barrier = None
        while True:
            self._push_on()
            while (message := self.comm.Improbe(tag=TAG, status=self._status)) is not None:
                room = np.empty(self._status.Get_count(), np.uint8)
                self._arriving.append(arrival := _Arrival(self._status.Get_source(), len(room)))
                arrival.take(message, len(room))
            self._arriving = [
                arrival for arrival in self._arriving if arrival.requests and not arrival.done()
            ]
            if barrier is None and not self._sending and not self._arriving:
                barrier = self.comm.Ibarrier()
            if barrier is not None and barrier.Test():
                return
            self.rest()
