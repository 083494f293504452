"""How well trainers predict after so many epochs: test logloss and AUC, by this program's own metric.

A peer is trained anew for each number of epochs and its own program predicts the test rows, since what it
prints while it trains lacks the AUC. Nothing here is timed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from lightctr_mpi.metrics import Tally

Score = tuple[float, float]  # logloss, AUC
LEAST = 1e-7  # a probability that is printed as 0 is not taken for certainty, nor one that is printed as 1


def labels_of(test: Path) -> np.ndarray:
    """float32[n] of libffm or libsvm text: 1 for clicks, else 0."""
    with open(test) as rows:
        return np.array([float(row.split(maxsplit=1)[0]) > 0 for row in rows], np.float32)


def score(labels: np.ndarray, probabilities: np.ndarray) -> Score:
    p = np.clip(probabilities.astype(np.float64), LEAST, 1 - LEAST)
    tally = Tally("logistic")
    tally.add(np.log(p / (1 - p)).astype(np.float32), labels)
    result = tally.result()
    return result["logloss"], result["auc"]


def of_predictions(
    train: Callable[[int], None], predictions: Path, test: Path, epochs: Sequence[int]
) -> list[Score]:
    """train: trains for so many epochs and leaves `predictions`, a probability a line, of the test rows."""
    labels, scores = labels_of(test), []
    for number in epochs:
        predictions.unlink(missing_ok=True)
        train(number)
        scores.append(score(labels, np.loadtxt(predictions)))
    return scores


def of_metrics(metrics: Path, epochs: Sequence[int]) -> list[Score]:
    """Of this program's metrics.jsonl, whose validation rows were the test rows."""
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [(records[number - 1]["valid_logloss"], records[number - 1]["valid_auc"]) for number in epochs]


def head(epochs: Sequence[int]) -> str:
    numbers = " ".join(map(str, epochs))
    return f"{f'logloss {numbers}':<{7 * len(epochs) + 4}}{f'AUC {numbers}'}"


def line(scores: Sequence[Score]) -> str:
    """Columns under `head`."""
    return "    ".join(
        " ".join(f"{pair[i]:.4f}" for pair in scores) + " " * (i == 0) for i in (0, 1)
    ).rstrip()
