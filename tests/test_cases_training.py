"""Training, metrics and model files where other tools went wrong, through the command line, on one rank."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal

import h5py
import numpy as np
import pytest
from cases import logloss, parse, sigmoid

from lightctr_mpi import stores
from lightctr_mpi.checkpoint.export import import_text
from lightctr_mpi.errors import Stopped
from lightctr_mpi.report.console import Console

MODELS = ("lr", "fm", "ffm")
TIMES = ("seconds", "rows_per_second", "valid_seconds")


def figures(history: list[dict]) -> list[dict]:
    """A history without its times."""
    return [{name: value for name, value in record.items() if name not in TIMES} for record in history]


# --- divergence ---


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "ftrl"])
def test_raw_counts_give_a_finite_model_or_a_clear_end(program, name, optimizer):
    flags = ("--model.norm", "no", "--optimizer.name", optimizer, "--optimizer.lr", 0.2, "--train.epochs", 3)
    words = ("train", "--data.train", "raw_counts.ffm", "--model.name", name, *flags, "--out", "run")
    # Plain steps along gradients of 1e4 run away as soon as two such values are multiplied.
    if optimizer == "sgd" and name != "lr":
        message = program.refused(*words)
        assert re.match(
            r"(the training loss|a parameter) became non-finite at step \d+ \(epoch \d\); try", message
        )
        for hint in ("lower --optimizer.lr", "--model.norm true"):
            assert hint in message
        assert not list(program.folder.rglob("model.h5"))
    else:
        program.run(*words)
        assert program.model().all_finite()
        assert all(math.isfinite(record["train_logloss"]) for record in program.history())


def test_divergence_keeps_the_last_finite_checkpoint(program):
    words = ("train", "--data.train", "raw_counts.ffm", "--model.norm", "no", "--optimizer.name", "sgd")
    program.run(*words, "--out", "run", "--optimizer.lr", 1e-12, "--train.epochs", 1)
    before = program.model()
    on = ("--out", "run", "--train.resume", "auto", "--optimizer.lr", 50, "--train.epochs", 4)
    assert "became non-finite at step" in program.refused(*words, *on)
    assert program.model().same_as(before) and before.all_finite()
    # And training can go on from it.
    program.run(*words, *on[:4], "--optimizer.lr", 1e-12, "--train.epochs", 2)
    assert [record["epoch"] for record in program.history()] == [1, 2]


def test_validation_that_is_not_finite_ends_the_run(program):
    """A weight grows from epoch to epoch until its product with a huge value overflows."""
    program.write("one.ffm", *["1 0:1:1", "0 0:2:1"] * 20)
    program.write("huge.ffm", "1 0:1:3.4e38", "0 0:2:1")
    flags = ("--data.valid", "huge.ffm", "--train.epochs", 30, "--train.patience", 0, "--model.norm", "no")
    sgd = ("--optimizer.name", "sgd", "--optimizer.lr", 0.03, "--model.name", "lr", "--out", "run")
    message = program.refused("train", "--data.train", "one.ffm", *flags, *sgd)
    found = re.match(r"the validation loss became non-finite at step (\d+) \(epoch (\d+)\); try a", message)
    assert found
    history, last = program.history(), int(found[2])
    assert [record["epoch"] for record in history] == list(range(1, last))
    loss = [record["valid_logloss"] for record in history]
    assert len(loss) > 1 and all(value is not None and math.isfinite(value) for value in loss)
    # The best of the finite epochs is still there, and gives what was reported.
    model = program.model()
    assert model.all_finite() and model.params["linear"][0] < 1
    assert model.progress["epoch"] == 1 + int(np.argmin(loss)) < last
    predicted = program.predict(model, "huge.ffm")
    assert -np.log(predicted[0] * (1 - predicted[1])) / 2 == pytest.approx(min(loss), abs=1e-6)


# --- metrics ---


def one_feature_rows(program, labels, features) -> str:
    return program.write("rows.svm", *(f"{y} {j}:1" for y, j in zip(labels, features, strict=True)))


def auc_by_pairs(labels, scores) -> float:
    """Share of (positive, negative) pairs in the right order, ties as halves."""
    y, s = np.asarray(labels), np.asarray(scores)
    d = s[y == 1][:, None] - s[y == 0][None, :]
    return float(((d > 0) + 0.5 * (d == 0)).mean())


def test_auc_of_equal_scores_is_one_half(program):
    model = program.linear({1: 0.5}, bias=-3.0)
    rows = one_feature_rows(program, [1, 0, 0, 1, 0, 0, 0], [1] * 7)
    assert program.evaluate(model, rows)["auc"] == 0.5
    rows = one_feature_rows(program, [1, 0, 0, 1, 0, 0, 0], range(2, 9))  # nothing that the model knows
    assert program.evaluate(model, rows)["auc"] == 0.5


def test_auc_of_small_scores_with_ties_is_the_rank_sum(program):
    rng = np.random.default_rng(3)
    weights = {j: round(float(w), 3) for j, w in enumerate(rng.permutation(np.linspace(-1, 1, 12)))}
    model = program.linear(weights, bias=-7.0)
    features = rng.integers(0, 12, 80)
    scores = np.array([weights[j] for j in features])
    labels = (rng.random(80) < 0.2 + 0.3 * (scores > 0)).astype(int)
    rows = one_feature_rows(program, labels, features)
    assert program.predict(model, rows).max() < 0.005
    expected = auc_by_pairs(labels, scores)
    assert 0.5 < expected < 1
    assert program.evaluate(model, rows)["auc"] == pytest.approx(expected, abs=1e-12)


def test_logloss_is_natural_and_finite_where_probabilities_are_0_and_1(program):
    model = program.linear({1: 200.0, 2: -200.0, 3: 0.0, 4: 1.5})
    for labels, features, expected in (
        ([0, 1], [3, 3], math.log(2)),
        ([1, 0], [1, 2], 0.0),  # certain and right
        ([0, 1], [1, 2], 200.0),  # certain and wrong: the logit itself
        ([1, 0, 0], [4, 4, 2], (2 * math.log1p(math.exp(-1.5)) + 1.5) / 3),
    ):
        rows = one_feature_rows(program, labels, features)
        assert program.evaluate(model, rows)["logloss"] == pytest.approx(expected, rel=1e-6, abs=1e-12)
    one_feature_rows(program, [1, 0], [1, 2])
    assert program.predict(model, "rows.svm").tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", ["fm", "ffm"])
def test_last_batch_may_be_smaller_and_every_row_counts_once(program, name):
    """With a learning rate that moves nothing, an epoch's loss is the mean over all rows of one model."""
    flags = ("--optimizer.name", "sgd", "--optimizer.lr", 1e-30, "--model.init_scale", 0.8)
    batch = ("--train.batch_size", 64, "--data.valid", "good50_test.ffm", "--train.epochs", 3)
    model = program.train("good200.ffm", *flags, *batch, name=name)
    history = program.history()
    assert [record["step"] for record in history] == [4, 8, 12]  # 64 + 64 + 64 + 8 rows
    rows, valid = (parse(program.text(f)) for f in ("good200.ffm", "good50_test.ffm"))
    for record in history:
        expected = logloss([row[0] for row in rows], model.probabilities(rows))
        assert record["train_logloss"] == pytest.approx(expected, abs=1e-6)
        assert record["valid_rows"] == 50
        expected = logloss([row[0] for row in valid], model.probabilities(valid))
        assert record["valid_logloss"] == pytest.approx(expected, abs=1e-6)
    # Nothing of an evaluation is left for the next.
    valid_figures = [
        {name: value for name, value in record.items() if name.startswith("valid_")}
        for record in figures(history)
    ]
    assert valid_figures[0] == valid_figures[1] == valid_figures[2]


