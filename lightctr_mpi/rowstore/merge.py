"""One dictionary from those of all ranks, without any rank but the first holding all of it in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..comm import bcast_array, rank_of, recv_array, send_array, size_of
from ..kernels.table import merge

CHUNK_KEYS = 1 << 22


def union(comm: Any, keys: np.ndarray) -> np.ndarray:
    """On rank 0 the sorted union of every rank's sorted distinct keys (uint64[n]); empty on the others.

    Pairs of ranks merge, then pairs of pairs: log2(ranks) rounds.
    """
    rank, size, step = rank_of(comm), size_of(comm), 1
    while step < size:
        if rank % (2 * step):
            send_array(comm, keys, rank - step)
            return np.empty(0, np.uint64)
        if rank + step < size:
            theirs = recv_array(comm, rank + step)
            out = np.empty(len(keys) + len(theirs), np.uint64)
            keys = out[: merge(keys, theirs, out)]
        step *= 2
    return keys


def chunks(comm: Any, keys: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Rank 0's keys piece by piece on every rank, each piece with the position of its first key."""
    n = int(bcast_array(comm, np.array([len(keys)]))[0])
    for start in range(0, n, CHUNK_KEYS):
        yield start, bcast_array(comm, keys[start : start + CHUNK_KEYS])


class Numbering:
    """Translation of a rank's own numbers into positions in the sorted union.

    Attributes:
        sorted: the rank's own keys.
        table: int32[largest number + 1], by own number; what is no key's number has no meaning.
    """

    def __init__(self, keys: np.ndarray, numbers: np.ndarray):
        """`keys`: uint64[n] ascending, `numbers`: int32[n], the rank's own numbers of them."""
        self.sorted, self._numbers = keys, numbers
        self.table = np.zeros(int(numbers.max(initial=-1)) + 1, np.int32)

    def learn(self, start: int, chunk: np.ndarray) -> None:
        """Note the positions of the own keys in `chunk`, a piece of the union that begins at `start`."""
        first = np.searchsorted(self.sorted, chunk[0], "left")
        end = np.searchsorted(self.sorted, chunk[-1], "right")
        if end - first == len(chunk):  # all keys of the chunk are among the own ones
            positions = np.arange(start, start + len(chunk))
        else:
            positions = start + np.searchsorted(chunk, self.sorted[first:end])
        self.table[self._numbers[first:end]] = positions
