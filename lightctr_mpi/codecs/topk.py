"""The largest rows of a gradient.

Aji and Heafield (2017), "Sparse communication for distributed gradient descent", send the largest values of a
gradient and keep the rest for later; here whole rows are chosen, as a key travels with all its values.
"""

from __future__ import annotations

import numpy as np

from ..kernels.jit import own
from ..kernels.packing import row_squares


def top_rows(rows: np.ndarray, k: int) -> np.ndarray:
    """int32[<= k], ascending: positions of the k rows of largest Euclidean norm.

    Of equal norms the lower position wins. Rows with a NaN or an infinity count as largest, so that they are
    not held back. Rows full of zeros say nothing and are never taken, also when fewer than k others are left.

    Args:
        rows: float32[n, width].
        k: from n on all rows but zeros, none from 0 down.
    """
    if k <= 0 or not rows.size:
        return np.empty(0, np.int32)
    sizes = np.empty(len(rows), np.float64)
    row_squares(own(rows, np.float32), sizes)
    if k < len(rows):
        limit = np.partition(sizes, len(rows) - k)[len(rows) - k]
        picked = sizes > limit
        equal = np.flatnonzero(sizes == limit)
        picked[equal[: k - np.count_nonzero(picked)]] = True
        picked &= sizes > 0
    else:
        picked = sizes > 0
    return np.flatnonzero(picked).astype(np.int32)
