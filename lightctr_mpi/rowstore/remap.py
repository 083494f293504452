"""Rows straight from a reader, in the numbers of a model: for prediction, where no row store is made."""

from __future__ import annotations

import dataclasses

import numpy as np

from ..block import Block
from ..kernels.table import Dictionary


class Remap:
    """Translates a reader's Blocks into the compact ids of a model.

    Unknown ids and fields become -1. They stay in the Block, since a row's norm counts the values of all its
    features, seen or not.

    Args:
        keys: uint64[n], sorted keys of the model.
        fields: int32[f], sorted field numbers of the model; None for a model without fields.

    Attributes (sums over the Blocks so far):
        rows: rows.
        features: entries with an unknown id.
        unseen_fields: entries with an unknown field.
        rows_affected: rows that have one or the other.
    """

    def __init__(self, keys: np.ndarray, fields: np.ndarray | None):
        self._keys = Dictionary(keys)
        self._fields = None if fields is None else Dictionary(fields.astype(np.uint64))
        self.rows = self.features = self.unseen_fields = self.rows_affected = 0

    def __call__(self, block: Block) -> Block:
        """The Block with ids int32[nnz] and fields int32[nnz]; fields None where model or Block have none."""
        ids, fields = self._keys.find(block.ids), None
        unseen = ids < 0
        self.features += int(unseen.sum())
        if self._fields is not None and block.fields is not None:
            fields = self._fields.find(block.fields.astype(np.uint64))
            self.unseen_fields += int((fields < 0).sum())
            unseen |= fields < 0
        self.rows += block.n_rows
        rows = np.searchsorted(block.indptr, np.flatnonzero(unseen), "right")
        self.rows_affected += len(np.unique(rows))
        return dataclasses.replace(block, ids=ids, fields=fields)
