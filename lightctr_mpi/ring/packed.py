"""Gradients to the owners of their keys in fewer bytes: through a codec, the largest rows only.

What the messages leave out is kept on the rank it comes from and sent with later gradients of the same keys
(codecs/feedback.py). Rows of a rank's own keys do not travel and lose nothing.

A message has the keys, int32[n], and then the rows as the codec writes them; its size is padded to a multiple
of 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import codecs
from ..codecs.feedback import Feedback
from ..comm import exchange_into, exchange_offsets
from ..config import RingOptions
from .segments import Scratch
from .sparse import add_by_owner


class Packed:
    """The sending and the receiving side of one rank.

    Args:
        width: values of a row.
        bounds: int64[size + 1]; rank r owns the keys in [bounds[r], bounds[r + 1]).
        scratch: work arrays.
    """

    def __init__(self, comm: Any, options: RingOptions, width: int, bounds: np.ndarray, scratch: Scratch):
        self.comm, self.rank = comm, comm.Get_rank()
        self.codec, self.share = codecs.build(options.codec), options.top_k
        self.feedback = Feedback(width)
        self.width, self.bounds, self._scratch = width, bounds, scratch

    def exchange(self, ids: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Send each row to the owner of its key; owners add the rows of equal keys in rank order.

        Args:
            ids: int32[u], ascending and unique on each rank.
            rows: float32[u, width], C-contiguous; changed in place (`Feedback.prepare`).

        Returns:
            ids int32[m] ascending and unique, all owned by this rank; sums float32[m, width].
        """
        push = self.feedback.prepare(ids.astype(np.uint64), rows, self.share)
        ids = ids[push.picked]
        cuts = np.searchsorted(ids, self.bounds)
        offsets = exchange_offsets(self.comm, [int(n) for n in np.diff(cuts)])
        leaving, arriving = self._places(cuts), self._places(offsets)
        outbox = self._scratch.array("outbox", int(leaving[-1]), np.uint8)
        inbox = self._scratch.array("inbox", int(arriving[-1]), np.uint8)
        messages = [outbox[a:b] for a, b in zip(leaving, leaving[1:], strict=False)]
        for rank, message in enumerate(messages):
            a, b = int(cuts[rank]), int(cuts[rank + 1])
            if rank == self.rank:
                push.whole(a, b)
            else:
                message[: 4 * (b - a)].view(np.int32)[:] = ids[a:b]
                push.encode(self.codec, a, b, self._body(message, b - a))
        exchange_into(self.comm, messages, inbox, arriving)
        own = slice(cuts[self.rank], cuts[self.rank + 1])
        all_ids, all_rows = self._unpack(inbox, arriving, offsets, ids[own], push.rows[own])
        push.commit()
        return add_by_owner(all_ids, all_rows, self.bounds, self.rank, self._scratch)

    def _body(self, message: np.ndarray, n: int) -> np.ndarray:
        """The part of a message that holds the rows, without the padding."""
        return message[4 * n : 4 * n + self.codec.nbytes(n, self.width)]

    def _places(self, cuts: np.ndarray) -> np.ndarray:
        """int64[size + 1]: where the messages of so many rows from or to each rank begin in one buffer."""
        places = np.zeros(len(cuts), np.int64)
        for rank, n in enumerate(map(int, np.diff(cuts))):
            size = 0 if rank == self.rank else 4 * n + self.codec.nbytes(n, self.width)
            places[rank + 1] = places[rank] + -(-size // 4) * 4
        return places

    def _unpack(
        self, inbox: np.ndarray, places: np.ndarray, offsets: np.ndarray, ids: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """ids int32[n] and rows float32[n, width] of all ranks, in rank order; the own ones are handed in."""
        all_ids = self._scratch.array("keys", int(offsets[-1]), np.int32)
        all_rows = self._scratch.array("rows", (int(offsets[-1]), self.width), np.float32)
        for rank in range(len(offsets) - 1):
            a, b = int(offsets[rank]), int(offsets[rank + 1])
            if rank == self.rank:
                all_ids[a:b], all_rows[a:b] = ids, rows
            else:
                message = inbox[places[rank] : places[rank + 1]]
                all_ids[a:b] = message[: 4 * (b - a)].view(np.int32)
                self.codec.decode(self._body(message, b - a), all_rows[a:b])
        return all_ids, all_rows

    def drain(self) -> tuple[np.ndarray, np.ndarray]:
        """ids int32[m], ascending, and rows float32[m, width] that this rank kept back; nothing is, then."""
        keys, rows = self.feedback.drain()
        return keys.astype(np.int32), rows


def warm(options: RingOptions, width: int) -> None:
    """Compile what `Packed` needs, on a few rows."""
    codec, feedback = codecs.build(options.codec), Feedback(width)
    rows, keys = np.ones((8, width), np.float32), np.arange(8, dtype=np.uint64)
    push = feedback.prepare(keys, rows, options.top_k)
    n = len(push.keys)
    message = np.empty(codec.nbytes(n, width), np.uint8)
    push.encode(codec, 0, n, message)
    push.commit()
    codec.decode(message, rows[:n])
    feedback.drain()
