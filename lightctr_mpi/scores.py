"""Scores that are kept for the ranking metrics, which are no sums: AUC and group AUC over all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from .comm import allgather_sizes, allreduce, bcast_object, gather_each, rank_of
from .kernels import ranking

NO_GROUP = -1


class Scores:
    """Scores, labels, weights and groups of the rows that this rank has seen.

    Labels other than 0 and 1 have no ranking metrics: once one comes along, nothing is kept any more.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]] = []
        self.graded = self.weighted = self.grouped = False

    def add(
        self, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, groups: np.ndarray | None
    ) -> None:
        """Keep copies of float32[n] scores without NaN, labels, weights and int64[n] groups."""
        if not len(scores):
            return
        self.weighted |= weights is not None
        self.grouped |= groups is not None
        if self.graded:
            return
        if np.any((labels != 0) & (labels != 1)):
            self.graded, self._parts = True, []
            return
        self._parts.append(
            (
                np.array(scores, np.float32),
                np.asarray(labels, np.uint8),
                None if weights is None else np.array(weights, np.float32),
                None if groups is None else np.array(groups, np.int64),
            )
        )

    def result(self, comm: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """Metrics and reasons of undefined ones, the same on every rank. All ranks must call it.

        Rows travel to the first rank (5 to 17 bytes each), are put into one order there and counted once, so
        the result is the same number however the rows were spread.
        """
        flags = [self.graded, self.weighted, self.grouped]
        graded, weighted, grouped = allreduce(comm, np.array(flags, np.uint8), np.maximum).astype(bool)
        if graded:
            names = ["auc", "gauc"] if grouped else ["auc"]
            return dict.fromkeys(names), dict.fromkeys(names, "labels other than 0 and 1")
        scores = _gather(comm, self._column(0, np.float32, 0))
        labels = _gather(comm, self._column(1, np.uint8, 0))
        weights = _gather(comm, self._column(2, np.float32, 1)) if weighted else None
        groups = _gather(comm, self._column(3, np.int64, NO_GROUP)) if grouped else None
        found = None
        if rank_of(comm) == 0:
            values, reasons = _auc(scores, labels, weights)
            if groups is not None:
                _add_group_auc(values, reasons, scores, labels, weights, groups)
            found = values, reasons
        return bcast_object(comm, found)

    def _column(self, i: int, dtype: Any, missing: float) -> np.ndarray:
        """One column of all parts; parts that lack it are filled."""
        parts = [np.full(len(p[0]), missing, dtype) if p[i] is None else p[i] for p in self._parts]
        return np.concatenate([np.zeros(0, dtype), *parts])  # type: ignore[list-item]


def _gather(comm: Any, own: np.ndarray) -> np.ndarray:
    """The ranks' arrays one behind the other on the first rank (beside it one rank's array at a time)."""
    sizes = allgather_sizes(comm, len(own))
    total = np.empty(int(sizes.sum()) if rank_of(comm) == 0 else 0, own.dtype)
    at = 0
    for part in gather_each(comm, own):
        total[at : at + len(part)] = part
        at += len(part)
    return total


def _auc(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None
) -> tuple[dict[str, Any], dict[str, str]]:
    if weights is None:
        positive, negative = np.sort(scores[labels == 1]), np.sort(scores[labels == 0])
        pairs = len(positive) * len(negative)
        if pairs:
            return {"auc": int(ranking.twice_wins(positive, negative)) / (2 * pairs)}, {}
    else:
        order = np.lexsort((weights, labels, scores))
        wins, plus, minus = ranking.weighted_wins(scores[order], labels[order], weights[order], 0, len(order))
        if plus > 0 and minus > 0:
            return {"auc": wins / (plus * minus)}, {}
    return {"auc": None}, {"auc": "one class"}


def _add_group_auc(
    values: dict[str, Any],
    reasons: dict[str, str],
    scores: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    groups: np.ndarray,
) -> None:
    if weights is None:
        weights = np.ones(len(scores), np.float32)
    # Equal rows aside, this order is unique: the sums do not depend on the order of arrival.
    order = np.lexsort((weights, labels, scores, groups))
    total, weight, used = ranking.group_auc(groups[order], scores[order], labels[order], weights[order])
    values["gauc"] = total / weight if used else None
    values["gauc_groups"] = used
    if not used:
        reasons["gauc"] = "no group has both classes"
