"""The command line under mpirun: the same model, predictions and errors on any number of ranks."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import launch
import numpy as np
import pytest

from lightctr_mpi import checkpoint

WAIT = 150  # seconds for something to happen on a crowded machine


@functools.cache
def under_mpich() -> bool:
    """Whether mpirun is MPICH's; else it is Open MPI's."""
    command = [launch.MPIRUN, "--version"]
    return "HYDRA" in subprocess.run(command, capture_output=True, text=True, env=launch.environment()).stdout


def rows(n: int, seed: int) -> str:
    """libffm rows of four fields; the key of field 0 tells something about the label."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 25, (n, 4))
    labels = rng.random(n) < np.where(keys[:, 0] < 8, 0.8, 0.2)
    return "".join(
        f"{int(label)} " + " ".join(f"{f}:{100 * f + key}:1" for f, key in enumerate(row)) + "\n"
        for label, row in zip(labels, keys, strict=True)
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "train.ffm").write_text(rows(300, 1))
    (folder / "valid.ffm").write_text(rows(90, 2))
    return folder


def train(out: Path, train_file: object, *more: object, ranks: int = 0, **options):
    flags = ["--data.train", train_file, "--data.format", "libffm", "--model.name", "ffm", "--model.k", 2]
    flags += ["--optimizer.name", "ftrl", "--optimizer.lr", 0.2, "--mode", "ring", "--seed", 7, "--out", out]
    return launch.cli("train", *flags, *more, ranks=ranks, cwd=out.parent, **options)


def done(process) -> None:
    assert process.returncode == 0, process.stdout + process.stderr
    assert "Traceback" not in process.stderr


def arrays(model: Path) -> dict[str, np.ndarray]:
    """All of /features, /parameters and /optimizer."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and name.split("/")[0] in ("features", "parameters", "optimizer"):
            found[name] = item[()]

    with h5py.File(model) as file:
        file.visititems(visit)
    assert len(found) == 1 + 3 * 3  # keys; bias, linear weights and factors, and two slots of state of each
    return found


def same(model: Path, other: Path, exactly: bool = False) -> None:
    found, expected = arrays(model), arrays(other)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        if exactly or name.startswith("features"):
            assert np.array_equal(found[name], array), name
        else:
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


def one_line(process, line_start: str) -> None:
    """The run ended for the user's fault: exit code 2, one line from us, from whichever rank."""
    assert process.returncode == 2, process.stdout + process.stderr
    (line,) = [line for line in process.stderr.splitlines() if "lightctr_mpi" in line]
    assert line.startswith(f"lightctr_mpi: error: {line_start}")
    assert "Traceback" not in process.stderr


@pytest.fixture(scope="module")
def trained(data) -> dict[int, Path]:
    """Run folders of the same training on 1, 2, 3 and 8 ranks."""
    folders = {}
    for ranks in (1, 2, 3, 8):
        folders[ranks] = data / f"on{ranks}"
        more = ("--data.valid", data / "valid.ffm", "--train.epochs", 3, "--train.batch_size", 64)
        process = train(folders[ranks], data / "train.ffm", *more, ranks=ranks)
        done(process)
        assert process.stdout.count("best epoch") == 1
    return folders


def test_the_model_is_the_same_on_any_number_of_ranks(trained):
    def losses(folder):
        return [
            json.loads(line)["valid_logloss"] for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]

    assert len(losses(trained[1])) == 3
    for ranks in (2, 3, 8):
        same(trained[ranks] / "model.h5", trained[1] / "model.h5")
        assert losses(trained[ranks]) == pytest.approx(losses(trained[1]), rel=1e-5)
    assert {"model.h5", "metrics.jsonl", "config.toml"} <= {path.name for path in trained[8].iterdir()}


