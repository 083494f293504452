"""BoundRows: a row store seen through the dictionary of a model.

A row store numbers its keys by its own dictionary. The model may know other keys (validation data, another
day's training data), so ids and fields are translated on the way; unknown ones become -1 and contribute
nothing, unless `start` is given, but still count in the row's instance normalisation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from .block import Block
from .kernels import rows as rows_kernels
from .kernels import sparse
from .rowstore import RowStore

_ONES = np.empty(0, np.float32)  # what kernels take for "every value is 1"


def positions(keys: np.ndarray, known: np.ndarray) -> np.ndarray:
    """int32[n]: where each of `keys` stands in the sorted array `known`, -1 where it does not."""
    if not len(known):
        return np.full(len(keys), -1, np.int32)
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[at] == keys, at, -1).astype(np.int32)


def translation(own: np.ndarray, known: np.ndarray) -> np.ndarray | None:
    """Map from positions in `own` to positions in `known` (int32, -1: unknown); None when they are equal."""
    if len(own) == len(known) and np.array_equal(own, known):
        return None
    return positions(own, known)


class BoundRows:
    """Rows with the compact ids of a model.

    Args:
        store: the rows.
        keys: uint64[n] sorted keys of the model.
        fields: int32[F] sorted field numbers of the model, or None for models without fields.
        norm: whether instance normalisation is on.
        start: seed of the starting weights that unknown keys count with; None: they count nothing.
    """

    def __init__(
        self,
        store: RowStore,
        keys: np.ndarray,
        fields: np.ndarray | None,
        norm: bool,
        start: int | None = None,
    ):
        self.store, self.norm, self.start = store, norm, start
        self.n_rows = store.n_rows
        self._ids = translation(store.keys, keys)
        self._tells_unseen = start is not None and self._ids is not None and bool((self._ids < 0).any())
        self._fields = None
        if fields is not None and store.fields is not None:
            self._fields = translation(store.fields, fields)
        self._with_fields = fields is not None
        self._whole: Block | None = None

    def block(self, rows: np.ndarray) -> Block:
        """The given rows (int64[m], any order) as a Block of their own."""
        return self._finish(self.store.block(rows, self._with_fields))

    def slice(self, a: int, b: int) -> Block:
        """Rows a to b as a Block."""
        return self._finish(self.store.slice(a, b))

    def window(self, rows: np.ndarray) -> tuple[Block, np.ndarray]:
        """A Block that contains the given rows, and their numbers in it (int64[m])."""
        if self.store.mapped and self._ids is None and self._fields is None:
            if self._whole is None:
                self._whole = self._finish(self.store.slice(0, self.n_rows))
            return self._whole, rows
        return self.block(rows), np.arange(len(rows), dtype=np.int64)

    def _finish(self, block: Block) -> Block:
        if self._ids is not None:
            own, block.ids = block.ids, rows_kernels.translate(block.ids, self._ids)
            if self._tells_unseen:
                block.unseen = self.store.keys[own[block.ids < 0]]
        if not self._with_fields:
            block.fields = None
        elif self._fields is not None and block.fields is not None:
            block.fields = rows_kernels.translate(block.fields, self._fields)
        block.norms = np.empty(block.n_rows, np.float32)
        values = _ONES if block.values is None else block.values
        sparse.row_norms(block.indptr, values, block.norms, self.norm)
        return block


class BoundRoles(Mapping[str, BoundRows]):
    """Rows by role (train, valid, test), bound when they are first asked for: not every rank asks.

    Args:
        stores: role -> rows; keys, fields, norm, start: as for BoundRows.
    """

    def __init__(
        self,
        stores: Mapping[str, RowStore],
        keys: np.ndarray,
        fields: np.ndarray | None,
        norm: bool,
        start: int | None = None,
    ):
        self._stores, self._how = stores, (keys, fields, norm, start)
        self._bound: dict[str, BoundRows] = {}

    def __getitem__(self, role: str) -> BoundRows:
        if role not in self._bound:
            self._bound[role] = BoundRows(self._stores[role], *self._how)
        return self._bound[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stores)

    def __len__(self) -> int:
        return len(self._stores)
