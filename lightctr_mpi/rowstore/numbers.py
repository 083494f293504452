"""The numbers that one rank gives to keys while it reads."""

from __future__ import annotations

import numpy as np

from ..kernels.direct import SMALL, highest, mark, mark_fields, mark_small
from ..kernels.jit import own
from ..kernels.table import Dictionary


class Numbers:
    """Keys (uint64) and their numbers (int32): a key below SMALL is its own number, others follow by arrival."""

    def __init__(self) -> None:
        self._seen = np.zeros(256, np.uint8)
        self._large = Dictionary()

    def add(self, keys: np.ndarray) -> np.ndarray:
        """Numbers int32[m] of `keys` uint64[m]; unknown ones are entered.

        Raises OverflowError: more than 2^30 distinct keys from SMALL on.
        """
        keys = own(keys, np.uint64)
        numbers = np.empty(len(keys), np.int32)
        top = int(highest(keys))
        self._make_room(top)
        if top < SMALL:
            mark(keys, self._seen, numbers)
            return numbers
        large, places = np.empty(len(keys), np.uint64), np.empty(len(keys), np.int64)
        n = mark_small(keys, self._seen, numbers, large, places)
        numbers[places[:n]] = self._large.add(large[:n]) + np.int32(SMALL)
        return numbers

    def add_fields(self, fields: np.ndarray) -> np.ndarray:
        """`add` for keys that are int32[m], from 0 on; gives the array itself where all are small."""
        top = int(fields.max(initial=0))
        if top >= SMALL:
            return self.add(fields.astype(np.uint64))
        self._make_room(top)
        mark_fields(own(fields, np.int32), self._seen)
        return fields

    def sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """The keys so far, uint64[n] ascending, and their numbers, int32[n]."""
        small = np.flatnonzero(self._seen)
        by_key = np.argsort(self._large.keys)
        keys = np.concatenate((small.astype(np.uint64), self._large.keys[by_key]))
        return keys, np.concatenate((small, by_key + SMALL)).astype(np.int32)

    def clear(self) -> None:
        """Forget all keys and free their memory."""
        self._seen = np.zeros(256, np.uint8)
        self._large.clear()

    def _make_room(self, top: int) -> None:
        """Lengthen the notes so that they reach a key, or all small ones."""
        length = len(self._seen)
        while length <= min(top, SMALL - 1):
            length *= 2
        if length > len(self._seen):
            seen = np.zeros(length, np.uint8)
            seen[: len(self._seen)] = self._seen
            self._seen = seen