def test_evaluation_in_pieces_covers_every_row(program, monkeypatch):
    monkeypatch.setattr(stores, "EVALUATION_ROWS", 16)  # 50 rows: three pieces and two rows
    flags = ("--data.valid", "good50_test.ffm", "--train.epochs", 1)
    model = program.train("good200.ffm", *flags)
    whole = program.evaluate(model, "good50_test.ffm")
    for name in ("rows", "logloss", "auc", "accuracy", "rmse", "calibration"):
        assert program.history()[0][f"valid_{name}"] == pytest.approx(whole[name], abs=1e-12)


def test_evaluations_do_not_depend_on_each_other(program):
    model = program.train("good200.ffm")
    first = [program.evaluate(model, rows) for rows in ("good200.ffm", "good50_test.ffm")]
    again = [program.evaluate(model, rows) for rows in ("good50_test.ffm", "good200.ffm")]
    assert first == again[::-1]
    both = program.evaluate(model, "good200.ffm", "good50_test.ffm")
    assert both["rows"] == 250
    assert both["logloss"] == pytest.approx((200 * first[0]["logloss"] + 50 * first[1]["logloss"]) / 250)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sync", ["row by row", "in batches"])
def test_predictions_reproduce_the_best_validation_loss(program, name, sync):
    """On a run that learns its rows by heart, so that the best epoch is not the last."""
    batch = ("--train.batch_size", 32) if sync == "in batches" else ()
    flags = (
        "--data.valid",
        "good50_test.ffm",
        "--optimizer.lr",
        2,
        "--optimizer.l2",
        0,
        "--train.epochs",
        12,
    )
    model = program.train("good200.ffm", *flags, *batch, "--data.test", "good50_test.ffm", name=name)
    loss = [record["valid_logloss"] for record in program.history()]
    best = int(np.argmin(loss))
    assert best + 1 < len(loss) and model.progress["epoch"] == best + 1
    labels = [row[0] for row in parse(program.text("good50_test.ffm"))]
    assert logloss(labels, program.predict(model, "good50_test.ffm")) == pytest.approx(loss[best], abs=1e-6)
    assert program.evaluate(model, "good50_test.ffm")["logloss"] == pytest.approx(loss[best], abs=1e-9)
    # The test metrics at the end are those of the best epoch, too.
    assert f"test logloss  {loss[best]:.5f}" in program.said


