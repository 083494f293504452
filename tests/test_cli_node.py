"""ring.replica = node on the command line: what is refused; runs that end early, go on elsewhere, fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import launch
import pytest
from test_cli_ranks import WAIT, done, newest, one_line, position, rank_process, rows

from lightctr_mpi import options
from lightctr_mpi.errors import UserError
from lightctr_mpi.settle import settle

NODE = ("--ring.replica", "node")
SHARED = Path("/dev/shm")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "train.ffm").write_text(rows(3000, 1))
    (folder / "valid.ffm").write_text(rows(900, 2))
    return folder


def words(data: Path, out: Path, epochs: int, *more: object) -> list[object]:
    flags = {"data.train": data / "train.ffm", "data.valid": data / "valid.ffm", "data.format": "libffm"}
    flags |= {"model.name": "fm", "model.k": 2, "seed": 7, "train.patience": 0, "train.epochs": epochs}
    flags |= {"out": out}
    return ["train", *(word for flag, value in flags.items() for word in (f"--{flag}", value)), *more]


def losses(out: Path) -> list[float]:
    return [json.loads(line)["valid_logloss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def segments() -> set[str]:
    """Names of windows in the folder of shared memory. (MPICH's messages leave some when it is killed.)"""
    return {path.name for path in SHARED.iterdir() if path.name.startswith(("mpich_shar", "osc_sm"))}


# --- combinations ---


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--mode ps", "is for mode ring: in mode ps the servers keep the model"),
        ("--train.sync exact", "learns row by row: it cannot be used with train.sync = exact"),
        ("--train.batch_size 64", "learns row by row: it cannot be used with train.batch_size"),
        ("--ring.codec int8", "ring.codec = int8 is about gradients on the wire"),
        ("--ring.top_k 0.5", "ring.top_k = 0.5 is about gradients on the wire"),
        ("--ring.dense_above 0.5", "ring.dense_above = 0.5 is about gradients on the wire"),
    ],
)
def test_what_makes_no_sense_with_it(flags, reason):
    with pytest.raises(UserError, match=reason):
        options.resolve([*NODE, *flags.split()], {})


def run_of(*flags: str):
    return options.resolve(["--data.train", "a", *flags], {}).run


def test_it_is_the_ring_row_by_row():
    for flags in ((), ("--mode", "ring"), ("--train.sync", "none", "--train.batch_size", "64")):
        run = settle(run_of(*NODE, *flags), 4, 4)
        assert (run.mode, run.train.sync) == ("ring", "none")
        assert settle(options.from_toml(options.to_toml(run), "config.toml"), 4, 4) == run
    assert settle(run_of(*NODE), 1, 1).train.sync == "none"
    assert settle(run_of("--mode", "ring"), 4, 2).train.sync == "exact"


def test_ranks_on_several_nodes_are_refused():
    with pytest.raises(UserError, match="is for the ranks of one node, mpirun has started 8 on several"):
        settle(run_of(*NODE), 8, 4)


def test_row_by_row_on_many_ranks_needs_it():
    with pytest.raises(UserError, match="--ring.replica node"):
        settle(run_of("--train.sync", "none", "--mode", "ring"), 4, 4)


# --- runs ---


def test_a_run_goes_on_with_other_ranks_threads_and_modes(tmp_path, data):
    out, before = tmp_path / "run", segments()
    first = launch.cli(*words(data, out, 2, *NODE), ranks=3, cwd=tmp_path)
    done(first)
    assert "fm on 3 ranks, mode ring, row by row on one copy of the model" in first.stdout
    assert "one copy for all ranks" in first.stdout
    more = ("--train.resume", "auto")
    done(launch.cli(*words(data, out, 4, *NODE, *more), ranks=2, cwd=tmp_path))
    done(launch.cli(*words(data, out, 5, *more, "--train.threads", 2), cwd=tmp_path))
    exact = launch.cli(*words(data, out, 6, *more), ranks=2, cwd=tmp_path)
    done(exact)
    assert "train.sync is now exact, it was none" in exact.stdout
    done(launch.cli(*words(data, out, 7, *NODE, *more), ranks=2, cwd=tmp_path))
    alone = tmp_path / "alone"
    done(launch.cli(*words(data, alone, 4), cwd=tmp_path))
    assert len(losses(out)) == 7
    assert losses(out)[:4] == pytest.approx(losses(alone), abs=0.01)
    assert segments() <= before