def test_predictions_are_the_same_on_any_number_of_ranks(data, trained):
    model, valid = trained[8] / "model.h5", data / "valid.ffm"
    done(launch.cli("predict", model, valid, "-o", data / "one.txt"))
    done(launch.cli("predict", model, valid, "-o", data / "three.txt", ranks=3))
    with open(valid) as stream:
        piped = launch.cli("predict", model, "-", ranks=2 if under_mpich() else 0, stdin=stream)
    done(piped)
    assert (data / "three.txt").read_bytes() == (data / "one.txt").read_bytes()
    assert piped.stdout == (data / "one.txt").read_text()
    p = np.loadtxt(data / "one.txt", np.float64)
    y = np.array([int(line[0]) for line in valid.read_text().splitlines()])
    logloss = -np.log(np.where(y, p, 1 - p)).mean()
    best = min(
        json.loads(line)["valid_logloss"] for line in (trained[8] / "metrics.jsonl").read_text().splitlines()
    )
    assert logloss == pytest.approx(best, abs=1e-6)
    told = launch.cli("evaluate", model, valid, "--json", ranks=2)
    done(told)
    assert json.loads(told.stdout)["rows"] == 90
    assert json.loads(told.stdout)["logloss"] == pytest.approx(best, abs=1e-9)


def test_standard_input_is_trained_on_by_all_ranks(data, trained):
    more = ("--train.epochs", 3, "--train.batch_size", 64)
    with open(data / "train.ffm") as stream:
        process = train(data / "piped", "-", *more, ranks=2, stdin=stream)
    if not under_mpich():
        one_line(process, "standard input (-) does not come through the mpirun of Open MPI 5.0.")
        return
    done(process)
    assert len(arrays(data / "piped/model.h5")["features/keys"]) == len(
        arrays(trained[1] / "model.h5")["features/keys"]
    )
    last = data / "on1/checkpoints/epoch-00003-row-000000000000.h5"  # not the best of the validation rows
    same(data / "piped/model.h5", last)


@pytest.mark.parametrize("ranks", [0, 2, 8])
def test_a_bad_row_ends_the_whole_world(tmp_path, ranks):
    """On two ranks it lies in the second unit of the file, which is the last rank's."""
    text = rows(400, 3)
    if ranks == 2:
        text *= (16 << 20) // len(text) + 1
    lines = text.count("\n")
    bad = tmp_path / "bad.ffm"
    bad.write_text(text + "1 0:x:1\n" + rows(3, 4))
    process = train(tmp_path / "run", bad, ranks=ranks, timeout=WAIT)
    one_line(process, f"{bad}:{lines + 1}: found ")
    assert not (tmp_path / "run/model.h5").exists()


def test_nine_rows_on_twelve_ranks(tmp_path):
    (tmp_path / "nine.ffm").write_text(rows(9, 5))
    for ranks in (0, 12):
        done(train(tmp_path / f"on{ranks}", tmp_path / "nine.ffm", "--train.epochs", 3, ranks=ranks))
    same(tmp_path / "on12/model.h5", tmp_path / "on0/model.h5")


def test_mode_single_is_refused_on_two_ranks(tmp_path, data):
    process = train(tmp_path / "run", data / "train.ffm", "--mode", "single", ranks=2)
    one_line(process, "mode single is for one rank, mpirun has started 2")


def test_the_mpirun_of_another_mpi_is_refused(tmp_path, data):
    """Its processes know of each other from the environment only: each one would train a model of its own."""
    variable = "OMPI_COMM_WORLD_SIZE" if under_mpich() else "PMI_SIZE"
    process = train(tmp_path / "run", data / "train.ffm", env={variable: "4"})
    one_line(process, f"{variable} says that 4 processes were started, but not by ")
    assert not (tmp_path / "run").exists()


# --- runs that end before their time ---


def start_long(out: Path, data: Path, ranks: int, batch: int) -> subprocess.Popen:
    """A training that goes on until it is stopped; returns when it has written a checkpoint."""
    command = [
        launch.MPIRUN,
        "-n",
        ranks,
        sys.executable,
        "-m",
        "lightctr_mpi",
        "train",
        *long_flags(out, data, batch),
    ]
    process = launch.start(*command, "--train.epochs", 1_000_000, cwd=out.parent)
    deadline = time.monotonic() + WAIT
    while not any(out.glob("checkpoints/epoch-00002*.h5")):
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(str(launch.finish(process, 5)))
        time.sleep(0.01)
    return process


