"""Weights of a model read straight into the columns of a table."""

from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
from test_checkpoint import LAYOUTS, save
from test_checkpoint_sharded import save_sharded, sized

from lightctr_mpi import checkpoint
from lightctr_mpi.checkpoint import into
from lightctr_mpi.errors import UserError

PARTS = {"lr": ["linear"], "fm": ["linear", "factors"], "ffm": ["factors"]}


def check(source, name, expected, **options):
    """The array fills its columns and leaves the others alone."""
    flat = expected.reshape(len(expected), -1)
    table = np.full((len(expected), flat.shape[1] + 3), 7, np.float32)
    into.read_into(source, f"parameters/{name}", table[:, 1 : 1 + flat.shape[1]], **options)
    np.testing.assert_array_equal(table[:, 1 : 1 + flat.shape[1]], flat)
    assert (table[:, [0, -2, -1]] == 7).all()


@pytest.mark.parametrize("piece", [1, 40, 1 << 20])
@pytest.mark.parametrize("name", PARTS)
def test_a_file_in_pieces_and_threads(tmp_path, monkeypatch, name, piece):
    arrays = save(tmp_path / "m.h5", LAYOUTS[name])
    monkeypatch.setattr(into, "PIECE_BYTES", piece)
    with checkpoint.open(tmp_path / "m.h5", verify=False) as source, ThreadPoolExecutor(3) as pool:
        for part in PARTS[name]:
            expected = arrays[f"parameters/{part}"]
            check(source, part, expected)
            check(source, part, expected, map_pieces=pool.map)
            place = np.random.default_rng(1).permutation(len(expected))
            check(source, part, expected[np.argsort(place)], place=place)


def test_a_model_without_keys(tmp_path):
    save(tmp_path / "m.h5", sized("fm", 0))
    with checkpoint.open(tmp_path / "m.h5") as source:
        into.read_into(source, "parameters/factors", np.empty((0, 3), np.float32))


def test_shards(tmp_path):
    expected, _ = save_sharded(tmp_path / "m.h5", sized("ffm"), count=3)
    with checkpoint.open(tmp_path / "m.h5") as source:
        assert source.place("parameters/factors") is None
        check(source, "factors", expected["parameters/factors"])


def test_the_place_of_an_array_is_where_its_bytes_lie(tmp_path):
    arrays = save(tmp_path / "m.h5", LAYOUTS["fm"])
    content = (tmp_path / "m.h5").read_bytes()
    with checkpoint.open(tmp_path / "m.h5") as source:
        _, start = source.place("parameters/factors")
    expected = arrays["parameters/factors"].tobytes()
    assert content[start : start + len(expected)] == expected


def test_changed_values_fail_the_checksum(tmp_path, monkeypatch):
    save(tmp_path / "m.h5", LAYOUTS["fm"])
    monkeypatch.setattr(into, "PIECE_BYTES", 24)
    with h5py.File(tmp_path / "m.h5", "r+") as file:
        file["parameters/factors"][3, 1] += 1
    with checkpoint.open(tmp_path / "m.h5", verify=False) as source:
        with pytest.raises(UserError, match="checksum mismatch in dataset /parameters/factors"):
            into.read_into(source, "parameters/factors", np.empty((7, 3), np.float32))
        into.read_into(source, "parameters/linear", np.empty((7, 1), np.float32))


def test_a_file_that_loses_its_end_while_it_is_read(tmp_path):
    save(tmp_path / "m.h5", LAYOUTS["fm"])
    with checkpoint.open(tmp_path / "m.h5", verify=False) as source:
        _, start = source.place("parameters/factors")
        with open(tmp_path / "m.h5", "r+b") as file:
            file.truncate(start + 10)
        with pytest.raises(UserError, match="damaged: dataset /parameters/factors ends too early"):
            into.read_into(source, "parameters/factors", np.empty((7, 3), np.float32))
