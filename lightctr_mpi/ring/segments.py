"""How an array is cut into one segment per rank, and the work arrays of the ring."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

SMALL_BYTES = 1 << 14  # below this the steps of a ring cost more than sending everything to everyone at once


def segments(n: int, size: int, unit: int = 1) -> np.ndarray:
    """Even cut of n elements, in whole units, over `size` ranks.

    Args:
        n: number of elements, a multiple of `unit`.
        unit: elements that stay together (the width of a parameter row).

    Returns:
        int64[size + 1]; rank r has the elements [result[r], result[r + 1]). Some may be empty.
    """
    if n % unit:
        raise ValueError(f"{n} elements are no multiple of {unit}")
    share, rest = divmod(n // unit, size)
    ranks = np.arange(size + 1, dtype=np.int64)
    return (ranks * share + np.minimum(ranks, rest)) * unit


def check_segments(segs: np.ndarray, n: int, size: int) -> None:
    """Raise ValueError unless `segs` cuts n elements for `size` ranks."""
    if len(segs) != size + 1 or segs[0] != 0 or segs[-1] != n or np.any(np.diff(segs) < 0):
        raise ValueError(f"segments {segs} do not cut {n} elements for {size} ranks")


class Scratch:
    """Work arrays by name, allocated once and grown as needed.

    An array that `array` has returned is valid until the next call with the same name.
    """

    def __init__(self) -> None:
        self._room: dict[str, np.ndarray] = {}

    def array(self, name: str, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
        """Uninitialised C-contiguous array of the given shape and dtype."""
        shape = (shape,) if isinstance(shape, int) else tuple(map(int, shape))
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        room = self._room.get(name)
        if room is None or len(room) < nbytes:
            room = self._room[name] = np.empty(nbytes + nbytes // 4, np.uint8)
        return room[:nbytes].view(dtype).reshape(shape)

    def full(self, name: str, n: int, dtype: Any, value: Any) -> np.ndarray:
        """1-D array full of `value`, filled only when allocated: whoever writes to it must restore it."""
        room = self._room.get(name)
        if room is None or len(room) < n * np.dtype(dtype).itemsize:
            room = self._room[name] = np.full(n, value, dtype).view(np.uint8)
        return room.view(dtype)[:n]
