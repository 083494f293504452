"""Planted data: the law is as documented, the printed metrics are true, the bytes are reproducible."""

import math
from pathlib import Path

import numpy as np
import pytest

from lightctr_mpi import planted, synth
from lightctr_mpi.errors import UserError
from lightctr_mpi.kernels.draw import build_alias, fill_weights
from lightctr_mpi.planted import TEST, TRAIN, Law, PlantedModel, cardinalities

DATA = Path(__file__).resolve().parent.parent / "data"
LAW = Law(fields=6, keys=300, seed=5, k=3)


@pytest.fixture(scope="module")
def model():
    return PlantedModel(LAW)


@pytest.fixture(scope="module")
def rows(model):
    return model.draw(TRAIN, 0, 40_000)


# --- the law ---


@pytest.mark.parametrize(
    "fields, keys", [(1, 2), (1, 77), (8, 16), (8, 48), (39, 39_000), (39, 1_000_000), (5, 31)]
)
def test_cardinalities_are_even_on_a_logarithmic_scale(fields, keys):
    counts = cardinalities(fields, keys)
    assert counts.sum() == keys and len(counts) == fields and counts.min() >= 2
    assert np.all(np.diff(counts) >= 0)
    if keys >= 1000 * fields:
        ratios = counts[5:] / counts[4:-1]  # small counts are rounded too coarsely
        assert np.ptp(ratios) < 0.15 and ratios.mean() > 1.1
        assert counts[0] == 4


@pytest.mark.parametrize("shares", [[1.0], [0.5, 0.5], [0.7, 0.2, 0.1], [0.0, 1.0], list(range(1, 40))])
def test_alias_table_has_the_given_shares(shares):
    shares = np.array(shares) / np.sum(shares)
    n = len(shares)
    keep, other = np.empty(n, np.uint64), np.empty(n, np.int32)
    build_alias(shares * n, keep, other, np.empty(n, np.int64))
    kept = keep.astype(np.float64) / 2**32
    implied = kept / n
    np.add.at(implied, other, (1 - kept) / n)
    assert np.allclose(implied, shares, rtol=0, atol=1e-9)


def test_planted_weights_have_mean_0_and_variance_1():
    weights = np.empty((40_000, 2))
    fill_weights(np.uint64(3), 0, weights)
    assert np.all(np.abs(weights.mean(axis=0)) < 5 / math.sqrt(40_000))
    assert np.all(np.abs(weights.var(axis=0) - 1) < 5 * math.sqrt(2 / 40_000))
    assert abs(np.corrcoef(weights.T)[0, 1]) < 5 / math.sqrt(40_000)
    assert np.abs(weights).max() <= 2 * math.sqrt(3)  # four uniform numbers, no more


def test_each_field_has_its_own_keys_with_zipf_popularity(rows):
    keys = rows[0]
    ends = np.cumsum(cardinalities(LAW.fields, LAW.keys))
    for field, (first, end) in enumerate(zip(ends - cardinalities(LAW.fields, LAW.keys), ends, strict=True)):
        column = keys[:, field]
        assert first <= column.min() and column.max() < end
        counts = np.bincount(column - first, minlength=end - first)
        expected = 1 / np.arange(1, end - first + 1) ** planted.ZIPF
        expected *= len(column) / expected.sum()
        chi2, freedom = np.sum((counts - expected) ** 2 / expected), max(end - first - 1, 1)
        assert chi2 < freedom + 6 * math.sqrt(2 * freedom)


def test_fields_are_independent(rows):
    keys = rows[0].astype(np.float64)
    correlation = np.corrcoef(keys.T) - np.eye(LAW.fields)
    assert np.abs(correlation).max() < 5 / math.sqrt(len(keys))


def test_logits_are_those_of_a_factorization_machine(model, rows):
    keys, logits, _ = rows
    weights = model._weights
    linear, pairs = np.zeros(50), np.zeros(50)
    for i in range(50):
        for f in range(LAW.fields):
            linear[i] += weights[keys[i, f], 0]
            for g in range(f + 1, LAW.fields):
                pairs[i] += weights[keys[i, f], 1:] @ weights[keys[i, g], 1:]
    design = np.column_stack([linear, pairs, np.ones(50)])
    solution, *_ = np.linalg.lstsq(design, logits[:50], rcond=None)
    assert np.allclose(design @ solution, logits[:50], rtol=0, atol=1e-9)
    assert solution[0] > 0 and solution[1] > 0