# --- options ---


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--optimizer.lr", "1000"),
            "optimizer.lr = 1000 (from the command line): expected a number above 0 and at most 100",
        ),
        (("--optimizer.lr", "0"), "optimizer.lr = 0 (from the command line): expected a number above 0"),
        (("--optimizer.lr", "nan"), "optimizer.lr = nan (from the command line): expected a number above 0"),
        (("--optimizer.l2", "-1"), "optimizer.l2 = -1 (from the command line): expected a number at least 0"),
        (
            ("--optimizer.l1=-0.5",),
            "optimizer.l1 = -0.5 (from the command line): expected a number at least 0",
        ),
        (
            ("--optimizer.name", "ftrl", "--optimizer.alpha", "0"),
            "optimizer.alpha = 0 (from the command line): expected a number above 0",
        ),
        (("--model.k", "0"), "model.k = 0 (from the command line): expected a whole number at least 1"),
        (
            ("--train.batch_size", "0"),
            "train.batch_size = 0 (from the command line): expected a whole number at least 1",
        ),
        (
            ("--train.epochs", "-3"),
            "train.epochs = -3 (from the command line): expected a whole number at least 1",
        ),
        (("--seed", "1.5"), "seed = 1.5 (from the command line): expected a whole number"),
    ],
)
def test_options_out_of_range_are_refused_before_any_work(program, flags, message):
    before = sorted(program.folder.iterdir())
    assert program.refused("train", "--data.train", "bad_line_late.ffm", *flags).startswith(message)
    assert sorted(program.folder.iterdir()) == before


def test_options_out_of_range_name_their_source(program, monkeypatch):
    program.write("job.toml", "[data]", 'train = "good200.ffm"', "[optimizer]", "lr = 1000")
    assert program.refused("train", "job.toml").startswith("optimizer.lr = 1000 (from job.toml:4): expected")
    monkeypatch.setenv("LIGHTCTR_OPTIMIZER_L2", "-1")
    expected = (
        "optimizer.l2 = -1 (from environment variable LIGHTCTR_OPTIMIZER_L2): expected a number at least 0"
    )
    assert program.refused("train", "--data.train", "good200.ffm").startswith(expected)


def test_rows_given_as_a_job_file(program):
    message = program.refused("train", "good200.ffm")
    assert message.startswith("good200.ffm is not valid TOML")
    assert message.endswith("; rows to train on are given as --data.train good200.ffm")
    program.write("job.toml", "[data")
    assert "--data.train" not in program.refused("train", "job.toml")


def test_what_is_said_of_the_best_epoch(program):
    """It takes validation to tell one, and the last one being it is a sign to go on."""
    flags = ("--train.epochs", 2, "--optimizer.lr", 0.001)
    program.train("good200.ffm", "--data.valid", "good50_test.ffm", *flags)
    assert (
        program.said.count("  best\n") == 2 and "the last epoch was the best: more may help" in program.said
    )
    program.train("good200.ffm", *flags)
    assert "  best\n" not in program.said and "more may help" not in program.said


# --- model files ---


def test_folder_of_a_run_is_no_model(program):
    program.train("good200.ffm", "--train.epochs", 1)
    message = "cannot read model run: it is a folder; did you mean run/model.h5?"
    assert program.refused("predict", "run", "good200.ffm") == message


