"""Predictions on any number of ranks: row i on line i, one error for all, no file unless it is whole."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import ringdata

from lightctr_mpi import models, optim
from lightctr_mpi import predict as predict_module
from lightctr_mpi.checkpoint import ModelMeta
from lightctr_mpi.commands import convert
from lightctr_mpi.config import ModelOptions, OptimizerOptions
from lightctr_mpi.errors import DataError, Diverged
from lightctr_mpi.modelfile import save
from lightctr_mpi.readers.source import Source
from lightctr_mpi.shard import Shard
from lightctr_mpi.stores import Replica

pytestmark = pytest.mark.mpi


def known_model(comm, folder: Path) -> str:
    """A logistic regression without bias whose weight of key j is (j - 50) / 25, for rows `1 j:1`."""
    keys = np.arange(101, dtype=np.uint64)
    options = ModelOptions(name="lr", k=0, init_scale=1.0, bias=False)
    moves = optim.build(OptimizerOptions(name="sgd"), "lr")
    replica = Replica(Shard(models.build(options, 0, "logistic"), moves, keys, 1), 1)
    replica.shard.weights(0, 101)[:, 0] = (np.arange(101) - 50) / 25
    path = folder / "known.h5"
    if comm.rank == 0:
        meta = ModelMeta(
            model={"name": "lr", "k": 0, "bias": False, "norm": False, "loss": "logistic", "init_scale": 1.0},
            reader={"format": "libsvm"},
        )
        save(replica, str(path), meta, None)
    comm.Barrier()
    return str(path)


@pytest.fixture
def small_units(monkeypatch):
    """Input is dealt to ranks in units of a few lines, row stores in pieces of seven rows."""
    monkeypatch.setattr("lightctr_mpi.input.Source", lambda paths, **options: Source(paths, 40, **options))
    monkeypatch.setattr(predict_module, "STORE_ROWS", 7)


@pytest.mark.parametrize("kind", ["text", "gzip", "two files", "row store", "empty"])
def test_line_i_of_the_predictions_is_row_i(comm, world, folder, small_units, kind):
    keys = [] if kind == "empty" else [(7 * i * i + 3) % 101 for i in range(83)]
    lines = [f"0 {key}:1\n" for key in keys]
    if kind == "gzip":
        paths = [ringdata.put(comm, folder / "rows.svm.gz", gzip.compress("".join(lines).encode()))]
    elif kind == "two files":
        parts = {"b": lines[:40], "a": lines[40:]}
        paths = [ringdata.put(comm, folder / name, "".join(part)) for name, part in parts.items()]
    else:
        paths = [ringdata.put(comm, folder / "rows.svm", "".join(lines))]
    if kind == "row store":
        convert(world, [str(paths[0])], str(folder / "rows.h5"), ["--data.format", "libsvm"])
        paths = [folder / "rows.h5"]
    out, model = folder / "p.txt", known_model(comm, folder)
    predict_module.predict(world, model, [str(path) for path in paths], str(out), [], raw=False)
    comm.Barrier()
    expected = [1 / (1 + math.exp(-(key - 50) / 25)) for key in keys]
    found = [float(line) for line in out.read_text().splitlines()]
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_bad_row_ends_the_prediction_on_all_ranks_and_leaves_no_file(comm, world, folder, small_units):
    lines = [f"0 {i}:1\n" for i in range(90)]
    lines[70] = lines[80] = "0 word:1\n"
    rows = ringdata.put(comm, folder / "rows.svm", "".join(lines))
    out, model = folder / "p.txt", known_model(comm, folder)
    with pytest.raises(DataError) as caught:
        predict_module.predict(world, model, [str(rows)], str(out), [], raw=False)
    assert str(caught.value).startswith(f"{rows}:71: found ")
    comm.Barrier()
    assert sorted(path.name for path in folder.iterdir()) == ["known.h5", "rows.svm"]


def test_a_prediction_that_is_not_finite_ends_it_on_all_ranks(comm, world, folder, small_units):
    rows = ringdata.put(
        comm, folder / "rows.svm", "".join(f"0 {i}:{'3e38' if i == 100 else 1}\n" for i in range(101))
    )
    out, model = folder / "p.txt", known_model(comm, folder)
    with pytest.raises(Diverged, match="not a finite number"):
        predict_module.predict(world, model, [str(rows)], str(out), [], raw=False)
    comm.Barrier()
    assert not out.exists()
