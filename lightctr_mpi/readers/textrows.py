"""What readers of numbers in text share around their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..kernels.parse import FULL, GROUPS, N_CLOSE, NOT_ONE, SKIPPED


def as_lines(data: bytes) -> np.ndarray:
    """uint8[] view of the data, with a newline at the end, as parse kernels want it."""
    return np.frombuffer(data if data.endswith(b"\n") else data + b"\n", np.uint8)


def run(kernel: Callable[..., int], *arguments: Any) -> tuple[int, np.ndarray, np.ndarray]:
    """Calls kernel(*arguments, close, state), again if `close` was too short.

    Returns (how it ended, state, close: int64[c, 2] numbers for `read_close`), see `kernels/parse.py`.
    """
    length = 64
    while True:
        close = np.empty((length, 2), np.int64)
        state = np.zeros(8, np.int64)
        state[GROUPS] = -1
        code = kernel(*arguments, close, state)
        if code != FULL:
            return code, state, close[: state[N_CLOSE]]
        length = int(state[N_CLOSE])


def kept_values(values: np.ndarray, state: np.ndarray) -> np.ndarray | None:
    """The values, or None if all are 1; what the kernel noted takes in rows that it then left out."""
    if state[NOT_ONE] and state[SKIPPED]:
        return values if (values != 1).any() else None
    return values if state[NOT_ONE] else None


def read_close(data: bytes, close: np.ndarray, labels: np.ndarray, values: np.ndarray, ends: bytes) -> None:
    """Reads the few numbers again, correctly rounded, of which a kernel could not tell the nearest float32.

    Args:
        data: the text.
        close: int64[c, 2], (entry, or -1 - row for a label; position of the number).
        labels, values: written to.
        ends: bytes that may follow a number.
    """
    for target, start in close:
        stop = start
        while stop < len(data) and data[stop] not in ends:
            stop += 1
        number = float(data[start:stop])
        if target < 0:
            labels[-1 - target] = number
        else:
            values[target] = number
