"""Keys that the training rows lack, where they count with their starting weights (model.unseen = start).

libffm and xLearn keep a row for every number up to the largest, so that a key which only validation or test
rows have adds what its row was filled with. Starting weights are a function of seed and key here
(kernels/init.py): no table keeps such rows, they are made again for each piece of rows that is scored.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .block import Block
from .kernels.memory import alloc_rows, row_stride
from .models.base import Model

PIECE_ROWS = 2048  # scored with a table of their own: in memory, their keys times a row


Start = Callable[[np.ndarray], np.ndarray]  # keys uint64[m] -> their starting weights, float32[m, ...]


def forward(
    model: Model,
    block: Block,
    rows: np.ndarray,
    ids: np.ndarray,
    bias: np.ndarray,
    logit: np.ndarray,
    start: Start,
) -> None:
    """`Model.forward`, in which the entries that `block.unseen` names count with their starting weights.

    start: makes them, laid out as `rows`.
    """
    if block.unseen is None:
        model.forward(block, rows, ids, bias, logit)
        return
    before = 0
    for a in range(0, block.n_rows, PIECE_ROWS):
        b = min(a + PIECE_ROWS, block.n_rows)
        piece, own_ids = block.part(a, b), ids[block.indptr[a] : block.indptr[b]]
        count = int((own_ids < 0).sum())
        keys = block.unseen[before : before + count]
        before += count
        columns = model.row_columns(0)  # no optimizer's state
        table, places = (rows, own_ids) if not count else _table(columns, rows, own_ids, keys, start)
        model.forward(piece, table, places, bias, logit[a:b])


def _table(
    columns: int, rows: np.ndarray, ids: np.ndarray, unseen: np.ndarray, start: Start
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the entries' keys, known ones first, and the number of each entry's row (int32[nnz])."""
    known, places = np.unique(ids[ids >= 0], return_inverse=True)
    keys, new_places = np.unique(unseen, return_inverse=True)
    table = alloc_rows(len(known) + len(keys), row_stride(columns))
    table[: len(known), :columns] = rows[known, :columns]
    table[len(known) :, :columns] = start(keys)[:, :columns]
    at = np.empty(len(ids), np.int32)
    at[ids >= 0] = places
    at[ids < 0] = len(known) + new_places
    return table, at
