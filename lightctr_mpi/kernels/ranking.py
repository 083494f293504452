"""Area under the ROC curve as a count of pairs (Mann-Whitney): exact, ties count one half.

AUC is the share of pairs of a positive and a negative row in which the positive one has the higher score,
    AUC = (wins + ties / 2) / (positives * negatives),
counted in one pass over sorted scores. With weights every pair counts the product of its two weights.
"""

from __future__ import annotations

import numpy as np

from .jit import jit_exact


@jit_exact
def twice_wins(positive: np.ndarray, negative: np.ndarray) -> int:
    """2 * wins + ties over all pairs, an exact int64 (for up to 4.6e18 pairs).

    Args:
        positive: float32[p], ascending, no NaN.
        negative: float32[n], ascending, no NaN.
    """
    below, upto, total = 0, 0, 0
    for score in positive:
        while below < len(negative) and negative[below] < score:
            below += 1
        upto = max(upto, below)
        while upto < len(negative) and negative[upto] <= score:
            upto += 1
        total += below + upto
    return total


@jit_exact
def weighted_wins(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray, a: int, b: int
) -> tuple[float, float, float]:
    """Weighted wins plus half of the ties of rows [a, b), the weight of positives and that of negatives.

    Args:
        scores: float32[n], ascending within [a, b), no NaN.
        labels: uint8[n], 0 or 1.
        weights: float32[n].
    """
    wins, positives, negatives = 0.0, 0.0, 0.0
    i = a
    while i < b:
        plus, minus = 0.0, 0.0
        score = scores[i]
        while i < b and scores[i] == score:
            if labels[i]:
                plus += weights[i]
            else:
                minus += weights[i]
            i += 1
        wins += plus * (negatives + 0.5 * minus)
        positives += plus
        negatives += minus
    return wins, positives, negatives


@jit_exact
def group_auc(
    groups: np.ndarray, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> tuple[float, float, int]:
    """Sum over groups of weight * AUC, sum of these weights, number of groups that took part.

    A group takes part if it has both classes; its weight is the sum of its rows' weights, so without sample
    weights the quotient of the first two is the impression-weighted AUC of Zhu et al., "Optimized cost per
    click in Taobao display advertising", KDD 2017.

    Args:
        groups: int64[n], ascending.
        scores: float32[n], ascending within a group, no NaN.
        labels: uint8[n], 0 or 1.
        weights: float32[n].
    """
    total, weight, used = 0.0, 0.0, 0
    a = 0
    while a < len(groups):
        b = a + 1
        while b < len(groups) and groups[b] == groups[a]:
            b += 1
        wins, positives, negatives = weighted_wins(scores, labels, weights, a, b)
        if positives > 0.0 and negatives > 0.0:
            own = positives + negatives
            total += own * (wins / (positives * negatives))
            weight += own
            used += 1
        a = b
    return total, weight, used