def test_parts_have_the_chosen_spread_and_labels_the_chosen_share():
    for law in (Law(8, 800, 1), Law(8, 800, 2, k=2, positive=0.03, linear_std=0.5, pair_std=1.5)):
        model = PlantedModel(law)
        _, parts, _ = model._draw(TRAIN, 0, 50_000)
        spread = ((parts - model._mean) * model._scale).std(axis=0)
        assert np.allclose(spread, [law.linear_std, law.pair_std], rtol=0.03)
        _, logits, labels = model.draw(TRAIN, 0, 50_000)
        p = 1 / (1 + np.exp(-logits))
        assert abs(p.mean() - law.positive) < 0.01
        assert abs(labels.sum() - p.sum()) < 5 * math.sqrt(np.sum(p * (1 - p)))


def test_labels_follow_the_probabilities_in_every_range(rows):
    _, logits, labels = rows
    p = 1 / (1 + np.exp(-logits))
    for part in np.array_split(np.argsort(p), 10):
        assert abs(labels[part].sum() - p[part].sum()) < 5 * math.sqrt(np.sum(p[part] * (1 - p[part])))


def test_a_part_without_spread_is_left_out():
    """One field has no pairs: their sum is 0 in every row, and scaling it must not divide by 0."""
    _, logits, labels = PlantedModel(Law(fields=1, keys=5, seed=1)).draw(TRAIN, 0, 1000)
    assert np.all(np.isfinite(logits)) and 0 < labels.mean() < 1


# --- determinism ---


def test_rows_do_not_depend_on_how_they_are_cut(model, rows):
    pieces = [model.draw(TRAIN, a, b - a) for a, b in ((0, 1), (1, 1000), (1000, 1007))]
    for whole, cut in zip(rows, map(np.concatenate, zip(*pieces, strict=True)), strict=True):
        assert np.array_equal(whole[:1007], cut)


def test_test_rows_and_other_seeds_are_other_rows(model, rows):
    assert np.mean(np.all(model.draw(TEST, 0, 1000)[0] == rows[0][:1000], axis=1)) < 0.2
    other = PlantedModel(Law(fields=6, keys=300, seed=6, k=3))
    assert np.mean(np.all(other.draw(TRAIN, 0, 1000)[0] == rows[0][:1000], axis=1)) < 0.2
    assert not np.allclose(other._weights, model._weights)


def test_files_do_not_depend_on_the_block_and_larger_ones_begin_with_smaller_ones(tmp_path, monkeypatch):
    a, b = tmp_path / "a", tmp_path / "b"
    first = synth.synth(LAW, 1000, str(a))
    monkeypatch.setattr(synth, "BLOCK_ROWS", 7)
    second = synth.synth(LAW, 1500, str(b))
    assert b.read_bytes().startswith(a.read_bytes()) and b.read_bytes().count(b"\n") == 1500
    assert synth.synth(LAW, 1000, str(b))[str(b)] == pytest.approx(first[str(a)], abs=1e-12)
    assert second[str(b)]["rows"] == 1500
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]  # no .part is left


# --- metrics of the truth ---


def test_metrics_of_the_truth(model):
    _, logits, labels = model.draw(TRAIN, 0, 700)
    truth = synth.Truth()
    truth.add(logits[:300], labels[:300])
    truth.add(logits[300:], labels[300:])
    p = 1 / (1 + np.exp(-logits))
    share = labels.mean()
    gap = logits[labels == 1][:, None] - logits[labels == 0]
    assert truth.metrics() == pytest.approx(
        {
            "rows": 700,
            "positive": share,
            "bayes_logloss": -np.mean(np.where(labels, np.log(p), np.log(1 - p))),
            "bayes_auc": np.mean((gap > 0) + 0.5 * (gap == 0)),
            "constant_logloss": -share * np.log(share) - (1 - share) * np.log(1 - share),
        },
        abs=1e-6,
    )


def test_auc_of_one_class_is_undefined():
    truth = synth.Truth()
    truth.add(np.array([0.5, -100.0]), np.zeros(2, np.uint8))
    assert truth.metrics()["bayes_auc"] is None and truth.metrics()["constant_logloss"] == 0


def test_auc_of_ties_and_extremes():
    truth = synth.Truth()
    truth.add(np.array([1.0, 1.0, 50.0, -50.0]), np.array([0, 1, 1, 0], np.uint8))
    assert truth.metrics()["bayes_auc"] == pytest.approx(3.5 / 4)


# --- command ---


def parsed(path):
    """Labels and keys of a libffm file of ones, with its fields checked."""
    labels, keys = [], []
    for line in Path(path).read_text().splitlines():
        label, *entries = line.split(" ")
        labels.append(int(label))
        parts = [tuple(map(int, entry.split(":"))) for entry in entries]
        assert [field for field, _, _ in parts] == list(range(len(parts)))
        assert all(value == 1 for _, _, value in parts)
        keys.append([key for _, key, _ in parts])
    return np.array(labels), np.array(keys)


