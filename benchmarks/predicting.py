"""A file of rows to a file of predictions, beside other programs: whole processes, from start to end.

    python benchmarks/predicting.py --train a.ffm --test b.ffm

Trains FM and FFM for one epoch with this program and with those of xlearn_train (xLearn) and ffm-train
(libffm) that are on PATH, then lets their prediction programs read the test rows and write probabilities in
turn (A B A B ...). xLearn keeps a binary copy beside the text: "text" has it deleted before every run, "copy"
finds it. Without --train it makes rows of 39 fields by `synth`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common import Cost, cost_of, count_rows, execute, no_core_files, without_fields

OURS = [sys.executable, "-m", "lightctr_mpi"]


@dataclass
class Job:
    """One model and its data, with fields for FFM and without them for FM."""

    model: str
    k: int
    train: Path
    test: Path
    folder: Path


def remove_copies(job: Job) -> None:
    for path in job.folder.glob("*.bin"):
        path.unlink()


def train_ours(job: Job) -> None:
    words = ["train", "--data.train", str(job.train), "--model.name", job.model, "--model.k", str(job.k)]
    words += ["--train.epochs", "1", "--out", f"run-{job.model}", "--quiet"]
    execute([*OURS, *words], job.folder)


def train_xlearn(job: Job) -> None:
    kind = {"fm": "1", "ffm": "2"}[job.model]
    words = ["xlearn_train", str(job.train), "-s", kind, "-k", str(job.k), "-e", "1", "--dis-es"]
    execute([*words, "-m", f"xlearn-{job.model}"], job.folder)
    remove_copies(job)


def train_libffm(job: Job) -> None:
    execute(["ffm-train", "-k", str(job.k), "-t", "1", str(job.train), "libffm-model"], job.folder)
    remove_copies(job)


def ours(job: Job) -> Cost:
    model = f"run-{job.model}/model.h5"
    return cost_of([*OURS, "predict", model, str(job.test), "-o", "ours.txt"], job.folder)


def xlearn_copy(job: Job) -> Cost:
    words = ["xlearn_predict", str(job.test), f"xlearn-{job.model}", "-o", "xlearn.txt", "--sigmoid"]
    return cost_of(words, job.folder)


def xlearn_text(job: Job) -> Cost:
    remove_copies(job)
    return xlearn_copy(job)


def libffm(job: Job) -> Cost:
    return cost_of(["ffm-predict", str(job.test), "libffm-model", "libffm.txt"], job.folder)


Step = Callable[[Job], None]
Runner = Callable[[Job], Cost]
PEERS: list[tuple[str, tuple[str, ...], tuple[str, ...], Step, Runner]] = [  # name, programs, models, ...
    ("xLearn, text", ("xlearn_train", "xlearn_predict"), ("fm", "ffm"), train_xlearn, xlearn_text),
    ("xLearn, copy", ("xlearn_train", "xlearn_predict"), ("fm", "ffm"), lambda job: None, xlearn_copy),
    ("libffm", ("ffm-train", "ffm-predict"), ("ffm",), train_libffm, libffm),
]


def compete(job: Job, rows: int, repeat: int) -> None:
    """Run all in turn and print their table."""
    runners: dict[str, Runner] = {"lightctr_mpi": ours}
    train_ours(job)
    for name, programs, models, train, runner in PEERS:
        if job.model in models and all(map(shutil.which, programs)):
            train(job)
            runners[name] = runner
    ours(job)  # compiles what is not compiled yet
    costs: dict[str, list[Cost]] = {name: [] for name in runners}
    for _ in range(repeat):
        for name, runner in runners.items():
            costs[name].append(runner(job))
    mine = statistics.median(cost.wall for cost in costs["lightctr_mpi"])
    for name, each in costs.items():
        wall, cpu = (statistics.median(getattr(cost, what) for cost in each) for what in ("wall", "cpu"))
        least = min(cost.wall for cost in each)
        memory = max(cost.memory for cost in each)
        seconds = f"{wall:>8.3f} {least:>8.3f} {cpu:>8.3f} {wall / mine:>7.2f}"
        about = f"{job.model:<4} k={job.k:<3} {name:<13}"
        print(f"{about} {seconds} {rows / wall:>11,.0f} {memory:>7,.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, help="libffm text (default: made by synth)")
    parser.add_argument("--test", type=Path, help="libffm text to predict for")
    parser.add_argument("--rows", type=int, default=100_000, help="rows that synth makes")
    parser.add_argument("--keys", type=int, default=600_000, help="keys that synth has")
    parser.add_argument("--models", nargs="+", default=["fm:8", "ffm:4"], help="name:k")
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    if (args.train is None) != (args.test is None):
        parser.error("--train and --test go together")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.train is None:
            args.train, args.test = folder / "made-train", folder / "made-test"
            words = f"synth --rows {args.rows} --keys {args.keys} --out {args.train} --test-out {args.test}"
            execute([*OURS, *words.split()], folder)
        train, test = folder / "train.ffm", folder / "test.ffm"  # xLearn leaves files beside its data
        os.symlink(args.train.absolute(), train)
        os.symlink(args.test.absolute(), test)
        svm = without_fields(train, folder / "train.svm"), without_fields(test, folder / "test.svm")
        rows = count_rows(test)
        print(f"{rows:,} rows, {args.repeat} runs of each in turn, seconds of whole processes")
        print("model      program         median    least      cpu   ratio      rows/s      MB")
        for model, k in (text.split(":") for text in args.models):
            data = (train, test) if model == "ffm" else svm
            compete(Job(model, int(k), *data, folder), rows, args.repeat)


if __name__ == "__main__":
    no_core_files()
    main()
