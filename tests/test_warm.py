"""Compiling ahead of a run."""

from __future__ import annotations

import pytest

from lightctr_mpi import readers, warm
from lightctr_mpi.config import DataOptions


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