def damage_model(path, how):
    """Make the file at `path` unusable in the given way; returns what the message must say."""
    data = path.read_bytes()
    if how == "absent":
        path.unlink()
        return "cannot read model {}: No such file"
    if how == "folder":
        path.unlink()
        path.mkdir()
        return "cannot read model {}: it is a folder"
    if how == "empty":
        path.write_bytes(b"")
        return "cannot read model {}: the file is empty"
    if how == "truncated":
        path.write_bytes(data[: len(data) * 2 // 3])
        return "{} is truncated: it ends after"
    if how == "text":
        path.write_text("1 0:1:1\n")
        return "{} is not a model: it is not an HDF5 file"
    if how == "one byte":
        with h5py.File(path) as file:
            name = "parameters/factors"
            at = file[name].id.get_offset() + 4 * (file[name].size // 2)
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        return "{} is damaged: checksum mismatch in dataset /parameters/factors"
    if how == "foreign":
        with h5py.File(path, "w") as file:
            file["weights"] = np.ones(3)
        return "{} is HDF5 but not a model: it was not written by this program"
    if how == "newer":
        with h5py.File(path, "r+") as file:
            file.attrs["schema_version"] = 3
        return "{} has schema version 3"
    if how == "lacking":
        with h5py.File(path, "r+") as file:
            del file["parameters/factors"]
        return "{} is not a complete model: dataset /parameters/factors is missing"
    if how == "other shape":
        with h5py.File(path, "r+") as file:
            del file["parameters/linear"]
            file["parameters/linear"] = np.zeros(3, np.float32)
        return "{}: dataset /parameters/linear is float32[3], the model needs float32[36]"
    raise ValueError(how)


@pytest.mark.parametrize(
    "how",
    [
        "absent",
        "folder",
        "empty",
        "truncated",
        "text",
        "one byte",
        "foreign",
        "newer",
        "lacking",
        "other shape",
    ],
)
def test_unusable_model_files_are_refused(program, how):
    program.train("good200.ffm", "--train.epochs", 1)
    path = program.folder / "run" / "model.h5"
    shutil.copyfile(path, program.folder / "m.h5")
    expected = damage_model(program.folder / "m.h5", how).format("m.h5")
    commands = [
        ("predict", "m.h5", "good200.ffm", "-o", "p.txt"),
        ("evaluate", "m.h5", "good200.ffm"),
        ("inspect", "m.h5", "--export", "m.txt"),
        ("train", "--data.train", "good200.ffm", "--train.resume", "m.h5", "--out", "other"),
    ]
    for command in commands:
        assert program.refused(*command).startswith(expected), command
    for name in ("p.txt", "m.txt", "other/model.h5"):
        assert not (program.folder / name).exists()


def test_row_store_is_not_a_model(program):
    program.run("convert", "good200.ffm", "rows.h5")
    message = program.refused("predict", "rows.h5", "good200.ffm")
    assert message == "rows.h5 is HDF5 but not a model: it holds lightctr_mpi rows"


@pytest.mark.parametrize("name", ["fm", "ffm"])
def test_model_file_holds_its_hyper_parameters(program, name):
    flags = ("--model.k", 3, "--model.norm", "no", "--model.linear", "no", "--model.bias", "no")
    model = program.train("good200.ffm", *flags, "--optimizer.lr", 0.3, name=name)
    assert list(model.params) == ["factors"] and model.params["factors"].shape[-1] == 3
    expected = model.probabilities(parse(program.text("good50_test.ffm")))
    assert expected.std() > 0.05
    np.testing.assert_allclose(program.predict(model, "good50_test.ffm"), expected, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_saved_and_loaded_models_predict_the_same(program, name):
    flags = ("--data.valid", "good50_test.ffm", "--train.epochs", 2, "--optimizer.lr", 0.3)
    model = program.train("good200.ffm", *flags, name=name)
    # What the training computed from memory comes out of the file bit by bit.
    best = min(record["valid_logloss"] for record in program.history())
    assert program.evaluate(model, "good50_test.ffm")["logloss"] == best
    predicted = program.predict(model, "good50_test.ffm")
    shutil.copyfile(model.path, program.folder / "copy.h5")
    np.testing.assert_array_equal(program.predict("copy.h5", "good50_test.ffm"), predicted)
    # Through text.
    program.run("inspect", model.path, "--export", "model.txt")
    import_text("model.txt", "again.h5")
    np.testing.assert_allclose(program.predict("again.h5", "good50_test.ffm"), predicted, atol=1e-6)
    lines = [line for line in program.lines("model.txt") if not line.startswith("#")]
    assert [int(line.split()[0]) for line in lines] == model.keys
    np.testing.assert_allclose([float(line.split()[1]) for line in lines], model.params["linear"], rtol=1e-7)


def test_raw_scores_are_logits(program):
    model = program.train("good200.ffm", "--optimizer.lr", 0.3)
    z = program.predict(model, "good50_test.ffm", "--raw")
    np.testing.assert_allclose(z, model.logits(parse(program.text("good50_test.ffm"))), atol=1e-5)
    np.testing.assert_allclose(sigmoid(z), program.predict(model, "good50_test.ffm"), atol=1e-7)


# --- stop and resume ---

HOW = {
    "adagrad, row by row": ("--optimizer.name", "adagrad"),
    "sgd, row by row": ("--optimizer.name", "sgd", "--optimizer.l1", 1e-4),
    "ftrl, row by row": ("--optimizer.name", "ftrl", "--optimizer.l1", 1e-3),
    "adagrad, in batches": ("--optimizer.name", "adagrad", "--train.batch_size", 32),
    "sgd, in batches": ("--optimizer.name", "sgd", "--train.batch_size", 32),
    "ftrl, in batches": ("--optimizer.name", "ftrl", "--train.batch_size", 32),
}


@pytest.mark.parametrize("how", HOW)
def test_two_epochs_and_three_more_are_five(program, how):
    flags = ("--data.valid", "good50_test.ffm", "--train.patience", 0, *HOW[how])
    straight = program.train("good200.ffm", *flags, "--train.epochs", 5, out="straight", name="ffm")
    program.train("good200.ffm", *flags, "--train.epochs", 2, name="ffm")
    resumed = program.train("good200.ffm", *flags, "--train.epochs", 5, "--train.resume", "auto", name="ffm")
    assert resumed.same_as(straight)
    assert figures(program.history()) == figures(program.history("straight"))
    assert last_checkpoint(program, "run").same_as(last_checkpoint(program, "straight"))


@pytest.mark.parametrize("how", ["adagrad, row by row", "ftrl, in batches"])
def test_stop_within_an_epoch_and_resume(program, how, monkeypatch):
    """SIGUSR1 in the second epoch: the state is saved, and going on gives what a run in one go gives."""
    monkeypatch.setattr(stores, "SWEEP_ROWS", 32)
    flags = ("--data.valid", "good50_test.ffm", "--train.patience", 0, "--train.epochs", 4, *HOW[how])
    straight = program.train("good200.ffm", *flags, out="straight", name="ffm")
    steps = 0

    def progress(self, epoch, done, *_):
        nonlocal steps
        steps += 1
        if (epoch, done) == (2, 96):
            os.kill(os.getpid(), signal.SIGUSR1)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Console, "progress", progress)
        program.train("good200.ffm", *flags, name="ffm")
    assert steps < 14  # of 28
    stopped = last_checkpoint(program, "run").progress
    assert stopped["epoch"] == 1 and 96 <= stopped["rows_done"] < 200
    resumed = program.train("good200.ffm", *flags, "--train.resume", "auto", name="ffm")
    assert resumed.same_as(straight)
    assert figures(program.history()) == figures(program.history("straight"))


def last_checkpoint(program, out):
    path = max((program.folder / out / "checkpoints").glob("*.h5"))
    shutil.copyfile(path, program.folder / "last.h5")
    program.run("inspect", "last.h5")
    return type(program.model(out))(program.folder / "last.h5")


# --- labels of a row store ---


def test_labels_of_a_row_store_must_fit_the_loss(program):
    program.write("real.ffm", *(f"{i}.5 0:{i}:1 1:7:1" for i in range(4)))
    program.run("convert", "real.ffm", "real.h5", "--loss", "squared")
    message = program.refused("train", "--data.train", "real.h5", "--model.name", "lr", "--out", "run")
    assert "found label 1.5 in row 2, expected 0 to 1" in message
    squared = ("--model.loss", "squared", "--model.name", "lr", "--out", "run")
    program.run("train", "--data.train", "real.h5", *squared)
    assert program.model().all_finite()
    assert "found label 1.5 in row 2" in program.refused(
        "train", "--data.train", "real.h5", "--model.name", "fm"
    )


# --- resuming with other options ---


def test_resuming_says_what_is_no_longer_as_it_was(program):
    flags = ("--model.name", "lr", "--optimizer.lr", 0.1, "--train.epochs")
    program.run("train", "--data.train", "good200.ffm", *flags, 1, "--out", "run")
    same = ("train", "--data.train", "good200.ffm", *flags, 2, "--out", "run", "--train.resume", "auto")
    assert " it was " not in program.run(*same)
    again = ("--model.name", "lr", "--optimizer.lr", 0.2, "--train.epochs", 3, "--train.resume", "auto")
    said = program.run("train", "--data.train", "good200.ffm", *again, "--out", "run", "--seed", 5)
    assert "seed is now 5, it was 1" in said and "optimizer.lr is now 0.2, it was 0.1" in said