def start_long(data: Path, out: Path, ranks: int) -> subprocess.Popen:
    """A training that goes on until it is ended; returns when it has written a checkpoint."""
    command = [launch.MPIRUN, "-n", ranks, sys.executable, "-m", "lightctr_mpi"]
    process = launch.start(*command, *words(data, out, 1_000_000, *NODE, "--quiet"), cwd=out.parent)
    deadline = time.monotonic() + WAIT
    while not any(out.glob("checkpoints/epoch-00002*.h5")):
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(str(launch.finish(process, 5)))
        time.sleep(0.01)
    return process


def test_sigusr1_to_mpirun_saves_and_the_run_goes_on(tmp_path, data):
    out, before = tmp_path / "run", segments()
    process = start_long(data, out, 3)
    process.send_signal(signal.SIGUSR1)
    stopped = launch.finish(process, WAIT)
    assert stopped.returncode == 75, stopped.stderr
    assert "lightctr_mpi: stopped: stopped on request; the state is saved" in stopped.stderr
    assert segments() <= before
    epoch, _ = position(newest(out))
    done(launch.cli(*words(data, out, epoch + 1, *NODE, "--train.resume", "auto"), ranks=2, cwd=tmp_path))
    assert position(newest(out)) == (epoch + 1, 0)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_world_and_leaves_no_segment(tmp_path, data, victim):
    out, before = tmp_path / "run", segments()
    process = start_long(data, out, 3)
    os.kill(rank_process(process, victim), signal.SIGKILL)
    assert launch.finish(process, WAIT).returncode != 0
    assert segments() <= before
    assert position(newest(out))[0] >= 2


FAILING = """
import sys
from lightctr_mpi import mpi
from lightctr_mpi.cli import run
from lightctr_mpi.stores import Sequential

learn, calls = Sequential.learn, []

def failing(self, *arguments):
    calls.append(1)
    if len(calls) == 3 and mpi.world().rank == 1:
        raise RuntimeError("the second rank has had enough")
    return learn(self, *arguments)

Sequential.learn = failing
sys.exit(mpi.guard(run, sys.argv[1:]))
"""


def test_a_rank_that_fails_alone_does_not_leave_the_others_waiting(tmp_path, data):
    script, before = tmp_path / "failing.py", segments()
    script.write_text(FAILING)
    process = launch.python(script, *words(data, tmp_path / "run", 100, *NODE), ranks=3, timeout=WAIT)
    assert process.returncode != 0
    assert "the second rank has had enough" in process.stderr
    assert segments() <= before


def test_a_diverging_run_ends_with_one_line(tmp_path, data):
    sgd = ("--optimizer.name", "sgd", "--optimizer.lr", 100, "--no-model.norm", "--model.init_scale", 10)
    process = launch.cli(*words(data, tmp_path / "run", 50, *NODE, *sgd), ranks=2, cwd=tmp_path)
    one_line(process, "")
    assert "became non-finite" in process.stderr


def test_a_small_folder_of_shared_memory_is_refused(tmp_path):
    """6000 keys of 8 kB, in a mount namespace of its own, as a container has it."""
    small = "mount -t tmpfs -o size=40m tmpfs /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", small], capture_output=True).returncode:
        pytest.skip("this system does not allow a mount namespace")
    lines = (" ".join(f"0:{i}:1" for i in range(20 * row, 20 * row + 20)) for row in range(300))
    (tmp_path / "train.ffm").write_text("".join(f"{i % 2} {line}\n" for i, line in enumerate(lines)))
    command = [launch.MPIRUN, "-n", 2, sys.executable, "-m", "lightctr_mpi", "train", *NODE, "--quiet"]
    command += [
        "--data.train",
        "train.ffm",
        "--data.format",
        "libffm",
        "--model.name",
        "fm",
        "--model.k",
        1024,
    ]
    shell = f'{small} && exec "$@"'
    process = launch.run("unshare", "-m", "sh", "-c", shell, "sh", *command, cwd=tmp_path, timeout=WAIT)
    one_line(process, "ring.replica = node: the model takes ")
    assert "MB of shared memory in /dev/shm" in process.stderr
