"""Data from a planted model (`planted.py`), with the best possible logloss and AUC on it.

The same options give the same bytes, a larger file begins with the smaller one, and the test file follows the
same law with other rows.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from . import planted
from .errors import UserError, refuse_special
from .kernels.format import format_one_hot
from .planted import TEST, TRAIN, Law, PlantedModel

FIRST_KEY = 1  # the libsvm format counts from 1
BLOCK_ROWS = 16384
_BINS = 1 << 20
_SPAN = 20.0  # logits beyond are counted at the end


@dataclass
class Truth:
    """Sums over written rows from which the metrics of the true probabilities follow, in bounded memory."""

    rows: int = 0
    positives: int = 0
    loss: float = 0.0
    counts: np.ndarray = field(default_factory=lambda: np.zeros((2, _BINS), np.int64))

    def add(self, logits: np.ndarray, labels: np.ndarray) -> None:
        self.rows += len(labels)
        self.positives += int(labels.sum())
        self.loss += float(np.sum(np.logaddexp(0.0, logits) - labels * logits))
        bins = ((logits + _SPAN) * (_BINS / (2 * _SPAN))).astype(np.int64).clip(0, _BINS - 1)
        np.add.at(self.counts, (labels, bins), 1)

    def metrics(self) -> dict[str, Any]:
        """Of the true probabilities against the drawn labels; AUC is None where there is one class only.

        Logits count as tied for the AUC when they are closer than 4e-5, which changes it by less than 1e-6.
        """
        share, pairs = self.positives / self.rows, self.positives * (self.rows - self.positives)
        negatives, positives = self.counts
        below = np.cumsum(negatives) - negatives
        wins = float(np.sum(positives * (below + 0.5 * negatives)))
        constant = -sum(p * np.log(p) for p in (share, 1 - share) if p > 0)
        return {
            "rows": self.rows,
            "positive": share,
            "bayes_logloss": self.loss / self.rows,
            "bayes_auc": wins / pairs if pairs else None,
            "constant_logloss": float(constant),
        }


def synth(
    law: Law, rows: int, out: str, *, format: str = "libffm", test_rows: int = 0, test_out: str = ""
) -> dict[str, dict[str, Any]]:
    """Write a training file and, if `test_out` is given, a test file; memory does not grow with the rows.

    Returns:
        path -> metrics of the true probabilities over the rows of that file (see `Truth.metrics`).

    Raises:
        UserError: a file cannot be written.
    """
    model = PlantedModel(law)
    files = [(TRAIN, rows, out)] + ([(TEST, test_rows, test_out)] if test_out else [])
    return {path: _write(model, stream, n, path, format) for stream, n, path in files}


def _write(model: PlantedModel, stream: int, rows: int, path: str, format: str) -> dict[str, Any]:
    refuse_special(path)
    truth, part = Truth(), path + ".part"
    try:
        with open(part, "wb") as file:
            for start in range(0, rows, BLOCK_ROWS):
                keys, logits, labels = model.draw(stream, start, min(BLOCK_ROWS, rows - start))
                file.write(format_one_hot(labels, keys, FIRST_KEY, format == "libffm"))
                truth.add(logits, labels)
        os.replace(part, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return truth.metrics()


# --- command ---


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"synth: {message}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m lightctr_mpi synth", allow_abbrev=False, description=planted.__doc__)
    add = parser.add_argument
    add("--rows", type=int, required=True, help="rows of the training file")
    add("--out", required=True, help="training file")
    add("--test-rows", type=int, default=0, help="rows of the test file (default: a tenth)")
    add("--test-out", default="", help="test file of the same law (default: none)")
    add("--fields", type=int, default=39, help="fields (default: %(default)s)")
    add("--keys", type=int, default=0, help="keys of all fields together (default: 1000 a field)")
    add("--k", type=int, default=Law.k, help="rank of the pairwise part (default: %(default)s)")
    add("--positive", type=float, default=Law.positive, help="share of positive rows (default: %(default)s)")
    add(
        "--linear-std",
        type=float,
        default=Law.linear_std,
        help="linear part of the logit (default: %(default)s)",
    )
    add(
        "--pair-std",
        type=float,
        default=Law.pair_std,
        help="pairwise part of the logit (default: %(default)s)",
    )
    add("--seed", type=int, default=1, help="seed (default: %(default)s)")
    add("--format", choices=("libffm", "libsvm"), default="libffm", help="format (default: %(default)s)")
    return parser


def _check(args: argparse.Namespace) -> None:
    """Raise UserError for the first value out of range."""
    ranges = {
        "rows": (1, 2**40),
        "test_rows": (0, 2**40),
        "fields": (1, 10_000),
        "keys": (2 * args.fields, 2**31 - 2),
        "k": (1, 1024),
        "positive": (0.001, 0.999),
        "linear_std": (0, 10),
        "pair_std": (0, 10),
        "seed": (0, 2**63 - 1),
    }
    for name, (low, high) in ranges.items():
        value = getattr(args, name)
        if not low <= value <= high:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"synth: {flag} = {value}: expected at least {low} and at most {high}")


def add_synth_cli(argv: Sequence[str]) -> int:
    """The command `synth`: write the files, print what is true of them; returns the exit code."""
    args = _parser().parse_args(argv)
    args.keys = args.keys or 1000 * args.fields
    if args.test_out:
        args.test_rows = args.test_rows or max(args.rows // 10, 1)
    _check(args)
    law = Law(args.fields, args.keys, args.seed, args.k, args.positive, args.linear_std, args.pair_std)
    outputs = {"format": args.format, "test_rows": args.test_rows, "test_out": args.test_out}
    for path, truth in synth(law, args.rows, args.out, **outputs).items():
        auc = "undefined (one class)" if truth["bayes_auc"] is None else f"{truth['bayes_auc']:.6f}"
        sys.stdout.write(
            f"{path}: {truth['rows']} rows, {law.fields} fields, {law.keys} keys, "
            f"{100 * truth['positive']:.2f} % positive\n"
            f"  Bayes logloss {truth['bayes_logloss']:.6f}, Bayes AUC {auc}, "
            f"constant logloss {truth['constant_logloss']:.6f}\n"
        )
    return 0
