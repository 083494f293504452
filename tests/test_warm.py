"""Compiling ahead of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightctr_mpi import readers, warm
from lightctr_mpi.config import DataOptions

ROOT = Path(__file__).parent.parent


def test_who_waits_for_the_compiler_is_told_so_once(tmp_path, monkeypatch):
    monkeypatch.setattr(warm, "CACHE_DIR", tmp_path)
    said: list[str] = []
    for _ in range(2):
        warm.warm_reading(readers.build("libsvm", DataOptions()), said.append)
    assert said == ["compiling the code that reads libsvm (once on this machine, up to a minute)"]


@pytest.mark.parametrize("name", ["libffm", "libsvm", "dense"])
@pytest.mark.parametrize(
    "options", [{"label_map": "7:0,8:1"}, {"label_map": "no:0,yes:1"}, {"header": "yes"}]
)
def test_labels_and_headers_of_the_user_are_no_hindrance(tmp_path, monkeypatch, name, options):
    """On a machine where nothing is compiled yet, that is."""
    monkeypatch.setattr(warm, "CACHE_DIR", tmp_path)
    reader = readers.build(name, DataOptions(**options))
    rule = reader.labels
    warm.warm_reading(reader)
    assert reader.labels is rule and reader.options.on_bad_row == "error"


def test_width_of_a_dense_file_is_no_hindrance(tmp_path, monkeypatch):
    for width in (1, 2, 31):
        (tmp_path / str(width)).mkdir()
        monkeypatch.setattr(warm, "CACHE_DIR", tmp_path / str(width))
        reader = readers.build("dense", DataOptions(label_column="last"))
        reader.prepare(b",".join([b"1"] * width), "rows.csv")
        assert [line.count(b",") + 1 for line in reader.sample.splitlines()] == [width, width]
        warm.warm_reading(reader)


PROGRAM = """
import sys
from lightctr_mpi import cli
assert cli.run(["warmup", "--model", "lr"]) == 0
assert "numba" in sys.modules
"""
SCORING = """
import sys
from lightctr_mpi import cli
assert cli.run(sys.argv[1:]) == 0
assert "numba" not in sys.modules
"""


def test_after_warmup_nothing_is_left_to_compile(tmp_path):
    train = ["train", "--data.train", "rows", "--model.name", "lr", "--train.epochs", "1"]
    train += ["--out", "run", "--quiet"]
    predict = ["predict", "run/model.h5", "rows", "-o", "out"]
    (tmp_path / "rows").write_text("1 0:1:1 1:2:1\n0 0:3:1 1:2:1\n" * 9)
    env = os.environ | {"LIGHTCTR_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    for program, words in ((PROGRAM, []), (SCORING, train), (SCORING, predict)):
        command = [sys.executable, "-c", program, *words]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out").read_text().splitlines()) == 18