def test_command_writes_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    argv = "--rows 500 --fields 6 --keys 300 --k 3 --seed 5 --out s.ffm --test-rows 40 --test-out t.ffm"
    assert synth.add_synth_cli(argv.split()) == 0
    model = PlantedModel(LAW)
    for path, stream, n in (("s.ffm", TRAIN, 500), ("t.ffm", TEST, 40)):
        keys, _, labels = model.draw(stream, 0, n)
        in_file = parsed(path)
        assert np.array_equal(in_file[0], labels) and np.array_equal(in_file[1], keys + 1)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4
    assert printed[0].startswith("s.ffm: 500 rows, 6 fields, 300 keys, ")
    truth = synth.Truth()
    truth.add(*model.draw(TRAIN, 0, 500)[1:])
    metrics = truth.metrics()
    assert printed[1] == (
        f"  Bayes logloss {metrics['bayes_logloss']:.6f}, Bayes AUC {metrics['bayes_auc']:.6f}, "
        f"constant logloss {metrics['constant_logloss']:.6f}"
    )


def test_libsvm_has_the_same_rows_without_fields(tmp_path):
    ffm, svm = tmp_path / "s.ffm", tmp_path / "s.svm"
    common = ["--rows", "50", "--fields", "3", "--seed", "2"]
    synth.add_synth_cli([*common, "--out", str(ffm)])
    synth.add_synth_cli([*common, "--format", "libsvm", "--out", str(svm)])
    stripped = [
        " ".join(entry.partition(":")[2] if i else entry for i, entry in enumerate(line.split()))
        for line in ffm.read_text().splitlines()
    ]
    assert svm.read_text().splitlines() == stripped


def test_one_class_is_said(tmp_path, capsys):
    synth.add_synth_cli(["--rows", "1", "--fields", "2", "--out", str(tmp_path / "x")])
    assert "Bayes AUC undefined (one class)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--out x", "synth: the following arguments are required: --rows"),
        ("--rows 0 --out x", "synth: --rows = 0: expected at least 1"),
        ("--rows 5 --out x --fields 0", "synth: --fields = 0: expected at least 1"),
        ("--rows 5 --out x --fields 4 --keys 7", "synth: --keys = 7: expected at least 8"),
        (
            "--rows 5 --out x --positive 1",
            "synth: --positive = 1.0: expected at least 0.001 and at most 0.999",
        ),
        ("--rows 5 --out x --positive nan", "synth: --positive = nan: expected at least 0.001"),
        ("--rows 5 --out x --pair-std -1", "synth: --pair-std = -1.0: expected at least 0"),
        ("--rows 5 --out x --seed -1", "synth: --seed = -1: expected at least 0"),
        ("--rows 5 --out x --k 0", "synth: --k = 0: expected at least 1"),
        ("--rows x --out x", "synth: argument --rows: invalid int value: 'x'"),
        ("--row 5 --out x", "synth: the following arguments are required: --rows"),  # no abbreviations
        ("--rows 5 --out nowhere/x", "cannot write nowhere/x: No such file or directory"),
        ("--rows 5 --out x --format criteo", "synth: argument --format: invalid choice: 'criteo'"),
    ],
)
def test_command_errors(tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        synth.add_synth_cli(argv.split())
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


# --- the sample that ships ---


def test_the_sample_is_what_its_readme_says(tmp_path, monkeypatch, capsys):
    """The command in data/README.md makes the files byte for byte, and its table has the printed figures."""
    readme = (DATA / "README.md").read_text()
    (command,) = [line for line in readme.splitlines() if line.startswith("python -m lightctr_mpi synth ")]
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    assert synth.add_synth_cli(command.split()[4:]) == 0
    for name in ("sample_train.ffm", "sample_test.ffm"):
        made = tmp_path / "data" / name
        assert made.read_bytes() == (DATA / name).read_bytes()
        assert f"{round(made.stat().st_size / 1000)} kB" in readme
    printed = capsys.readouterr().out.split("data/")[1:]
    for block in printed:
        name, rows, share = block.split()[0].rstrip(":"), block.split()[1], block.split(",")[3].split()[0]
        numbers = [word.rstrip(",") for word in block.split() if word.startswith("0.")]
        assert f"| `{name}` | {rows} | {share} % | {' | '.join(numbers)} |" in readme
    assert len(printed) == 2
