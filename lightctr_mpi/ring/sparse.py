"""Key and row pairs over ranks: to the owners of the keys, who add them up, and back to everyone."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..comm import allgather_sizes, exchange_into, exchange_offsets, rank_of, size_of
from ..kernels.sparse import localize, scatter_add_rows
from .allgather import all_gather
from .segments import Scratch


def exchange_by_owner(
    comm: Any, keys: np.ndarray, rows: np.ndarray, bounds: np.ndarray, scratch: Scratch | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Send each row to the owner of its key; owners add the rows of equal keys in rank order.

    Args:
        comm: communicator, None for one rank.
        keys: int32[u], ascending and unique on each rank; u may differ and be 0.
        rows: float32[u, D], C-contiguous.
        bounds: int64[size + 1]; rank r owns the keys in [bounds[r], bounds[r + 1]).
        scratch: work arrays to reuse from call to call; the result is then valid until the next call.

    Returns:
        keys int32[m] ascending and unique, all owned by this rank; sums float32[m, D]. On one rank these are
        the arguments themselves.
    """
    size, rank = size_of(comm), rank_of(comm)
    if len(keys) and not bounds[0] <= keys[0] <= keys[-1] < bounds[-1]:
        raise ValueError(f"keys {keys[0]} to {keys[-1]} are outside of {bounds[0]} to {bounds[-1] - 1}")
    if size == 1:
        return keys, rows
    scratch = scratch or Scratch()
    cuts = np.searchsorted(keys, bounds)
    offsets = exchange_offsets(comm, [int(n) for n in np.diff(cuts)])
    parts = [slice(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    all_keys = scratch.array("keys", int(offsets[-1]), keys.dtype)
    all_rows = scratch.array("rows", (int(offsets[-1]), rows.shape[1]), rows.dtype)
    exchange_into(comm, [keys[p] for p in parts], all_keys, offsets)
    exchange_into(comm, [rows[p] for p in parts], all_rows, offsets)
    return add_by_owner(all_keys, all_rows, bounds, rank, scratch)


def add_by_owner(
    keys: np.ndarray, rows: np.ndarray, bounds: np.ndarray, rank: int, scratch: Scratch
) -> tuple[np.ndarray, np.ndarray]:
    """Add the rows of equal keys, all owned by this rank, in the order in which they stand.

    Args:
        keys: int32[n] in [bounds[rank], bounds[rank + 1]), from which bounds[rank] is taken in place.
        rows: float32[n, D]; other arguments as in `exchange_by_owner`.

    Returns:
        keys int32[m] ascending and unique, sums float32[m, D], valid until the next call.
    """
    first = int(bounds[rank])
    keys -= np.int32(first)
    unique, local = localize(keys, scratch.full("places", int(bounds[rank + 1]) - first, np.int32, -1))
    sums = scratch.array("sums", (len(unique), rows.shape[1]), rows.dtype)
    sums.fill(0)
    scatter_add_rows(sums, local, rows)
    unique += np.int32(first)
    return unique, sums


def all_gather_rows(
    comm: Any, keys: np.ndarray, rows: np.ndarray, scratch: Scratch | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """All ranks' keys and rows, joined in rank order, on every rank.

    Args:
        comm: communicator, None for one rank.
        keys: integer[m]; m may differ and be 0.
        rows: [m, D], C-contiguous; D and dtypes are equal on all ranks.
        scratch: work arrays to reuse from call to call; the result is then valid until the next call.

    Returns:
        keys [sum of m] and rows [sum of m, D]. On one rank these are the arguments themselves.
    """
    size, rank = size_of(comm), rank_of(comm)
    if size == 1:
        return keys, rows
    scratch = scratch or Scratch()
    offsets = np.zeros(size + 1, np.int64)
    np.cumsum(allgather_sizes(comm, len(keys)), out=offsets[1:])
    total, width = int(offsets[-1]), rows.shape[1]
    own = slice(offsets[rank], offsets[rank + 1])
    all_keys = scratch.array("all keys", total, keys.dtype)
    all_rows = scratch.array("all rows", (total, width), rows.dtype)
    all_keys[own], all_rows[own] = keys, rows
    all_gather(comm, all_keys, offsets)
    all_gather(comm, all_rows.reshape(-1), offsets * width)
    return all_keys, all_rows