def long_flags(out: Path, data: Path, batch: int) -> list:
    flags = {"data.train": data / "train.ffm", "data.format": "libffm", "model.name": "ffm", "model.k": 2}
    flags |= {"optimizer.name": "ftrl", "optimizer.lr": 0.2, "mode": "ring", "seed": 7, "out": out}
    flags |= {"train.batch_size": batch, "quiet": "true"}
    return [word for flag, value in flags.items() for word in (f"--{flag}", value)]


def go_on(out: Path, data: Path, ranks: int, batch: int, epochs: int, *more: object) -> Path:
    """Train up to `epochs`; returns the newest checkpoint."""
    words = [*long_flags(out, data, batch), "--train.epochs", epochs, *more]
    done(launch.cli("train", *words, ranks=ranks, cwd=out.parent))
    return newest(out)


def newest(out: Path) -> Path:
    found = checkpoint.newest(out)
    assert found is not None
    return Path(found)


def position(path: Path) -> tuple[int, int]:
    with checkpoint.open(path) as source:
        return source.meta.progress["epoch"], source.meta.progress["rows_done"]


def rank_process(launcher: subprocess.Popen, rank: int) -> int:
    """Process number of a rank that a launcher has started, itself or through its helpers."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2]
                parents[int(entry.name)] = int(after_name.split()[1])
            except OSError:
                continue
    below = {launcher.pid}
    while grown := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= grown
    for pid in below - {launcher.pid}:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if {f"PMI_RANK={rank}".encode(), f"OMPI_COMM_WORLD_RANK={rank}".encode()} & set(environment):
            return pid
    raise AssertionError(f"no process of rank {rank} below {launcher.pid}")


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_ends_the_world_and_the_run_can_go_on(tmp_path, data, victim):
    """Epochs are two steps long, so that rank 0 mostly dies while it writes a checkpoint."""
    out = tmp_path / "run"
    process = start_long(out, data, ranks=3, batch=256)
    os.kill(rank_process(process, victim), signal.SIGKILL)
    assert launch.finish(process, WAIT).returncode != 0
    epoch, rows_done = position(newest(out))
    assert epoch >= 2 and rows_done == 0
    last = go_on(out, data, 3, 256, epoch + 1, "--train.resume", "auto")
    assert position(last) == (epoch + 1, 0)
    records = [json.loads(line)["epoch"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert records == list(range(1, epoch + 2))
    with checkpoint.open(out / "model.h5") as model:
        assert model.meta.progress["epoch"] == epoch + 1


def test_sigusr1_to_mpirun_saves_and_the_rest_is_as_if_nothing_had_happened(tmp_path, data):
    out, batch = tmp_path / "eight", 32
    process = start_long(out, data, ranks=8, batch=batch)
    process.send_signal(signal.SIGUSR1)
    stopped = launch.finish(process, WAIT)
    assert stopped.returncode == 75, stopped.stderr
    assert [line for line in stopped.stderr.splitlines() if "lightctr_mpi" in line] == [
        "lightctr_mpi: stopped: stopped on request; the state is saved"
    ]
    epoch, rows_done = position(newest(out))
    assert epoch >= 2 and rows_done % batch == 0
    shutil.copytree(out, tmp_path / "three")
    resumed = go_on(out, data, 8, batch, epoch + 2, "--train.resume", "auto")
    straight = go_on(tmp_path / "straight", data, 8, batch, epoch + 2)
    on_three = go_on(tmp_path / "three", data, 3, batch, epoch + 2, "--train.resume", "auto")
    assert position(resumed) == position(straight) == position(on_three) == (epoch + 2, 0)
    same(resumed, straight, exactly=True)
    same(on_three, straight)
    predictions = []
    for model in (straight, on_three):
        done(launch.cli("predict", model, data / "valid.ffm", "-o", tmp_path / "p.txt"))
        predictions.append(np.loadtxt(tmp_path / "p.txt"))
    np.testing.assert_allclose(predictions[1], predictions[0], rtol=1e-5, atol=1e-6)
