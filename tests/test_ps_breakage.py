"""What broke the parameter server in the hands of a tester: full disks, devices as outputs, huge values."""

from __future__ import annotations

import io
import json
import os
import stat
import threading
from pathlib import Path

import launch
import numpy as np
import pytest
from test_cli_ranks import done, one_line, rows

from lightctr_mpi import checkpoint
from lightctr_mpi.config import DataOptions, PsOptions, Run
from lightctr_mpi.errors import UserError, is_special
from lightctr_mpi.planted import Law
from lightctr_mpi.ps.trace import EVENT, PULLED, Trace
from lightctr_mpi.report import Console, JsonLines
from lightctr_mpi.runfolder import RunFolder
from lightctr_mpi.settle import settle
from lightctr_mpi.synth import synth

FULL = Path("/dev/full")  # only ever reached by opening a link to it


def command(out: Path, train_file: Path, *more: object) -> list:
    words = ["--mode", "ps", "--ps.servers", 2, "--data.train", train_file, "--model.name", "lr"]
    return ["train", *words, "--train.epochs", 2, "--out", out, *more]


@pytest.fixture(scope="module")
def train_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.ffm"
    path.write_text(rows(300, 1))
    return path


@pytest.fixture(scope="module")
def trained(train_file, tmp_path_factory) -> Path:
    """Run folder of a training with two servers that keep a trace."""
    out = tmp_path_factory.mktemp("trained") / "run"
    done(launch.cli(*command(out, train_file, "--ps.trace", "true", "--quiet"), ranks=4, cwd=out.parent))
    return out


