"""Copies of the popular rows of a table, one for each thread that learns on it.

Threads that learn row by row on one table (Hogwild) write the rows of popular keys at the same time, so that
their cache lines travel between cores for every row of data. Here each thread moves copies of the popular
rows, which stand in spare rows at the end of the table, and now and then adds up what it did with what the
others did (parameter mixing: McDonald, Hall, Mann 2010; local SGD: Stich 2019):

    shared += copy - base;  copy = base = shared

for weights and the optimizer's state alike. State is a sum over rows of data, for which this is exact; the
moves of weights are those of a thread that has not seen the latest rows of the others. FTRL's weights are
computed from the merged state. The more popular a row, the more often it is merged, and all more often at the
beginning, where steps are large. A lock for each group of rows sees that no move is lost. After `learn` all
is merged, so that the table alone is the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .block import Block
from .kernels import hot as kernels
from .kernels.ahead import LINE
from .kernels.jit import own
from .kernels.rows import longest_row
from .shard import Shard

PIECE = 256  # rows of data between two merges, a power of two
FIRST_PIECE = 16
GROWTH = 8  # a piece is at most the rows that a thread has learned, divided by this
USES = 256  # of a popular row by one thread between two merges, at most (more only within a piece)
TIERS = 7  # rows of tier s are merged every 2^s pieces
LEAST = 32  # uses between two merges for which a copy pays
SLOTS, BYTES = 8192, 32 << 20  # copies of one thread, at most

_NO_FLOATS, _NO_INTS = np.empty(0, np.float32), np.empty(0, np.int32)


def slots_of(stride: int) -> int:
    """Spare rows for the copies of one thread: a power of two. A hash leaves some of them empty.

    None for rows shorter than a cache line (LR): to move one is cheaper than to see whether there is a copy.
    """
    if stride < LINE:
        return 0
    return 1 << max(2, min(SLOTS, BYTES // (4 * stride)).bit_length() - 1)


class Ranking:
    """Which rows are popular, and how often each is merged.

    Args:
        counts: int32[keys] uses of each row of the table in `rows` rows of data.
        slots: copies for which a thread has room, a power of two.

    Attributes: what kernels/hot.py says of `ranked`, `slots` and `groups`.
    """

    def __init__(self, counts: np.ndarray, rows: int, slots: int):
        found = np.flatnonzero(counts >= max(LEAST * rows / (PIECE << (TIERS - 1)), 2))
        found = found[np.argsort(-counts[found], kind="stable")].astype(np.int32)
        self.bits = slots.bit_length() - 1
        self.slots, ranked = np.full(slots, -1, np.int32), np.empty((len(found), 2), np.int32)
        self.ranked = ranked[: kernels.place(found, self.bits, self.slots, ranked)]
        uses = counts[self.ranked[:, 0]] * (PIECE / rows)  # in one piece
        tier = np.clip(np.floor(np.log2(USES / uses)), 0, TIERS - 1)
        starts = [0]
        for s in range(TIERS):
            a, b = np.searchsorted(tier, [s, s + 1])
            starts += [int(a + (b - a) * (q + 1) // (1 << s)) for q in range(1 << s)]
        tiers = np.array([(1 << s) - 1 for s in range(TIERS)], np.int64)
        self.groups = np.array(starts, np.int64), tiers, np.zeros(LINE * len(starts), np.int32)


class HotRows:
    """The copies of all threads.

    Args:
        shard: with `slots_of(stride)` spare rows for each thread.
        block, rows: the first rows to learn (int64[m], numbers in the block), which tell what is popular.
    """

    def __init__(self, shard: Shard, threads: int, block: Block, rows: np.ndarray):
        counts = np.zeros(len(shard.keys), np.int32)
        kernels.count(own(block.indptr, np.int64), own(block.ids, np.int32), rows, counts)
        ranking = Ranking(counts, len(rows), slots_of(shard.table.shape[1]))
        self._learners = [_Learner(shard, ranking, i) for i in range(threads)]

    def learn(self, thread: int, block: Block, rows: np.ndarray, sums: np.ndarray) -> None:
        """Learn rows of the block (int64[m]) and merge all.

        sums: as of Model.sweep, always the same array for a thread.
        """
        self._learners[thread].learn(block, rows, sums)


class _Learner:
    """One thread's copies of the popular rows and of the bias, and room for the rows of data at hand."""

    def __init__(self, shard: Shard, ranking: Ranking, number: int):
        optimizer, model = shard.optimizer, shard.model
        self._shard, self._rows_done, self._state = shard, 0, np.zeros(3, np.int64)
        first = len(shard.keys) + (number << ranking.bits)
        columns, slots = model.row_columns(optimizer.slots), len(shard.bias)
        base = np.ascontiguousarray(shard.table[ranking.ranked[:, 0], :columns])
        shard.table[first + ranking.ranked[:, 1], :columns] = base
        lines = np.zeros((3, LINE), np.float32)  # no other thread's bias comes near
        lines[:2, :slots] = shard.bias
        self._bias = lines[0, :slots]
        copies = (shard.table, ranking.ranked, ranking.slots, ranking.bits, first, base)
        how = (optimizer.code, columns, optimizer.hyper)
        self._shared = (copies, (shard.bias, self._bias, lines[1, :slots]), ranking.groups, how)
        self._order = np.arange(PIECE, dtype=np.int64)
        self._piece: Block | None = None
        self._sweeps: dict[int, Callable[[], Any]] = {}

    def learn(self, block: Block, rows: np.ndarray, sums: np.ndarray) -> None:
        csr, target = _arrays(block)
        self._make_room(csr, target, PIECE * longest_row(csr[0], rows))
        assert self._piece is not None
        turn = kernels.turn.fixed(csr, target, rows, *_arrays(self._piece), *self._shared, self._state)
        done = 0
        while done < len(rows):
            n = min(PIECE, max(FIRST_PIECE, self._rows_done // GROWTH))
            n = min(len(rows) - done, 1 << (n.bit_length() - 1))
            self._state[1:] = done, done + n
            turn()
            self._sweep(n, sums)()
            self._state[0] += 1
            done += n
            self._rows_done += n
        kernels.merge_all(*self._shared)

    def _sweep(self, n: int, sums: np.ndarray) -> Callable[[], Any]:
        """Learns the first n rows at hand; prepared once where n is one of few."""
        sweep = self._sweeps.get(n)
        if sweep is None:
            shard, piece = self._shard, self._piece
            assert piece is not None
            where = (shard.table, piece.ids, self._bias)
            sweep = shard.model.sweeper(piece, self._order[:n], *where, shard.optimizer, sums)
            if n & (n - 1) == 0:
                self._sweeps[n] = sweep
        return sweep

    def _make_room(self, csr: tuple, target: tuple, entries: int) -> None:
        """Arrays for PIECE rows of as many entries and of what else these rows have."""
        has = [len(column) > 0 for column in (csr[2], csr[3], target[1])]
        if self._piece is not None and entries <= len(self._piece.ids):
            old, old_target = _arrays(self._piece)
            if has == [len(column) > 0 for column in (old[2], old[3], old_target[1])]:
                return
        entries = max(entries, 1)
        fields, values = np.zeros(entries, np.int32), np.zeros(entries, np.float32)
        labels, weights, norms = np.zeros((3, PIECE), np.float32)
        self._piece = Block(
            indptr=np.zeros(PIECE + 1, np.int64),
            ids=np.zeros(entries, np.int32),
            fields=fields if has[0] else None,
            values=values if has[1] else None,
            labels=labels,
            weights=weights if has[2] else None,
            norms=norms,
        )
        self._sweeps = {}


def _arrays(block: Block) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, np.ndarray]]:
    """(indptr, ids, fields, values, norms), (labels, weights) as kernels/hot.py takes them."""
    fields = _NO_INTS if block.fields is None else own(block.fields, np.int32)
    values = _NO_FLOATS if block.values is None else own(block.values, np.float32)
    norms = np.ones(block.n_rows, np.float32) if block.norms is None else own(block.norms, np.float32)
    weights = _NO_FLOATS if block.weights is None else own(block.weights, np.float32)
    csr = (own(block.indptr, np.int64), own(block.ids, np.int32), fields, values, norms)
    return csr, (own(block.labels, np.float32), weights)
