"""Messages between ranks without waiting: sends are let go, receives are looked for, and rest between.

No call here blocks. A sent buffer is kept until MPI has done with it; arriving messages are received piece by
piece and handed out in the order in which their sender sent them. Who finds nothing to do calls `rest`, which
gives up the core, for longer and longer.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import comm as wire
from .protocol import HEADER_BYTES, Kind, Message, ProtocolError, compose

TAG = 17
# Up to here a message is in this process before it is seen: every MPI sends so little without asking first.
# The rest of a longer one comes when its sender next calls MPI, which receiving must not wait for.
SMALL_BYTES = 1024
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

    @property
    def next_bytes(self) -> int:
        """What the next piece of a long message must have."""
        return min(len(self.data) - self.filled, wire.CHUNK_BYTES)

    def take(self, message: Any, count: int) -> None:
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
        self._refused: list[_Arrival] = []
        # What MPI was given for each rank and has given to this one; `close` compares them.
        self._let_go, self._taken = np.zeros(comm.Get_size(), np.int64), 0
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
        self._let_go[dest] += 1
        self._sending.append((self.comm.Isend(piece, dest, TAG), piece))

    def receive(self) -> list[Message]:
        """What has arrived, complete messages only.

        Raises ProtocolError for one that cannot be; what came together with it is lost.
        """
        self.poke()
        if not self._arriving:
            return []
        ready, waiting, blocked = [], [], set()
        for arrival in self._arriving:
            if arrival.source not in blocked and arrival.done():
                self.received += len(arrival.data)
                ready.append(arrival)
            else:
                blocked.add(arrival.source)
                waiting.append(arrival)
        self._arriving = waiting
        if ready:
            self._fruitless = 0
        return [Message(arrival.data, arrival.source) for arrival in ready]

    def poke(self) -> None:
        """Keep what is on its way moving: to be called now and then in the midst of long work."""
        self._push_on()
        self._look(self._begin)

    def _look(self, take: Callable[[Any, int, int], None]) -> None:
        """Hand over all that MPI has to give: message, source, bytes."""
        while (message := self.comm.Improbe(tag=TAG, status=self._status)) is not None:
            self._taken += 1
            self._fruitless = 0
            take(message, self._status.Get_source(), self._status.Get_count())

    def _begin(self, message: Any, source: int, count: int) -> None:
        long = self._long.get(source)
        if long is not None:
            if count != long.next_bytes:
                self._refuse(message, source, count)
                what = f"has {count} bytes, not {long.next_bytes}"
                raise ProtocolError(f"a piece of a message from rank {source} {what}")
            long.take(message, count)
            if long.filled == len(long.data):
                del self._long[source]
            return
        arrival = _Arrival(source, count)
        arrival.take(message, count)
        if count == HEADER_BYTES:
            note = Message(arrival.data, source)
            if note.kind is Kind.LONG:
                self._long[source] = arrival = _announced(note)
        self._arriving.append(arrival)

    def _refuse(self, message: Any, source: int, count: int) -> None:
        """Receive what is of no use, lest its sender wait for that in `close`."""
        self._refused.append(arrival := _Arrival(source, count))
        arrival.take(message, count)

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

        That a send is done does not mean that anything has arrived. So the ranks tell each other how many
        messages they have sent; a rank receives all that were sent to it, and leaves when all ranks have.
        """
        due, known = np.zeros(1, np.int64), False
        counted = self.comm.Ireduce_scatter_block(self._let_go.copy(), due)
        self._fruitless = 0
        while not (known and self._taken == due[0]) or self._sending or self._refused:
            self._push_on()
            self._look(self._refuse)
            known = known or counted.Test()
            self._refused = [a for a in self._refused + self._arriving if a.requests and not a.done()]
            self._arriving = []
            self.rest()
        self._long = {}
        # From here on nothing may be received: others may have left, and begun to send for another Mail.
        barrier = self.comm.Ibarrier()
        while not barrier.Test():
            self.rest()


def _announced(note: Message) -> _Arrival:
    """A message that is to come in pieces. Raises ProtocolError for a length that none has."""
    if note.spare <= wire.CHUNK_BYTES:
        raise note.torn(f"it announces {note.spare} bytes in pieces")
    try:
        return _Arrival(note.source, note.spare)
    except (MemoryError, ValueError):
        raise note.torn(f"there is no room for {note.spare} bytes") from None
