"""Losses and their slopes with respect to the logit, finite for every finite logit.

logistic: softplus(z) - y z, the negative log-likelihood of a label y in [0, 1] in nats; slope sigmoid(z) - y.
squared: (z - y)^2 / 2; slope z - y.
Arithmetic is float64 whatever the type of the arrays: single rows are cheap and sums are long. (In Numba,
float()
of a float32 is a float32: np.float64 it has to be.)
"""

from __future__ import annotations

import math

import numpy as np

from .jit import jit_exact

LOGISTIC, SQUARED = 0, 1
CODES = {"logistic": LOGISTIC, "squared": SQUARED}


@jit_exact
def point_loss(code, logit, label):
    """float64 loss of one row."""
    z, y = np.float64(logit), np.float64(label)
    if code == SQUARED:
        return 0.5 * (z - y) * (z - y)
    return max(z, 0.0) + math.log1p(math.exp(-abs(z))) - y * z


@jit_exact
def point_slope(code, logit, label):
    """float64 derivative of `point_loss` with respect to the logit."""
    z, y = np.float64(logit), np.float64(label)
    if code == SQUARED:
        return z - y
    return 1.0 / (1.0 + math.exp(-z)) - y


@jit_exact
def point_both(code, logit, label):
    """`point_loss` and `point_slope` with one exponential for both."""
    z, y = np.float64(logit), np.float64(label)
    if code == SQUARED:
        return 0.5 * (z - y) * (z - y), z - y
    t = math.exp(-abs(z))
    return max(z, 0.0) + math.log1p(t) - y * z, (1.0 if z >= 0 else t) / (1.0 + t) - y


@jit_exact
def add_loss(code, logit, labels, weights, i, sums):
    """Add row i to sums float64[3] (weighted loss, weight, weighted slope); returns that slope, float32.

    labels: float32[n]; weights: float32[n], or empty for ones.
    """
    weight = np.float64(weights[i]) if weights.size > 0 else 1.0
    slope = np.float32(weight * point_slope(code, logit, labels[i]))
    sums[0] += weight * point_loss(code, logit, labels[i])
    sums[1] += weight
    sums[2] += slope
    return slope


@jit_exact
def slopes(code, logit, labels, weights, out):
    """out[i] = weight of row i times the slope of its loss.

    logit, labels, out: float32[n]; weights: float32[n], or empty for ones.
    """
    for i in range(len(logit)):
        slope = point_slope(code, logit[i], labels[i])
        if weights.size > 0:
            slope *= weights[i]
        out[i] = slope


@jit_exact
def losses(code, logit, labels, out):
    """out[i] = loss of row i. logit, labels: float32[n]; out: float64[n]."""
    for i in range(len(logit)):
        out[i] = point_loss(code, logit[i], labels[i])


@jit_exact
def add_losses(code, logit, labels, weights, sums):
    """sums[0] += weighted loss of the rows, sums[1] += their weight.

    logit, labels: float32[n]; weights: float32[n], or empty for ones; sums: float64[2].
    """
    loss, total = 0.0, 0.0
    for i in range(len(logit)):
        weight = np.float64(weights[i]) if weights.size > 0 else 1.0
        loss += weight * point_loss(code, logit[i], labels[i])
        total += weight
    sums[0] += loss
    sums[1] += total


@jit_exact
def predictions(code, logit, out):
    """out[i] = probability of a click (logistic) or the logit itself (squared). float32[n] each."""
    for i in range(len(logit)):
        z = np.float64(logit[i])
        out[i] = np.float32(1.0 / (1.0 + math.exp(-z))) if code == LOGISTIC else logit[i]


_ONES = np.empty(0, np.float32)


def evaluate(
    name: str, logit: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, dlogit: np.ndarray
) -> tuple[float, float]:
    """Weighted loss sum and weight sum of a batch; fills dlogit with weight times slope.

    Args:
        name: logistic or squared.
        logit, labels, dlogit: float32[n]; weights: float32[n] or None for ones.
    """
    sums, weight = np.zeros(2, np.float64), _ONES if weights is None else weights
    slopes(CODES[name], logit, labels, weight, dlogit)
    add_losses(CODES[name], logit, labels, weight, sums)
    return float(sums[0]), float(sums[1])
