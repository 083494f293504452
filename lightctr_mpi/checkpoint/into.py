"""Read an array of a model into columns of a table, checked, in pieces that stay in the processor's cache."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

import numpy as np

from ..errors import UserError
from .attributes import crc32, crc32_joined
from .read import Checkpoint

PIECE_BYTES = 2 << 20
Map = Callable[[Callable[[tuple[int, int]], int], Iterable[tuple[int, int]]], Iterable[int]]


def read_into(
    source: Checkpoint, name: str, table: np.ndarray, place: np.ndarray | None = None, map_pieces: Map = map
) -> None:
    """Write the rows of an array into rows of `table`.

    Args:
        table: float32[n, c], the columns that the values of a row fill.
        place: int64[n], row of the table of each row of the file; None for the same.
        map_pieces: `map`, or that of threads: it is given a function that may run on several at once.

    Raises UserError when the file is damaged.
    """
    found = source.place(name)
    if place is not None or found is None or not table.size:
        for a, b, values in source.pieces(name):
            table[slice(a, b) if place is None else place[a:b]] = values.reshape(b - a, -1)
        return
    (file, start), (n, columns) = found, table.shape
    step = max(1, PIECE_BYTES // (4 * columns))

    rooms = threading.local()

    def read(piece: tuple[int, int]) -> int:
        a, b = piece
        if not hasattr(rooms, "rows"):
            rooms.rows = np.empty((step, columns), np.float32)
        values = rooms.rows[: b - a]
        view, done = values.reshape(-1).view(np.uint8).data, 0
        while done < values.nbytes:
            got = os.preadv(file, [view[done:]], start + 4 * columns * a + done)
            if not got:
                raise UserError(f"{source.path} is damaged: dataset /{name} ends too early")
            done += got
        table[a:b] = values
        return crc32(values)

    cuts = [(a, min(a + step, n)) for a in range(0, n, step)]
    whole = 0
    try:
        for (a, b), crc in zip(cuts, map_pieces(read, cuts), strict=True):
            whole = crc32_joined(whole, crc, 4 * columns * (b - a))
    except OSError as error:
        raise UserError(f"cannot read model {source.path}: {error.strerror}") from None
    source.compare(name, whole)
