"""KeyTable: rows of the keys that a server owns, made when a key is first seen.

Rows stand in order of arrival; the index from keys to rows is that of kernels/table.py. What a new row holds
is a function of seed and key, as in a Shard: which worker asked first has no influence.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

from ..kernels import delay
from ..kernels import rows as rows_kernels
from ..kernels.jit import own
from ..kernels.memory import row_stride
from ..kernels.table import Dictionary
from ..models.base import Model
from ..optim.base import Optimizer

_PAGE = 2 << 20  # sizes of mappings are whole huge pages, so that these move and grow in one piece
_MOVED = 1 << 12  # rows that are copied at a time when a table closes up
_FETCHED = 512  # rows that the cache is to hold before the optimizer moves them
_LEFT = 1 << 10  # keys that left a side table before it is cleaned up
_HITS, _LAST = 0, 1


class Rows:
    """An array that grows in place: the kernel maps its pages to a larger range, nothing is copied.

    Pages take memory when they are first written. Views of `array` must be gone when it grows.

    Attributes:
        array: dtype[capacity, columns]; 0 where nothing was written.
    """

    def __init__(self, columns: int, dtype: type, expected: int = 0):
        self._columns, self._dtype = columns, np.dtype(dtype)
        self._row = columns * self._dtype.itemsize
        size = self._round(expected * self._row)
        try:
            self._pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"cannot map {size >> 20} MB for {expected} rows") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without transparent huge pages
                self._pages.madvise(mmap.MADV_HUGEPAGE)
        self._view()

    @staticmethod
    def _round(size: int) -> int:
        return max(-(-size // _PAGE), 1) * _PAGE

    def _view(self) -> None:
        n = len(self._pages) // self._row
        self.array = np.frombuffer(self._pages, self._dtype, n * self._columns).reshape(n, self._columns)

    def reserve(self, n: int) -> None:
        """Have a capacity of n rows or more.

        Raises:
            MemoryError: the address space does not hold them.
            BufferError: a view of the array is still in use.
        """
        if n <= len(self.array):
            return
        least = self._round(n * self._row)
        del self.array
        try:
            try:
                self._pages.resize(max(least, self._round(len(self._pages) * 3 // 2)))
            except OSError:
                self._pages.resize(least)
        except OSError as error:
            raise MemoryError(f"cannot map {least >> 20} MB for {n} rows") from error
        except BufferError as error:
            raise BufferError("rows cannot grow while a view of them is in use") from error
        finally:
            self._view()

    def compact(self, kept: np.ndarray, n: int) -> None:
        """Of the first n rows keep those numbered `kept` (ascending), in their order; the rest is 0 again."""
        for a in range(0, len(kept), _MOVED):
            part = kept[a : a + _MOVED]
            if part[-1] >= a + len(part):  # from the first row that moves
                self.array[a : a + len(part)] = self.array[part]
        end = min(self._round(len(kept) * self._row), len(self._pages))
        self.array[len(kept) : min(n, -(-end // self._row))] = 0
        if end < len(self._pages):
            self._pages.madvise(mmap.MADV_DONTNEED, end, len(self._pages) - end)


class _Index(Dictionary):
    """Numbers of keys, with room for those that are expected."""

    def __init__(self, keys: np.ndarray | None = None, expected: int = 0):
        super().__init__(keys)
        while len(self._slots) < 2 * expected:
            self._grow()


class Sightings:
    """In how many calls each of the numbers 0, 1, ... was seen, and at what time last.

    Attributes:
        rows: int32[capacity, 2], hits and time.
    """

    def __init__(self, expected: int = 0):
        self.rows = Rows(2, np.int32, expected)

    def see(self, numbers: np.ndarray, now: int) -> None:
        seen = self.rows.array
        seen[numbers, _HITS] += 1
        seen[numbers, _LAST] = now

    def hits(self, numbers: np.ndarray) -> np.ndarray:
        """int32[m], a copy."""
        return self.rows.array[numbers, _HITS]

    def stale(self, n: int, now: int, age: int, hits: int) -> np.ndarray:
        """bool[n]: last seen before now - age, and in fewer than `hits` calls unless that is 0."""
        seen = self.rows.array[:n]
        stale = seen[:, _LAST] < now - age
        return stale & (seen[:, _HITS] < hits) if hits else stale


class Waiting:
    """Keys that were seen, but not often enough to have a row.

    The index cannot forget single keys: one that left stays for a while, with 0 hits.
    """

    def __init__(self) -> None:
        self._index, self._seen, self._left = Dictionary(), Sightings(), 0

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + 8 * len(self._index)

    def see(self, keys: np.ndarray, now: int) -> np.ndarray:
        """Count a sighting of each key; the hits of each, int32[m]."""
        numbers = self._index.add(keys)
        self._seen.rows.reserve(len(self._index))
        self._seen.see(numbers, now)
        return self._seen.hits(numbers)

    def leave(self, keys: np.ndarray) -> None:
        """Forget the hits of these keys."""
        numbers = np.unique(self._index.find(keys))
        numbers = numbers[numbers >= 0]
        self._left += int(np.count_nonzero(self._seen.hits(numbers)))
        self._seen.rows.array[numbers, _HITS] = 0
        if self._left > max(len(self._index) // 2, _LEFT):
            self._keep(np.ones(len(self._index), bool))

    def evict(self, now: int, age: int, hits: int) -> None:
        self._keep(~self._seen.stale(len(self._index), now, age, hits))

    def _keep(self, keep: np.ndarray) -> None:
        n = len(keep)
        kept = np.flatnonzero(keep & (self._seen.rows.array[:n, _HITS] > 0))
        self._index = Dictionary(self._index.keys[kept])
        self._seen.rows.compact(kept, n)
        self._left = 0


class KeyTable:
    """Weights and optimizer state of keys, side by side in a row for each.

    Args:
        model, optimizer, seed: what a new row holds.
        extra: further columns of a row, 0 in new ones.
        expected: keys to have room for from the start.
        admit_after: calls of `lookup` that a key must be seen in before it gets a row; 0 or 1: at once. Until
            then it is counted in a side table that takes 32 to 56 bytes a key.
        track: keep for each row when and how often it was seen (8 bytes), so that keys can be evicted.

    Attributes:
        width: columns of weights; the state begins at column state_col = width, extra columns at extra_col.
        stride: columns of a row in all.
        now: the time, counted in epochs, that sightings are stamped with.
        admitted: keys that got a row in `lookup`; evicted: keys that lost it; refused_sightings: how often
            `lookup` saw a key that had to wait.
    """

    def __init__(
        self,
        model: Model,
        optimizer: Optimizer,
        seed: int,
        *,
        extra: int = 0,
        expected: int = 0,
        admit_after: int = 0,
        track: bool = False,
    ):
        self.model, self.optimizer, self.seed, self.admit_after = model, optimizer, seed, admit_after
        self.width = self.state_col = model.width
        self.extra_col = model.width * (1 + optimizer.slots)
        self.stride = row_stride(self.extra_col + extra)
        self.now = self.admitted = self.evicted = self.refused_sightings = 0
        self._rows = Rows(self.stride, np.float32, expected)
        self._index = _Index(expected=expected)
        self._seen = Sightings(expected) if track else None
        self._waiting = Waiting() if admit_after > 1 else None

    def __len__(self) -> int:
        """Keys that have a row."""
        return len(self._index)

    @property
    def keys(self) -> np.ndarray:
        """uint64[n] by number, which is by order of arrival; a view to be dropped before keys are added."""
        return self._index.keys

    @property
    def rows(self) -> np.ndarray:
        """float32[capacity, stride], rows of which the first n are in use. A view of it, or of a part, must
        not outlive the next call that adds keys."""
        return self._rows.array

    @property
    def seen(self) -> np.ndarray | None:
        """int32[n, 2], hits and time of the last, of each row; None if they are not tracked. A view."""
        return None if self._seen is None else self._seen.rows.array[: len(self)]

    @property
    def nbytes(self) -> int:
        """Bytes of rows in use, index and counts; room for more rows takes no memory yet."""
        row = 4 * self.stride + (0 if self._seen is None else 8)
        waiting = 0 if self._waiting is None else self._waiting.nbytes
        return row * len(self) + self._index.nbytes + waiting

    def touch(self, now: int) -> None:
        """Set the time that sightings are stamped with."""
        self.now = now

    def lookup(self, keys: np.ndarray, create: bool) -> np.ndarray:
        """Numbers int32[u] of the rows of keys, uint64[u]; -1: there is none.

        With `create` each key has been seen once more (a key given twice counts once), and gets a row if that
        was often enough. Numbers hold until the next `evict`.

        Raises:
            BufferError: the table has to grow, and a view of its rows is in use.
            MemoryError, OverflowError: there is no room for the rows.
        """
        keys = own(keys, np.uint64)
        numbers = self._index.find(keys)
        if create:
            unknown = np.flatnonzero(numbers < 0)
            if len(unknown):
                numbers[unknown] = self._admit(keys[unknown])
            if self._seen is not None:
                self._seen.see(numbers if self._waiting is None else numbers[numbers >= 0], self.now)
        return numbers

    def gather(self, numbers: np.ndarray, out: np.ndarray) -> None:
        """out[i] = weights of row numbers[i], zeros for -1. int32[u], float32[u, width]."""
        delay.gather_ahead(self.rows, numbers, out)

    def apply(self, numbers: np.ndarray, grads: np.ndarray, scale: float) -> int:
        """Move rows (int32[u], each once or -1) along scale times float32[u, width]; how many had no row."""
        rows, step = self.rows, self.optimizer.apply_rows
        for a in range(0, len(numbers), _FETCHED):
            part = numbers[a : a + _FETCHED]
            delay.fetch(rows, part, self.extra_col)
            step(rows, part, rows, part, self.state_col, self.width, grads[a : a + _FETCHED], scale)
        return int(np.count_nonzero(numbers < 0))

    def restore(
        self, keys: np.ndarray, values: np.ndarray | None = None, seen: np.ndarray | None = None
    ) -> np.ndarray:
        """Make rows for keys without asking for admission; their numbers, int32[m].

        Args:
            keys: uint64[m], distinct.
            values: float32[m, width] weights, from which the state starts anew, or [m, width * (1 + slots)]
                weights and state. None: rows that are new begin as in `lookup`.
            seen: int32[m, 2] hits and times as in `seen`; None: no hits, and the time is now.

        Raises: what `lookup` raises, and ValueError for values of another width.
        """
        keys = own(keys, np.uint64)
        if values is not None and values.shape[1] not in (self.width, self.extra_col):
            raise ValueError(f"rows of {values.shape[1]} columns in a table of {self.width} weights")
        numbers = self._enter(keys, values is None)
        if values is not None:
            self.rows[numbers, : values.shape[1]] = values
            if values.shape[1] == self.width < self.extra_col:
                state = np.empty((len(keys), self.extra_col - self.width), np.float32)
                self.optimizer.init_state(state, values)
                self.rows[numbers, self.state_col : self.extra_col] = state
        if self._waiting is not None:
            self._waiting.leave(keys)
        if self._seen is not None:
            self._seen.rows.array[numbers] = (0, self.now) if seen is None else seen
        return numbers

    def evict(self, now: int, age: int, hits: int) -> int:
        """Drop keys last seen before now - age and in fewer than `hits` calls (0: in any number); how many.

        Keys that wait for a row are forgotten by the same rule, and not counted. The other rows close up in
        their order and get new numbers; memory of the rest goes back. Needs `track`, else ValueError.
        """
        if self._seen is None:
            raise ValueError("a table that does not track sightings cannot evict keys")
        if self._waiting is not None:
            self._waiting.evict(now, age, hits)
        n = len(self)
        kept = np.flatnonzero(~self._seen.stale(n, now, age, hits))
        if len(kept) < n:
            self._rows.compact(kept, n)
            self._seen.rows.compact(kept, n)
            self._index = _Index(self.keys[kept])
            self.evicted += n - len(kept)
        return n - len(kept)

    def all_finite(self) -> bool:
        """Whether every weight is a finite number."""
        return rows_kernels.all_finite(self.rows[: len(self)], self.width)

    def _admit(self, keys: np.ndarray) -> np.ndarray:
        """Numbers of keys that had no row until now, int32[m]; -1 for those that have to wait."""
        before = len(self)
        if self._waiting is None:
            numbers = self._enter(keys)
        else:
            hits = self._waiting.see(keys, self.now)
            ready = np.flatnonzero(hits >= self.admit_after)
            self.refused_sightings += len(keys) - len(ready)
            numbers = np.full(len(keys), -1, np.int32)
            numbers[ready] = self._enter(keys[ready])
            self._waiting.leave(keys[ready])
            if self._seen is not None:  # the present sighting is yet to be counted
                self._seen.rows.array[numbers[ready], _HITS] = hits[ready] - 1
        self.admitted += len(self) - before
        return numbers

    def _enter(self, keys: np.ndarray, start: bool = True) -> np.ndarray:
        """Numbers of keys, int32[m]; those without a row get one, with initial values if `start`."""
        first = len(self)
        self._rows.reserve(first + len(keys))
        if self._seen is not None:
            self._seen.rows.reserve(first + len(keys))
        numbers = self._index.add(keys)
        if start and len(self) > first:
            fresh = self.rows[first : len(self)]
            self.model.init_rows(fresh, self.keys[first:], self.seed)
            self.optimizer.init_state(fresh[:, self.state_col : self.extra_col], fresh[:, : self.width])
        return numbers
