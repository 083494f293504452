"""What to know before trusting a row store: whether its content can be right, whether it fits into memory."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..block import Block
from ..errors import UserError

if TYPE_CHECKING:
    from .read import RowStore

_ROWS = 1 << 16


def check_content(store: RowStore) -> None:
    """Look for row boundaries that go back, ids and fields out of range, numbers that are not finite.

    Kernels trust ids and boundaries, so a file that others made is looked through before it is used.
    Raises UserError at the first find.
    """
    for keys in (store.keys, store.fields):
        if keys is not None and (keys[1:] <= keys[:-1]).any():
            raise UserError(f"{store.path}: a dictionary is not sorted")
    for a in range(0, store.n_rows, _ROWS):
        b = min(a + _ROWS, store.n_rows)
        indptr = store.column("indptr", a, b + 1)
        if (np.diff(indptr) < 0).any() or indptr[0] < 0 or indptr[-1] > store.nnz:
            problem = "row boundaries that go back or out of range"
        else:
            problem = _problem(store.slice(a, b), store.n_keys, store.n_fields)
        if problem:
            raise UserError(f"{store.path}: {problem} in rows {a} to {b}")


def _problem(block: Block, n_keys: int, n_fields: int) -> str:
    """What is wrong with a slice of a store, or nothing."""
    for name, column, size in (("ids", block.ids, n_keys), ("fields", block.fields, n_fields)):
        if column is not None and len(column) and (column.min() < 0 or column.max() >= size):
            return f"{name} out of range"
    if block.values is not None and not np.isfinite(block.values).all():
        return "values that are not finite"
    return "" if not block.has_labels or np.isfinite(block.labels).all() else "labels that are not finite"


def check_labels(store: RowStore, loss: str) -> None:
    """Raises UserError for labels that mean nothing under the logistic loss, which takes 0 to 1."""
    if loss != "logistic" or not store.meta.has_labels:
        return
    for a in range(0, store.n_rows, _ROWS):
        labels = store.column("labels", a, min(a + _ROWS, store.n_rows))
        wrong = np.flatnonzero((labels < 0) | (labels > 1))
        if len(wrong):
            raise UserError(
                f"{store.path}: found label {labels[wrong[0]]:g} in row {a + wrong[0] + 1}, expected 0 to 1 "
                "(--model.loss squared takes any number)"
            )


def memory_limit() -> int:
    """Bytes of memory that this process may use, as far as the machine, its control group and limits say."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limits += [limit for limit in resource.getrlimit(resource.RLIMIT_AS) if limit > 0]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # absent, or "max"
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(limits)
