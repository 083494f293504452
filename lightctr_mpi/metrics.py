"""Tally: every metric of an evaluation, computed from sums that can be added over batches and ranks.

    logloss = sum w * (softplus(z) - y * z) / sum w         natural logarithm, from the logit z
    rmse = sqrt(sum w * (p - y)^2 / sum w)                  p = sigmoid(z), or z itself under squared loss
    accuracy = share of weight where (z > 0) equals (y > 1/2)
    calibration = mean prediction / mean label
    normalised_entropy = logloss / entropy of the mean label; below 1 is better than knowing only the mean
        (He et al., "Practical lessons from predicting clicks on ads at Facebook", ADKDD 2014)
    auc, gauc: see kernels/ranking.py

A metric that has no value is None with a reason, never 0 or NaN.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .comm import allreduce
from .scores import Scores

SUMS = ("rows", "weight", "loss", "correct", "squares", "prediction", "label", "nonfinite", "unlabelled")
CLASSIFICATION = ("logloss", "accuracy", "normalised_entropy")


class Tally:
    """The metrics of one evaluation; make a new one for the next.

    Args:
        loss: "logistic" (labels 0 to 1, scores are logits) or "squared" (any label, scores are predictions).
        ranked: keep scores for AUC: 5 bytes a row, 4 more with weights, 8 more with groups.
    """

    def __init__(self, loss: str = "logistic", ranked: bool = True):
        if loss not in ("logistic", "squared"):
            raise ValueError(f"unknown loss {loss!r}")
        self.loss = loss
        self.sums = dict.fromkeys(SUMS, 0.0)
        self._scores = Scores() if ranked else None
        self._ranking: tuple[dict[str, Any], dict[str, str]] | None = None

    def add(
        self,
        logit: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray | None = None,
        groups: np.ndarray | None = None,
    ) -> None:
        """Count rows. Arrays may be reused afterwards.

        Rows whose score is not finite, or whose label is missing, are counted apart and left out of the sums.

        Args:
            logit: float32[n] scores of the model.
            labels: float32[n], NaN where missing.
            weights: float32[n], or None when all are 1.
            groups: int64[n], or None.
        """
        if self._ranking is not None:
            raise RuntimeError("this tally has been merged: make a new one")
        finite, labelled = np.isfinite(logit), ~np.isnan(labels)
        self.sums["rows"] += len(logit)
        self.sums["nonfinite"] += np.count_nonzero(~finite)
        self.sums["unlabelled"] += np.count_nonzero(~labelled)
        good = finite & labelled
        if not good.all():
            logit, labels = logit[good], labels[good]
            weights = None if weights is None else weights[good]
            groups = None if groups is None else groups[good]
        z, y = logit.astype(np.float64), labels.astype(np.float64)
        w = np.ones(len(z)) if weights is None else weights.astype(np.float64)
        for name, values in _terms(self.loss, z, y).items():
            self.sums[name] += float(w @ values)
        self.sums["weight"] += float(w.sum())
        if self._scores is not None:
            self._scores.add(logit, labels, weights, groups)

    def merge(self, comm: Any) -> None:
        """Add up over the ranks of a communicator (None: one rank). All ranks must call it, once."""
        if self._ranking is not None:
            raise RuntimeError("this tally has been merged already")
        total = allreduce(comm, np.array([self.sums[name] for name in SUMS]))
        self.sums = dict(zip(SUMS, total.tolist(), strict=True))
        self._ranking = ({}, {}) if self._scores is None else self._scores.result(comm)
        self._scores = None

    def result(self) -> dict[str, Any]:
        """Metric name -> value or None, `rows`, `nonfinite` (rows whose score is not a finite number), and
        `reasons`: metric name -> why it is None. The same on every rank; without `merge`, of this rank only.
        """
        if self._ranking is None:
            self.merge(None)
        assert self._ranking is not None
        values, reasons = _means(self.loss, self.sums)
        values |= self._ranking[0]
        reasons |= self._ranking[1]
        problem = _problem(self.sums)
        if problem:
            reasons = {name: problem for name in values if name != "gauc_groups"}
            values |= dict.fromkeys(reasons)
        counts = {"rows": int(self.sums["rows"])}
        return {**counts, **values, "nonfinite": int(self.sums["nonfinite"]), "reasons": reasons}


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z)) in float64 without overflow."""
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, e) / (1.0 + e)


def _terms(loss: str, z: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """What each row adds to the sums, before its weight."""
    if loss == "squared":
        error = z - y
        return {"loss": 0.5 * error * error, "squares": error * error, "prediction": z, "label": y}
    p = sigmoid(z)
    # softplus(z) - y * z, put so that a large z of the right sign gives 0, not a difference of large numbers
    loss_terms = np.where(z >= 0, (1.0 - y) * z, -y * z) + np.log1p(np.exp(-np.abs(z)))
    return {
        "loss": loss_terms,
        "correct": ((z > 0) == (y > 0.5)).astype(np.float64),
        "squares": (p - y) ** 2,
        "prediction": p,
        "label": y,
    }


def _problem(sums: dict[str, float]) -> str:
    """Why there can be no metric at all."""
    if not sums["rows"]:
        return "no rows"
    if sums["nonfinite"]:
        return f"{int(sums['nonfinite'])} scores are not finite"
    if sums["unlabelled"]:
        return f"{int(sums['unlabelled'])} rows have no label"
    if not sums["weight"] > 0:
        return "all weights are zero"
    return ""


def _means(loss: str, sums: dict[str, float]) -> tuple[dict[str, Any], dict[str, str]]:
    """The metrics that are quotients of sums."""
    weight = sums["weight"] or 1.0
    values: dict[str, Any] = dict.fromkeys(CLASSIFICATION)
    reasons: dict[str, str] = {}
    values["rmse"] = math.sqrt(sums["squares"] / weight)
    values["mean_prediction"] = sums["prediction"] / weight
    values["mean_label"] = label = sums["label"] / weight
    values["calibration"] = sums["prediction"] / sums["label"] if sums["label"] > 0 else None
    if values["calibration"] is None:
        reasons["calibration"] = "the mean label is not positive"
    if loss == "squared":
        return values, reasons | dict.fromkeys(CLASSIFICATION, "squared loss")
    values["logloss"] = sums["loss"] / weight
    values["accuracy"] = sums["correct"] / weight
    if 0.0 < label < 1.0:
        entropy = -(label * math.log(label) + (1.0 - label) * math.log1p(-label))
        values["normalised_entropy"] = values["logloss"] / entropy
    else:
        reasons["normalised_entropy"] = "one class"
    return values, reasons
