"""One machine, beside other trainers: python benchmarks/peers.py --train a.ffm --test b.ffm

Runs this program and those of ffm-train (libffm), xlearn_train (xLearn) and libFM that are on PATH in turn
(A B A B ...) on the same rows, with the same numbers of epochs and threads, and prints learning speed (median
over repeats of the median epoch), its ratio to each of the others and peak memory. Then each is judged once,
untimed: logloss and AUC on the test rows after 1, 3 and 5 epochs (benchmarks/judging.py).
`compact` is FFM with row-wise Adagrad and float16 weights; so named is also the column of its ratios.
Without --train it makes rows of 39 fields by `synth`. FFM takes libffm's settings (no bias, no linear part,
uniform start, rate 0.2, lambda 2e-5, starting weights for keys that training lacks); else all have their
defaults, but for k.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import judging
from common import count_rows, execute, no_core_files, without_fields

LIBFFM_SETTINGS = (
    "--model.bias false --model.linear false --model.init uniform --model.share 0 "
    "--model.unseen start --optimizer.lr 0.2 --optimizer.l2 2e-5"
)


@dataclass
class Job:
    """What all contestants are given."""

    model: str
    k: int
    train: Path
    test: Path
    svm: Path  # the training rows without fields
    svm_test: Path
    epochs: int
    threads: int
    rows: int
    folder: Path
    ours: str


@dataclass
class Result:
    """Rows per second of each epoch, peak resident MB."""

    rates: list[float] = field(default_factory=list)
    memory: float = 0.0


def ours(job: Job, more: str = "", valid: str = "") -> Result:
    words = ["train", "--data.train", str(job.train), "--model.name", job.model, "--out", f"{job.folder}/run"]
    words += ["--train.epochs", str(job.epochs), "--train.patience", "0", "--train.threads", str(job.threads)]
    words += [] if job.model == "lr" else ["--model.k", str(job.k)]
    words += [*job.ours.split(), *more.split(), "--checkpoint.every", "0", "--quiet"]
    words += ["--data.valid", valid] if valid else []
    _, memory = execute([sys.executable, "-m", "lightctr_mpi", *words], job.folder)
    records = [json.loads(line) for line in (job.folder / "run/metrics.jsonl").read_text().splitlines()]
    return Result([record["rows_per_second"] for record in records], memory)


def judge_ours(job: Job, epochs: Sequence[int], more: str = "") -> list[judging.Score]:
    ours(replace(job, epochs=max(epochs)), more, str(job.test))
    return judging.of_metrics(job.folder / "run/metrics.jsonl", epochs)


def libffm(job: Job) -> Result:
    command = ["ffm-train", "-k", str(job.k), "-t", str(job.epochs), "-s", str(job.threads)]
    text, memory = execute([*command, str(job.train), "libffm.model"], job.folder)
    lines = re.findall(r"^[ \t]*\d+((?:[ \t]+[\d.]+)+)[ \t]*$", text, re.M)
    # In tenths of a second: the epochs after the first are taken together.
    ends = [float(line.split()[-1]) for line in lines]
    rate = job.rows * (len(ends) - 1) / max(ends[-1] - ends[0], 1e-9) if len(ends) > 1 else job.rows / ends[0]
    return Result([rate], memory)


def judge_libffm(job: Job, epochs: Sequence[int]) -> list[judging.Score]:
    def train(number: int) -> None:
        libffm(replace(job, epochs=number))
        execute(["ffm-predict", str(job.test), "libffm.model", "libffm.out"], job.folder)

    return judging.of_predictions(train, job.folder / "libffm.out", job.test, epochs)


def xlearn(job: Job) -> Result:
    kind = {"lr": "0", "fm": "1", "ffm": "2"}[job.model]
    train = job.train if job.model == "ffm" else job.svm
    command = ["xlearn_train", str(train), "-s", kind, "-e", str(job.epochs), "-k", str(max(job.k, 1))]
    command += ["-nthread", str(job.threads), "--dis-es", "-m", "xlearn.model"]
    text, memory = execute(command, job.folder)
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    if "[ ERROR" in text:  # its exit code is 0
        raise SystemExit(text)
    lines = re.findall(r"^(?:\[ *\d+% *\])?[ \t]*\d+((?:[ \t]+[\d.]+)+)[ \t]*$", text, re.M)
    return Result([job.rows / max(float(line.split()[-1]), 1e-9) for line in lines], memory)


def judge_xlearn(job: Job, epochs: Sequence[int]) -> list[judging.Score]:
    test = job.test if job.model == "ffm" else job.svm_test

    def train(number: int) -> None:
        xlearn(replace(job, epochs=number))
        execute(["xlearn_predict", str(test), "xlearn.model", "--sigmoid", "-o", "xlearn.out"], job.folder)

    return judging.of_predictions(train, job.folder / "xlearn.out", test, epochs)


def libfm(job: Job, *more: str) -> Result:
    # SGD on rows that are not normalised: of 39 values each, it diverges at 0.05.
    command = ["libFM", "-task", "c", "-method", "sgd", "-learn_rate", "0.003", "-init_stdev", "0.1"]
    command += ["-train", str(job.svm), "-test", str(job.svm_test), "-iter", str(job.epochs)]
    command += ["-dim", f"1,1,{job.k}", "-rlog", "libfm.log", *more]
    _, memory = execute(command, job.folder)
    head, *lines = (line.split("\t") for line in (job.folder / "libfm.log").read_text().splitlines())
    at = head.index("time_learn")
    return Result([job.rows / max(float(line[at]), 1e-9) for line in lines], memory)


def judge_libfm(job: Job, epochs: Sequence[int]) -> list[judging.Score]:
    def train(number: int) -> None:
        libfm(replace(job, epochs=number), "-out", "libfm.out")

    return judging.of_predictions(train, job.folder / "libfm.out", job.svm_test, epochs)


Runner = Callable[[Job], Result]
Judge = Callable[[Job, Sequence[int]], list[judging.Score]]
COMPACT = "--optimizer.sums block --model.storage float16"
OURS: dict[str, tuple[Runner, Judge]] = {
    "lightctr_mpi": (ours, judge_ours),
    "compact": (functools.partial(ours, more=COMPACT), functools.partial(judge_ours, more=COMPACT)),
}
PEERS: dict[str, tuple[str, tuple[str, ...], Runner, Judge]] = {  # name -> (program, models, runner, judge)
    "libffm": ("ffm-train", ("ffm",), libffm, judge_libffm),
    "xLearn": ("xlearn_train", ("lr", "fm", "ffm"), xlearn, judge_xlearn),
    "libFM": ("libFM", ("fm",), libfm, judge_libfm),
}


def contestants(job: Job) -> dict[str, tuple[Runner, Judge]]:
    found = {name: both for name, both in OURS.items() if name != "compact" or job.model == "ffm"}
    for name, (program, models, *both) in PEERS.items():
        if job.model in models and shutil.which(program) and not (name == "libFM" and job.threads > 1):
            found[name] = (both[0], both[1])
    return found


def compete(job: Job, repeat: int, judged: Sequence[int]) -> None:
    """Run all in turn, judge each, and print their table."""
    found = contestants(job)
    speeds: dict[str, list[float]] = {name: [] for name in found}
    memory: dict[str, float] = {}
    for _ in range(repeat):
        for name, (runner, _) in found.items():
            result = runner(job)
            speeds[name].append(statistics.median(result.rates[1:] or result.rates))
            memory[name] = result.memory
    about = f"{job.model} k={job.k}" if job.model != "lr" else "lr"
    for name, (_, judge) in found.items():
        speed = statistics.median(speeds[name])
        ratio = statistics.median(speeds["lightctr_mpi"]) / speed
        fast = f"{statistics.median(speeds['compact']) / speed:.2f}" if "compact" in speeds else "-"
        scores = judging.line(judge(job, judged)) if judged else ""
        columns = f"{speed:>11,.0f} {ratio:>7.2f} {fast:>8} {memory[name]:>8,.0f}   {scores}".rstrip()
        print(f"{about:<9} {name:<13} {columns}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, help="libffm text (default: made by synth)")
    parser.add_argument("--test", type=Path, help="libffm text to judge by")
    parser.add_argument("--rows", type=int, default=100_000, help="rows that synth makes")
    parser.add_argument("--keys", type=int, default=600_000, help="keys that synth has")
    parser.add_argument("--models", nargs="+", default=["ffm", "fm", "lr"])
    parser.add_argument("--k", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--judge", type=int, nargs="*", default=[1, 3, 5], help="epochs; none: not judged")
    parser.add_argument("--ours", default="", help="more options of this program")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.train is None:
            args.train, args.test = folder / "train.ffm", folder / "test.ffm"
            words = f"synth --rows {args.rows} --keys {args.keys} --out {args.train} --test-out {args.test}"
            execute([sys.executable, "-m", "lightctr_mpi", *words.split()], folder)
        train, test = folder / "rows.ffm", folder / "judge.ffm"  # xLearn leaves files beside its data
        os.symlink(args.train.absolute(), train)
        os.symlink(args.test.absolute(), test)
        svm, svm_test = without_fields(train, folder / "train.svm"), without_fields(test, folder / "test.svm")
        rows = count_rows(train)
        print(f"{rows:,} rows, {args.epochs} epochs, {args.threads} threads, median of {args.repeat}")
        judged = judging.head(args.judge) if args.judge else ""
        print(f"model     program           rows/s   ratio  compact       MB   {judged}".rstrip())
        for model in args.models:
            settings = LIBFFM_SETTINGS if model == "ffm" and not args.ours else args.ours
            for k in args.k if model != "lr" else [0]:
                common = (train, test, svm, svm_test, args.epochs, args.threads, rows, folder, settings)
                compete(Job(model, k, *common), args.repeat, args.judge)


if __name__ == "__main__":
    no_core_files()
    main()
