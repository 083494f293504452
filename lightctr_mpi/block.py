"""Block: rows of sparse data in compressed sparse row (CSR) form, the unit every layer hands to the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class Block:
    """A batch of n rows with nnz stored values.

    Attributes:
        indptr: int64[n + 1]; row i owns the entries indptr[i] to indptr[i + 1].
        ids: uint64[nnz] keys as they stand in the file, or int32[nnz] compact ids (-1: unseen).
        fields: int32[nnz], or None where the format has no fields; compact fields use -1 for unseen.
        values: float32[nnz], or None when every value is 1.
        labels: float32[n]; NaN throughout when the input had no labels.
        weights: float32[n] sample weights, or None when all are 1.
        groups: int64[n] group (query, session) numbers, or None.
        norms: float32[n] factor on the values of a row (instance normalisation), or None until computed.
        skipped: malformed rows that were dropped on request.
        has_labels: False when the input had no labels.
        unseen: uint64[m] keys of the entries with id -1, in their order, or None where they count nothing.
    """

    indptr: np.ndarray
    ids: np.ndarray
    fields: np.ndarray | None
    values: np.ndarray | None
    labels: np.ndarray
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None
    norms: np.ndarray | None = None
    skipped: int = 0
    has_labels: bool = True
    unseen: np.ndarray | None = None

    @property
    def n_rows(self) -> int:
        return len(self.indptr) - 1

    @property
    def nnz(self) -> int:
        return len(self.ids)

    def part(self, a: int, b: int) -> Block:
        """Rows a to b, as views, without `unseen` and `skipped`."""
        first, end = int(self.indptr[a]), int(self.indptr[b])

        def cut(array: np.ndarray | None, start: int, stop: int) -> np.ndarray | None:
            return None if array is None else array[start:stop]

        return Block(
            self.indptr[a : b + 1] - first,
            self.ids[first:end],
            cut(self.fields, first, end),
            cut(self.values, first, end),
            self.labels[a:b],
            cut(self.weights, a, b),
            cut(self.groups, a, b),
            cut(self.norms, a, b),
            has_labels=self.has_labels,
        )