@pytest.fixture
def pipe(tmp_path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


# --- outputs that are no files ---


def test_predictions_go_into_a_pipe_which_stays_one(trained, train_file, pipe):
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    done(launch.cli("predict", trained / "model.h5", train_file, "-o", pipe))
    reader.join(10)
    printed = launch.cli("predict", trained / "model.h5", train_file)
    assert got == [printed.stdout] and len(printed.stdout.splitlines()) == 300
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_replaces_a_file_leaves_others_alone(trained, pipe):
    from lightctr_mpi.checkpoint.export import export_text

    for write in (checkpoint.merge, export_text):
        with pytest.raises(UserError, match=f"cannot write {pipe}: it is not a file"):
            write(str(trained / "model.h5"), str(pipe))
    with pytest.raises(UserError, match=f"cannot write {pipe}: it is not a file"):
        synth(Law(fields=2, keys=10, seed=1), 5, str(pipe))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [path.name for path in pipe.parent.iterdir()] == ["pipe"]


def test_what_is_special(tmp_path, pipe):
    (tmp_path / "file").touch()
    links = {"to_file": "file", "to_stdout": "/proc/self/fd/1", "to_full": FULL}
    links["to_closed"] = "/proc/self/fd/999"
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    special = {"pipe", "to_stdout", "to_full", "to_closed"}
    assert {path.name for path in tmp_path.iterdir() if is_special(path)} == special
    assert not is_special(tmp_path) and not is_special(tmp_path / "nothing")


# --- full disks ---


def test_a_full_disk_below_the_configuration_is_one_line(train_file, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.toml").symlink_to(FULL)
    process = launch.cli(*command(out, train_file), ranks=4, cwd=tmp_path)
    one_line(process, f"cannot write {out}/config.toml: No space left on device")


def test_a_full_disk_below_metrics_is_told_once(tmp_path):
    lines = JsonLines()
    lines.open_metrics(tmp_path / "metrics.jsonl")
    lines._stream = FULL.open("w")
    with pytest.raises(UserError, match="cannot write /dev/full: No space left on device"):
        lines.epoch({"epoch": 1})
    lines.close()


def test_a_trace_says_which_file_it_could_not_write(tmp_path):
    path = tmp_path / "trace.npy"
    trace = Trace(path)
    trace.add(PULLED, 3, 0, 0, 0, 7)
    path.symlink_to(FULL)
    with pytest.raises(UserError, match=f"cannot write {path}: "):
        trace.save()
    path.unlink()
    trace.save()
    assert np.load(path).tolist() == np.array([(PULLED, 3, 0, 0, 0, 7)], EVENT).tolist()


ONE_SERVER_CANNOT_WRITE = """
import os, resource, sys
from lightctr_mpi.__main__ import main
from lightctr_mpi.ps import server

def limited(*arguments, save=server.save_shard):
    if rank == "2":  # a file may have 4096 bytes: less than a shard
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    return save(*arguments)

names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
rank = next(os.environ[name] for name in names if name in os.environ)
server.save_shard = limited
sys.exit(main())
"""


def test_when_one_shard_fails_the_others_go(train_file, tmp_path):
    out = tmp_path / "run"
    process = launch.python("-c", ONE_SERVER_CANNOT_WRITE, *command(out, train_file), ranks=4, cwd=tmp_path)
    one_line(process, f"cannot write {out}/checkpoints/epoch-00001-row-000000000000.shards/")
    assert "File too large" in process.stderr
    assert [path for path in out.rglob("*") if path.is_file() and ".h5" in path.name] == []


# --- values that run away ---


def test_clipped_values_are_told_once(tmp_path):
    data, out = tmp_path / "train.ffm", tmp_path / "run"
    data.write_text("1 0:1:20000 1:2:20000\n0 0:1:30000 1:3:20000\n" * 50)
    more = ("--optimizer.name", "sgd", "--optimizer.lr", 50, "--model.norm", "false")
    process = launch.cli(*command(out, data, *more, "--ps.pull_codec", "float16"), ranks=4, cwd=tmp_path)
    done(process)
    epochs = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(epochs) == 2 and all(epoch["ps_saturated"] > 0 for epoch in epochs)
    (told,) = [line for line in process.stdout.splitlines() if "were clipped" in line]
    assert told.startswith(f"{epochs[0]['ps_saturated']:,} values did not fit into float16")


def test_a_loss_that_runs_away_keeps_its_column():
    out = io.StringIO()
    console = Console(out=out, live=False)
    record = {"epoch": 1, "train_logloss": 1.315e21, "rows_per_second": 77.0, "seconds": 1.5}
    console.epoch(record)
    console.epoch(record | {"epoch": 2, "train_logloss": 0.25})
    assert [line.split() for line in out.getvalue().splitlines()[1:]] == [
        ["1", "1.315e+21", "77", "1.50"],
        ["2", "0.25000", "77", "1.50"],
    ]


# --- the rest ---


def test_what_belonged_to_the_earlier_run_goes_with_it(trained, tmp_path):
    ours = {path.name for path in trained.iterdir()}
    assert {"summary.json", "ps-trace-0.npy", "ps-trace-1.npy", "model.shards"} <= ours
    copy = tmp_path / "run"
    launch.run("cp", "-r", trained, copy)
    (copy / "notes.txt").write_text("of the user")
    assert RunFolder(copy).set_aside() == copy / "previous"
    assert {path.name for path in (copy / "previous").iterdir()} == ours
    assert {path.name for path in copy.iterdir()} == {"previous", "notes.txt"}


@pytest.mark.parametrize(("rank", "right"), [(0, False), (2, False), (3, True), (5, True), (6, False)])
def test_only_workers_can_be_slowed(rank, right):
    """Six ranks: the Master, servers 1 and 2, workers 3 to 5."""
    ps = PsOptions(servers=2, slow=f"{rank}:2")
    run = Run(mode="ps", data=DataOptions(train=("a.ffm",)), ps=ps)
    if right:
        assert settle(run, 6).ps.slow == f"{rank}:2"
    else:
        with pytest.raises(UserError, match=f"ps.slow = {rank}:2: not the rank of a worker; they are 3 to 5"):
            settle(run, 6)
