"""Keys that the training rows lack: left out, or counted with their starting weights (model.unseen)."""

from __future__ import annotations

import json
import statistics

import launch
import numpy as np
import pytest
from cases import logloss, parse
from test_cli_ranks import done, rows

from lightctr_mpi import checkpoint
from lightctr_mpi.checkpoint.export import import_text
from lightctr_mpi.errors import UserError
from lightctr_mpi.predict import Scorer
from lightctr_mpi.unseen import PIECE_ROWS

WORD = 2**64
UNSEEN = "unseen_at_predict.ffm"
COMPACT = ("--optimizer.sums", "block", "--model.storage")


def mix(x: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def starting_weights(seed: int, key: int, count: int, quantile) -> list[float]:
    golden = 0x9E3779B97F4A7C15
    stream = mix(mix((seed + golden) % WORD) ^ key)
    drawn = [mix((stream + (c + 1) * golden) % WORD) >> 11 for c in range(count)]
    return [quantile((number + 0.5) / 2**53) for number in drawn]


def with_rows_for(model, keys: list[int], seed: int, quantile, storage=np.float32):
    """The model of a file, with starting weights for more keys; their linear weight is 0."""
    shape = model.params["factors"].shape[1:]
    more = [starting_weights(seed, key, int(np.prod(shape)), quantile) for key in keys]
    more = np.array(more).astype(storage).astype(np.float64).reshape(len(keys), *shape)
    model.params["factors"] = np.concatenate([model.params["factors"], more])
    if "linear" in model.params:
        model.params["linear"] = np.append(model.params["linear"], np.zeros(len(keys)))
    model.keys = model.keys + keys
    return model


def uniform(upper: float):
    return lambda p: upper * p


NORMAL = statistics.NormalDist(0, 0.1).inv_cdf  # the default of fm and ffm
SETTINGS = {
    "fm": ("fm", (), NORMAL, np.float32),
    "ffm": ("ffm", (), NORMAL, np.float32),
    "ffm, uniform": ("ffm", ("--model.init", "uniform", "--model.linear", "no"), uniform(0.5), np.float32),
    "ffm, in batches": ("ffm", ("--train.batch_size", 32), NORMAL, np.float32),
    "ffm, compact": ("ffm", (*COMPACT, "float32"), NORMAL, np.float32),
    "ffm, 16 bits": ("ffm", (*COMPACT, "float16", "--model.init_scale", 0.1), NORMAL, np.float16),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_unseen_keys_count_with_their_starting_weights(program, setting):
    name, flags, quantile, storage = SETTINGS[setting]
    flags = (*flags, "--model.k", 4, "--model.unseen", "start", "--seed", 5, "--train.epochs", 2)
    model = program.train("good200.ffm", "--data.valid", UNSEEN, *flags, name=name)
    assert 999 not in model.keys
    # Field 7 is unseen, too: its entry is not there for a model that has fields.
    found = parse(program.text(UNSEEN))
    expected = with_rows_for(model, [999], 5, quantile, storage).probabilities(found)
    without = program.model().probabilities(found)
    assert abs(expected[0] - without[0]) > 1e-5 and expected[1] == without[1]
    np.testing.assert_allclose(program.predict(model, UNSEEN), expected, atol=1e-6)
    counted = "1 values of features count with their starting weights, and "
    assert counted in program.errors
    loss = pytest.approx(logloss([1, 0], expected), abs=1e-6)
    best = min(record["valid_logloss"] for record in program.history())
    assert best == loss and program.evaluate(model, UNSEEN)["logloss"] == loss
    program.run("convert", UNSEEN, "rows.h5")
    np.testing.assert_allclose(program.predict(model, "rows.h5"), expected, atol=1e-6)
    assert program.evaluate(model, "rows.h5")["unseen"]["features"] == 1


def test_rows_are_scored_alike_in_pieces_and_by_line(program):
    """More rows than a piece has, of changing length; those of the first piece have no unseen keys."""
    rng = np.random.default_rng(3)
    lines = []
    for i in range(2 * PIECE_ROWS + 100):
        keys = rng.integers(1, 20, rng.integers(1, 5))
        words = [
            f"{f}:{key + (5000 if rng.random() < 0.2 and i >= PIECE_ROWS else 0)}:1"
            for f, key in enumerate(keys)
        ]
        lines.append(" ".join([str(i % 2), *words]))
    program.write("long.ffm", *lines)
    flags = ("--model.k", 2, "--model.unseen", "start", "--train.epochs", 1)
    model = program.train("good200.ffm", "--data.valid", "long.ffm", *flags)
    found = parse(program.text("long.ffm"))
    keys = sorted({key for row in found for key in row[2]} - set(model.keys))
    expected = with_rows_for(model, keys, 1, NORMAL).probabilities(found)
    assert len(keys) >= 19
    np.testing.assert_allclose(program.predict(model, "long.ffm"), expected, atol=1e-6)
    labels = [row[0] for row in found]
    assert program.history()[0]["valid_logloss"] == pytest.approx(logloss(labels, expected), abs=1e-6)


def test_lr_starts_at_0(program):
    model = program.train("good200.ffm", "--model.unseen", "start", "--train.epochs", 1, name="lr")
    expected = model.probabilities(parse(program.text(UNSEEN)))
    np.testing.assert_allclose(program.predict(model, UNSEEN), expected, atol=1e-6)


def test_a_model_from_text_knows_its_seed(program):
    flags = ("--model.unseen", "start", "--seed", 9, "--train.epochs", 1)
    model = program.train("good200.ffm", *flags)
    expected = program.predict(model, UNSEEN)
    program.run("inspect", model.path, "--export", "model.txt")
    import_text(str(program.folder / "model.txt"), str(program.folder / "again.h5"))
    np.testing.assert_array_equal(program.predict("again.h5", UNSEEN), expected)


@pytest.mark.parametrize(("mode", "ranks"), [("ring", 2), ("node", 2), ("ps", 4)])
def test_all_modes_count_them_alike(mode, ranks, tmp_path):
    """Validation on many ranks against evaluation of the saved model by one process."""
    (tmp_path / "train.ffm").write_text(rows(300, 1))
    new = [line.replace(" 1:1", " 1:7", 1) for line in rows(90, 2).splitlines()]  # keys 1xx become 7xx
    (tmp_path / "valid.ffm").write_text("\n".join(new) + "\n")
    flags = ["--data.train", "train.ffm", "--data.valid", "valid.ffm", "--model.name", "ffm", "--model.k", 2]
    flags += ["--model.unseen", "start", "--train.epochs", 2, "--model.init", "uniform", "--out", "run"]
    flags += ["--ring.replica", "node"] if mode == "node" else ["--mode", mode]
    done(launch.cli("train", *flags, ranks=ranks, cwd=tmp_path))
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    judged = launch.cli("evaluate", "run/model.h5", "valid.ffm", "--json", cwd=tmp_path)
    done(judged)
    result = json.loads(judged.stdout)
    assert result["unseen"]["features"] == 90
    assert result["logloss"] == pytest.approx(min(r["valid_logloss"] for r in records), abs=1e-6)


@pytest.mark.parametrize("option", ["admit_after", "evict_age"])
def test_keys_without_parameters_and_starting_weights_exclude_each_other(program, option):
    words = ("train", "--data.train", "good200.ffm", "--model.unseen", "start", f"--ps.{option}", 2)
    assert program.refused(*words).startswith("model.unseen = start: a key without parameters")


def test_what_decides_about_a_prediction_is_told_or_refused_when_it_changes(tmp_path):
    (tmp_path / "train.ffm").write_text(rows(50, 1))
    flags = [
        "train",
        "--data.train",
        "train.ffm",
        "--model.name",
        "ffm",
        "--out",
        "r",
        "--model.unseen",
        "start",
    ]
    done(launch.cli(*flags, "--train.epochs", 1, cwd=tmp_path))
    resumed = (*flags, "--train.resume", "auto", "--train.epochs", 2)
    other = launch.cli(*resumed, "--seed", 9, cwd=tmp_path)
    assert other.returncode == 2 and "began with seed = 1, this run has 9" in other.stderr
    told = launch.cli(*resumed, "--model.unseen", "skip", "--model.share", 0, "--seed", 9, cwd=tmp_path)
    done(told)
    text = told.stdout + told.stderr
    assert "model.unseen is now skip, it was start" in text and "model.share is now 0.0, it was 1.0" in text
    with checkpoint.open(tmp_path / "r/model.h5") as source:
        assert source.meta.model["seed"] == 1  # that of the starting weights


@pytest.mark.parametrize(
    ("name", "value"), [("unseen", "maybe"), ("init", "weird"), ("seed", "abc"), ("share", "x")]
)
def test_a_value_that_no_training_writes_is_refused(name, value, tmp_path):
    (tmp_path / "train.ffm").write_text(rows(50, 1))
    flags = ("--model.name", "ffm", "--model.unseen", "start", "--train.epochs", 1)
    done(launch.cli("train", "--data.train", "train.ffm", *flags, "--out", "r", cwd=tmp_path))
    with checkpoint.open(tmp_path / "r/model.h5") as source:
        source.meta.model[name] = value
        with pytest.raises(UserError, match=rf"{name} = {value} \(from .*model.h5\): expected"):
            Scorer(source)
