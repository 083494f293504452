"""The law of synthetic data: a planted model whose true probabilities are known.

Each row has one key in each field. The numbers of keys of the fields are even on a logarithmic scale; in a
field, keys follow Zipf's law. The logit is a linear part plus the pairwise part of a factorization machine of
rank k, each brought to a chosen standard deviation, plus an intercept that gives the chosen share of positive
labels. A label is 1 with the resulting probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .kernels.draw import build_alias, draw_rows, fill_weights

ZIPF = 1.1  # exponent of the popularity of keys
PILOT_ROWS = 65536
_WEIGHTS, TRAIN, TEST, _PILOT = range(4)  # streams of random numbers


@dataclass(frozen=True)
class Law:
    """What determines the data, apart from the number of rows.

    Attributes:
        fields: fields of a row.
        keys: keys of all fields together, at least 2 a field.
        seed: of everything random.
        k: rank of the pairwise part.
        positive: share of positive labels.
        linear_std, pair_std: standard deviations of the two parts of the logit.
    """

    fields: int
    keys: int
    seed: int
    k: int = 4
    positive: float = 0.25
    linear_std: float = 1.0
    pair_std: float = 0.8


class PlantedModel:
    """The model behind the data; `draw` gives rows of it, of the stream TRAIN or TEST."""

    def __init__(self, law: Law):
        self.law = law
        self._seed = np.uint64(law.seed)
        counts = cardinalities(law.fields, law.keys)
        self._offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._keep, self._other = np.empty(law.keys, np.uint64), np.empty(law.keys, np.int32)
        for first, count in zip(self._offsets, counts, strict=False):
            shares = 1.0 / np.arange(1, count + 1) ** ZIPF
            shares *= count / shares.sum()
            part = slice(first, first + count)
            build_alias(shares, self._keep[part], self._other[part], np.empty(count, np.int64))
        self._weights = np.empty((law.keys, 1 + law.k))
        fill_weights(self._seed, _WEIGHTS, self._weights)
        self._mean, self._scale, self._intercept = np.zeros(2), np.ones(2), 0.0
        self._calibrate()

    def draw(self, stream: int, start: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows start to start + n: (keys int32[n, fields], logits float64[n], labels uint8[n])."""
        keys, parts, uniform = self._draw(stream, start, n)
        logits = self._logits(parts)
        return keys, logits, (uniform < _sigmoid(logits)).astype(np.uint8)

    def _draw(self, stream: int, start: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        keys, parts = np.empty((n, self.law.fields), np.int32), np.empty((n, 2))
        uniform, sums = np.empty(n), np.empty((2, self.law.k))
        table = (self._offsets, self._keep, self._other, self._weights)
        draw_rows(self._seed, stream, start, *table, sums, keys, parts, uniform)
        return keys, parts, uniform

    def _logits(self, parts: np.ndarray) -> np.ndarray:
        linear, pairs = ((parts - self._mean) * self._scale).T
        return linear + pairs + self._intercept

    def _calibrate(self) -> None:
        """Set scale and intercept by rows that appear in no file."""
        _, parts, _ = self._draw(_PILOT, 0, PILOT_ROWS)
        self._mean, spread = parts.mean(axis=0), parts.std(axis=0)
        self._scale = np.array([self.law.linear_std, self.law.pair_std]) / np.where(spread > 0, spread, 1.0)
        logits = self._logits(parts)
        low, high = -60.0, 60.0
        for _ in range(60):
            middle = (low + high) / 2
            if _sigmoid(logits + middle).mean() < self.law.positive:
                low = middle
            else:
                high = middle
        self._intercept = (low + high) / 2


def cardinalities(fields: int, keys: int) -> np.ndarray:
    """int64[fields], ascending, even on a logarithmic scale, of the sum `keys`; the smallest is 4 at most."""
    least = min(4, keys // fields)
    low, high = 1.0, float(keys)
    for _ in range(100):
        ratio = (low + high) / 2
        with np.errstate(over="ignore"):
            total = np.sum(least * ratio ** np.arange(fields))
        low, high = (ratio, high) if total < keys else (low, ratio)
    counts = np.floor(least * low ** np.arange(fields) + 1e-9).astype(np.int64)
    counts[-1] += keys - counts.sum()
    return counts


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-logits))
