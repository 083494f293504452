"""Input files that broke other tools (tests/cases.py), as a user meets them: through the command line."""

from __future__ import annotations

import os
import re
import sys

import h5py
import launch
import numpy as np
import pytest
from cases import logloss, parse, sigmoid

from lightctr_mpi import shard
from lightctr_mpi.errors import UserError

MODELS = ("lr", "fm", "ffm")
LIBFFM = ("--data.format", "libffm")
BINARY = "a label -1, 0 or 1"
PRINTED = 6e-9  # half a unit of the eighth decimal, and float32's rounding


@pytest.mark.parametrize("name", MODELS)
def test_row_of_zeros_counts_for_the_bias_alone(program, name):
    model = program.train("all_zero_row.ffm", name=name)
    assert model.norm and model.all_finite()
    predicted = program.predict(model, "all_zero_row.ffm")
    assert predicted[57] == pytest.approx(sigmoid(model.params["bias"][0]), abs=1e-7)
    # What it did to the model is what a row without features does.
    rows = program.lines("all_zero_row.ffm")
    assert rows[57].split(" ", 1)[1] == "0:1:0 1:12:0"
    program.write("bare.ffm", *rows[:57], "1", *rows[58:])
    assert model.same_as(program.train("bare.ffm", name=name, out="bare"))


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_values_that_are_no_numbers_are_rejected_or_skipped(program, value):
    rows = f"{value}_value.ffm"
    for command in (("train", "--data.train", rows), ("convert", rows, "out.h5")):
        expected = f"{rows}:100: found '{value}', expected "
        assert program.refused(*command).startswith(expected)
    assert not (program.folder / "out.h5").exists()
    model = program.train(rows, "--data.on_bad_row", "skip")
    assert "train: 1 malformed rows were skipped" in program.said
    clean = program.lines(rows)
    program.write("clean.ffm", *clean[:99], *clean[100:])
    assert model.same_as(program.train("clean.ffm", out="clean"))
    assert program.refused("predict", model.path, rows).startswith(expected)
    assert len(program.predict(model, rows, "--data.on_bad_row", "skip")) == 199
    assert "1 malformed rows were skipped" in program.errors
    assert program.evaluate(model, rows, "--data.on_bad_row", "skip")["rows"] == 199


def test_blank_lines_are_no_rows(program):
    rows = list(filter(None, program.lines("blank_lines.ffm")))
    assert len(rows) == 51
    program.write("solid.ffm", *rows)
    model = program.train("blank_lines.ffm")
    assert "train: 51 rows" in program.said
    assert model.same_as(program.train("solid.ffm", out="solid"))
    predicted = program.predict(model, "blank_lines.ffm")
    assert predicted.shape == (51,)
    np.testing.assert_array_equal(predicted, program.predict(model, "solid.ffm"))


@pytest.mark.parametrize("name", MODELS)
def test_rows_with_a_label_only(program, name):
    rows = program.lines("label_only_rows.ffm")
    assert (len(rows), rows[3], rows[17]) == (32, "1", "0")
    model = program.train("label_only_rows.ffm", name=name)
    predicted = program.predict(model, "label_only_rows.ffm")
    np.testing.assert_allclose(predicted, model.probabilities(parse("\n".join(rows))), atol=1e-6)
    np.testing.assert_allclose(predicted[[3, 17]], sigmoid(model.params["bias"][0]), atol=1e-7)
    program.write("others.ffm", *(row for row in rows if len(row) > 1))
    others = np.delete(predicted, [3, 17])
    np.testing.assert_array_equal(others, program.predict(model, "others.ffm"))
    labels = [int(row[0]) for row in rows]
    assert program.evaluate(model, "label_only_rows.ffm")["logloss"] == pytest.approx(
        logloss(labels, predicted)
    )


@pytest.mark.parametrize("name", MODELS)
def test_line_ends_blanks_and_tabs_change_nothing(program, name):
    good = program.train("good200.ffm", name=name)
    for rows in ("crlf.ffm", "spaces_tabs.ffm"):
        assert program.train(rows, name=name, out="other").same_as(good)
        predicted = program.predict(good, rows)
        np.testing.assert_array_equal(predicted, program.predict(good, "good200.ffm"))
        os.replace(program.folder / rows, program.folder / "good200.ffm.txt")


def test_libsvm_given_as_libffm(program):
    rows = "libsvm_given_to_ffm.ffm"
    train = ("train", "--data.train", rows, "--model.name")
    assert program.refused(*train, "ffm", *LIBFFM) == f"{rows}:1: found '3:1', expected field:feature:value"
    assert "needs fields" in program.refused(*train, "ffm")
    assert program.train(rows, name="lr").keys == [1, 2, 3, 4, 5]
    assert "libsvm (guessed" in program.said


def test_header_is_an_error_and_a_comment_is_not(program):
    for flags in ((), LIBFFM):
        message = program.refused("train", "--data.train", "header_line.ffm", *flags)
        assert message.startswith(f"header_line.ffm:1: found 'label', expected {BINARY}")
    rows = program.lines("comments.svm")
    program.write("bare.svm", *filter(None, (row.partition("#")[0].rstrip() for row in rows)))
    model = program.train("comments.svm", name="lr")
    assert model.keys == [1, 2, 3]
    assert model.same_as(program.train("bare.svm", name="lr", out="bare"))
    assert len(program.predict(model, "comments.svm")) == 3


def test_labels_minus_one_and_plus_one(program):
    good = program.train("good200.ffm")
    assert program.train("labels_m1_p1.ffm", out="other").same_as(good)
    figures = [program.evaluate(good, rows) for rows in ("good200.ffm", "labels_m1_p1.ffm")]
    assert figures[0] == figures[1]


def test_other_labels_need_a_label_map(program):
    train = ("train", "--data.train", "labels_1_2.ffm")
    assert program.refused(*train).startswith(f"labels_1_2.ffm:1: found '2', expected {BINARY}")
    mapped = program.train("labels_1_2.ffm", "--data.label_map", "1:0,2:1")
    zero_one = [str(int(row[0]) - 1) + row[1:] for row in program.lines("labels_1_2.ffm")]
    program.write("zero_one.ffm", *zero_one)
    assert mapped.same_as(program.train("zero_one.ffm", out="other"))
    # The model remembers what its labels meant.
    assert program.evaluate(mapped, "labels_1_2.ffm") == program.evaluate(
        mapped, "zero_one.ffm", "--data.label_map", ""
    )
    assert program.refused(*train, "--data.label_map", "1:0").startswith(
        "labels_1_2.ffm:1: found '2', expected one of"
    )


def test_soft_labels_when_asked_for(program):
    train = ("train", "--data.train", "label_soft.ffm")
    assert program.refused(*train).startswith(f"label_soft.ffm:1: found '0.7', expected {BINARY}")
    flags = (
        "--data.labels",
        "soft",
        "--optimizer.name",
        "sgd",
        "--optimizer.lr",
        "0.5",
        "--optimizer.l2",
        "0",
    )
    model = program.train("label_soft.ffm", *flags, "--train.epochs", 1, "--train.shuffle", "no", name="lr")
    step = 0.5 * (0.7 - 0.5)  # from weights 0: the first row moves the bias and its two weights
    z = step  # of the second row, which shares the bias only
    second = -0.5 * sigmoid(z)
    x = 1 / np.sqrt(2)
    expected = {1: step * x, 2: second * x, 11: second * x, 12: step * x}
    assert model.params["bias"][0] == pytest.approx(step + second, rel=1e-5)
    np.testing.assert_allclose(model.params["linear"], [expected[key] for key in model.keys], rtol=1e-5)
    program.write("beyond.ffm", "0.7 0:1:1", "1.5 0:1:1")
    assert program.refused("train", "--data.train", "beyond.ffm", *flags).startswith(
        "beyond.ffm:2: found '1.5'"
    )


@pytest.mark.parametrize("name", MODELS)
def test_ids_beyond_32_bits_are_features_of_their_own(program, name):
    model = program.train("id_over_2_32.ffm", "--optimizer.lr", 0.5, name=name)
    assert model.keys == [5, 12, 2**32 + 5]
    large, small = program.predict(model, "id_over_2_32.ffm")[:2]
    assert large > 0.7 and small < 0.3


def test_memory_follows_the_number_of_features_not_the_largest(program):
    sizes = []
    for i, number in enumerate((40, 5 * 10**7, 2**40, 2**64 - 1)):
        rows = [row.replace("50000000", str(number)) for row in program.lines("one_huge_id.ffm")]
        program.write("huge.ffm", *rows)
        model = program.train("huge.ffm", name="ffm", out=f"run{i}")
        ids = {j for row in parse("\n".join(rows)) for j in row[2]}
        assert model.keys == sorted(ids) and model.keys[-1] == number
        assert model.params["factors"].shape == (len(ids), 4, 4)
        sizes.append(model.path.stat().st_size)
        np.testing.assert_allclose(
            program.predict(model, "huge.ffm"), model.probabilities(parse("\n".join(rows))), atol=1e-6
        )
    assert max(sizes) - min(sizes) < 100


def test_memory_is_estimated_before_it_is_taken(program, monkeypatch):
    def too_much(*_):
        raise UserError("no memory")

    monkeypatch.setattr(shard, "alloc_rows", too_much)
    message = program.refused("train", "--data.train", "one_huge_id.ffm", "--model.name", "ffm")
    assert message == "no memory"
    n = len({j for row in parse(program.text("one_huge_id.ffm")) for j in row[2]})
    assert f"read one_huge_id.ffm: 21 rows, {n} features; row store of" in program.out
    # 4 fields x 4 factors, the linear weight and one slot of Adagrad for each, in rows of 64 bytes.
    assert f"model: {n} features, {n * 17 + 1:,} parameters, {n * 48 * 4 / 1e3:.1f} kB" in program.out


@pytest.mark.parametrize(
    ("rows", "found", "expected"),
    [
        ("negative_id.ffm", "'-1'", "a feature number"),
        ("negative_field.ffm", "'-1'", "a field number"),
        ("id_2_64.ffm", "'18446744073709551616'", "a feature number from 0 to 18446744073709551615"),
        ("word_id.ffm", "'abc'", "a feature number"),
        ("underscore_id.ffm", "'1_000'", "a feature number"),
        ("arabic_digit.ffm", "'\u0663'", "a feature number"),
    ],
)
def test_numbers_are_ascii_digits_within_range(program, rows, found, expected):
    model = program.linear({1: 0.5})
    start = f"{rows}:1: found {found}, expected {expected}"
    for command in (
        ("train", "--data.train", rows),
        ("train", "--data.train", rows, *LIBFFM),
        ("train", "--data.train", "good200.ffm", "--data.valid", rows),
        ("predict", model.path, rows, *LIBFFM),
        ("evaluate", model.path, rows, *LIBFFM),
        ("convert", rows, "out.h5"),
    ):
        assert program.refused(*command).startswith(start), command


@pytest.mark.parametrize("name", MODELS)
def test_unseen_features_and_fields_contribute_nothing(program, name):
    model = program.train("good200.ffm", name=name)
    rows = parse(program.text("unseen_at_predict.ffm"))
    assert rows[0][1:3] == ([0, 1, 7], [1, 999, 3])
    expected = model.probabilities(rows)
    np.testing.assert_allclose(program.predict(model, "unseen_at_predict.ffm"), expected, atol=1e-6)
    # Feature 999 is unseen, field 7 matters to the model that has fields.
    fields = int(name == "ffm")
    counted = f"1 values of features and {fields} of fields that the model has not seen count as 0 (1 rows)"
    assert counted in program.errors
    # Not seen, yet part of the length of the row: by hand for LR.
    if name == "lr":
        w, x = dict(zip(model.keys, model.params["linear"], strict=True)), 1 / np.sqrt(3)
        assert expected[0] == pytest.approx(sigmoid(model.params["bias"][0] + x * (w[1] + w[3])))
    # A row store of the same rows says the same.
    program.run("convert", "unseen_at_predict.ffm", "rows.h5")
    np.testing.assert_array_equal(
        program.predict(model, "rows.h5"), program.predict(model, "unseen_at_predict.ffm")
    )
    unseen = [program.evaluate(model, rows)["unseen"] for rows in ("unseen_at_predict.ffm", "rows.h5")]
    assert unseen[0] == unseen[1] == {"rows_affected": 1, "features": 1, "fields": fields, "rows_skipped": 0}


def test_unseen_features_count_alike_in_validation(program):
    """Training with validation rows, and evaluation afterwards, follow one rule."""
    flags = ("--data.valid", "unseen_at_predict.ffm", "--train.epochs", 1)
    model = program.train("good200.ffm", *flags, name="ffm")
    expected = logloss([1, 0], model.probabilities(parse(program.text("unseen_at_predict.ffm"))))
    assert program.history()[0]["valid_logloss"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_values_of_a_repeated_feature_add_up(program, name):
    twice, once = "duplicate_in_row.ffm", "same_as_duplicate.ffm"
    model = program.train(twice, name=name)
    assert model.same_as(program.train(once, name=name, out="once"))
    predicted = program.predict(model, twice)
    np.testing.assert_array_equal(predicted, program.predict(model, once))
    np.testing.assert_allclose(predicted, model.probabilities(parse(program.text(once))), atol=1e-6)
    assert program.evaluate(model, twice) == program.evaluate(model, once)


def test_values_of_a_repeated_feature_add_up_in_libsvm_too(program):
    program.write("twice.svm", "1 1:1 12:1 1:1", "0 2:1 12:1", "1 3:0.5 3:-0.5")
    program.write("once.svm", "1 1:2 12:1", "0 2:1 12:1", "1 3:0")
    model = program.train("twice.svm")
    assert model.same_as(program.train("once.svm", out="once"))


def test_first_feature_may_be_0_or_1(program):
    zero = program.train("zero_based.svm", name="lr")
    one = program.train("one_based.svm", name="lr", out="one")
    assert one.keys == [key + 1 for key in zero.keys]
    predicted = program.predict(zero, "zero_based.svm")
    np.testing.assert_allclose(predicted, program.predict(one, "one_based.svm"), atol=1e-6)
    assert predicted.std() > 0.05
    # Initial factors follow from the key; as they go to 0 the models agree.
    small = ("--model.init_scale", 1e-6, "--train.epochs", 2)
    zero, one = (program.train(f"{n}_based.svm", *small, out=n) for n in ("zero", "one"))
    zero_p, one_p = program.predict(zero, "zero_based.svm"), program.predict(one, "one_based.svm")
    np.testing.assert_allclose(zero_p, one_p, atol=1e-3)


@pytest.mark.parametrize("name", ["lr", "fm"])
def test_width_is_that_of_the_model_not_of_the_file(program, name):
    model = program.train("zero_based.svm", name=name)
    largest, rows = max(model.keys), program.lines("zero_based.svm")
    lacking = [row for row in rows if f" {largest}:" not in row]
    assert 0 < len(lacking) < len(rows)
    program.write("lacking.svm", *lacking)
    predicted = program.predict(model, "lacking.svm")
    of_all = dict(zip(rows, program.predict(model, "zero_based.svm"), strict=True))
    np.testing.assert_array_equal(predicted, [of_all[row] for row in lacking])
    np.testing.assert_allclose(predicted, model.probabilities(parse("\n".join(lacking))), atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_order_of_features_in_a_row_does_not_matter(program, name):
    good, unsorted = (
        program.train(rows, name=name, out=f"of-{rows}") for rows in ("good200.ffm", "unsorted.ffm")
    )
    assert (good.keys, good.fields) == (unsorted.keys, unsorted.fields)
    for array, other in zip(good.arrays.values(), unsorted.arrays.values(), strict=True):
        np.testing.assert_allclose(array, other, atol=2e-5)


def test_criteo_with_and_without_label(program):
    rows = [row.split("\t") for row in program.lines("criteo_train.tsv")]
    assert {len(row) for row in rows} == {40}
    model = program.train("criteo_train.tsv", name="lr")
    assert "criteo (guessed" in program.said
    predicted = program.predict(model, "criteo_test_nolabel.tsv")
    assert program.errors == ""  # every feature was seen: the columns are not shifted
    np.testing.assert_array_equal(predicted, program.predict(model, "criteo_train.tsv"))
    labels = np.array([int(row[0]) for row in rows])
    assert predicted[labels == 1].min() > predicted[labels == 0].max()
    assert "no label" in program.run("evaluate", model.path, "criteo_test_nolabel.tsv")
    message = program.refused("train", "--data.train", "criteo_test_nolabel.tsv", "--data.format", "criteo")
    assert message == "criteo_test_nolabel.tsv: the rows have no labels to train on"
    # Missing cells are no features: one entry for each cell that is there.
    program.run("convert", "criteo_train.tsv", "rows.h5", "--data.format", "criteo")
    with h5py.File(program.folder / "rows.h5") as file:
        lengths = np.diff(file["indptr"][:])
    assert lengths.tolist() == [sum(cell != "" for cell in row[1:]) for row in rows]


def test_criteo_missing_zero_and_negative_are_different(program):
    """Four rows that differ in one count only: each has a feature of its own, the missing one has none."""
    rest = ["7"] * 12 + ["aa"] * 26
    cells = ["", "0", "-1", "1"]
    program.write("four.tsv", *("\t".join([str(i % 2), cell, *rest]) for i, cell in enumerate(cells)))
    model = program.train("four.tsv", "--data.format", "criteo", name="lr")
    assert len(model.keys) == 38 + 3
    assert len(set(program.predict(model, "four.tsv"))) == 4


@pytest.mark.parametrize("columns", [38, 39, 41])
def test_criteo_rows_of_another_width_are_errors(program, columns):
    rows = program.lines("criteo_train.tsv")
    rows[4] = "\t".join((rows[4] + "\tx").split("\t")[:columns])
    program.write("wrong.tsv", *rows)
    message = program.refused("train", "--data.train", "wrong.tsv", "--data.format", "criteo")
    assert message.startswith(f"wrong.tsv:5: found {columns} columns, expected 40 columns")


@pytest.mark.parametrize("stamp", ["new", "restored", "only ctime"])
def test_edited_data_are_read_again(program, stamp):
    """Same name, same size: neither a quick edit nor a time stamp put back brings the old rows."""
    path = program.folder / "good200.ffm"
    before = path.stat()
    first = program.train("good200.ffm")
    rows = program.lines("good200.ffm")
    turned = [("0" if row[0] == "1" else "1") + row[1:] for row in rows]
    if stamp == "only ctime":  # another file under the name, with the old one's times
        program.write("turned.ffm", *turned)
        os.utime(program.folder / "turned.ffm", ns=(before.st_atime_ns, before.st_mtime_ns))
        os.replace(program.folder / "turned.ffm", path)
    else:
        with open(path, "r+b") as stream:
            stream.write(("\n".join(turned) + "\n").encode())
    if stamp == "restored":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    second = program.train("good200.ffm", out="second")
    program.write("fresh.ffm", *turned)
    assert second.same_as(program.train("fresh.ffm", out="fresh"))
    assert not second.same_as(first)


def test_cache_is_used_when_nothing_changed(program):
    program.train("good200.ffm")
    caches = list((program.folder / ".lightctr_cache").iterdir())
    assert len(caches) == 1 and "read good200.ffm" in program.said
    number = caches[0].stat().st_ino
    program.train("good200.ffm", out="again")
    assert "read good200.ffm" not in program.said
    assert caches[0].stat().st_ino == number
    # Touched but equal: still used.
    os.utime(program.folder / "good200.ffm")
    program.train("good200.ffm", out="touched")
    assert "read good200.ffm" not in program.said


def test_cache_follows_the_options(program):
    """The labels turned round give an LR with the opposite signs, whatever was read before."""
    zeros, ones = ("--data.label_map", "1:0,2:1"), ("--data.label_map", "1:1,2:0")
    first = program.train("labels_1_2.ffm", *zeros, name="lr")
    turned = program.train("labels_1_2.ffm", *ones, name="lr", out="turned")
    np.testing.assert_allclose(turned.params["linear"], -first.params["linear"], rtol=1e-3)
    assert np.abs(first.params["linear"]).max() > 0.01
    assert program.train("labels_1_2.ffm", *zeros, name="lr", out="again").same_as(first)


@pytest.mark.parametrize("damage", ["empty", "half", "no HDF5", "another HDF5"])
def test_damaged_cache_is_made_again(program, damage):
    first = program.train("good200.ffm")
    (cache,) = (program.folder / ".lightctr_cache").iterdir()
    data = cache.read_bytes()
    if damage == "another HDF5":
        with h5py.File(cache, "w") as file:
            file["x"] = np.arange(3)
    else:
        cache.write_bytes({"empty": b"", "half": data[: len(data) // 2], "no HDF5": b"x" * len(data)}[damage])
    assert program.train("good200.ffm", out="again").same_as(first)
    assert "converting again" in program.said
    program.train("good200.ffm", out="third")
    assert "converting again" not in program.said and "read good200.ffm" not in program.said


def test_empty_training_file_is_an_error(program):
    assert program.refused("train", "--data.train", "empty.ffm") == "empty.ffm: no rows to train on"
    program.write("blank.ffm", "", "  ")
    assert program.refused("train", "--data.train", "blank.ffm", *LIBFFM) == "blank.ffm: no rows to train on"


def test_empty_validation_file_leaves_metrics_undefined(program):
    flags = ("--train.epochs", 4)
    model = program.train("good200.ffm", "--data.valid", "empty.ffm", *flags)
    assert "undefined" in program.said
    history = program.history()
    assert [record["epoch"] for record in history] == [1, 2, 3, 4]
    assert {(r["valid_rows"], r["valid_logloss"], r["valid_auc"]) for r in history} == {(0, None, None)}
    # Nothing can be called best: the model is the last one, as without validation.
    assert model.same_as(program.train("good200.ffm", *flags, out="without"))
    assert model.progress["epoch"] == 4


def test_empty_file_to_predict(program):
    model = program.train("good200.ffm")
    assert program.predict(model, "empty.ffm").shape == (0,)
    assert program.text("p.txt") == ""
    assert program.run("predict", model.path, "empty.ffm") == ""
    figures = program.evaluate(model, "empty.ffm")
    assert figures["rows"] == 0
    assert figures["logloss"] is None and figures["reasons"]["logloss"] == "no rows"
    assert "undefined (no rows)" in program.run("evaluate", model.path, "empty.ffm")


def test_one_class_has_no_auc(program):
    model = program.train("good200.ffm", "--data.valid", "one_class.ffm", "--train.epochs", 2)
    assert {record["valid_auc"] for record in program.history()} == {None}
    assert all(record["valid_logloss"] > 0 for record in program.history())
    assert re.search(r"auc +undefined \(one class\)", program.run("evaluate", model.path, "one_class.ffm"))
    figures = program.evaluate(model, "one_class.ffm")
    expected = logloss(np.ones(30), program.predict(model, "one_class.ffm"))
    assert figures["logloss"] == pytest.approx(expected, abs=1e-6)


def test_monitor_that_is_undefined_stops_nothing(program):
    flags = ("--data.valid", "one_class.ffm", "--train.monitor", "valid_auc", "--train.epochs", 5)
    model = program.train("good200.ffm", *flags)
    assert len(program.history()) == 5
    assert model.progress["epoch"] == 5


@pytest.mark.parametrize("name", MODELS)
def test_training_on_one_class(program, name):
    model = program.train("one_class.ffm", "--data.valid", "good50_test.ffm", name=name)
    assert model.all_finite()
    assert program.predict(model, "one_class.ffm").min() > 0.5
    loss = [record["train_logloss"] for record in program.history()]
    assert all(a > b > 0 for a, b in zip(loss, loss[1:], strict=False))


# --- inputs that do not fit the command ---


def test_rows_without_fields_are_no_input_for_ffm(program):
    program.run("convert", "zero_based.svm", "rows.h5")
    model = program.train("good200.ffm", "--train.epochs", 1, name="ffm")
    train = ("train", "--model.name", "ffm", "--data.train")
    for command in (
        (*train, "rows.h5"),
        (*train, "good200.ffm", "--data.valid", "rows.h5"),
        (*train, "good200.ffm", "--data.test", "rows.h5"),
        ("predict", model.path, "rows.h5"),
        ("evaluate", model.path, "zero_based.svm", "--data.format", "libsvm"),
    ):
        assert "model ffm needs fields, which this format has not" in program.refused(*command), command


def test_rows_without_labels_are_no_validation(program):
    for role, use in (("valid", "validate"), ("test", "test")):
        flags = ("train", "--data.train", "criteo_train.tsv", f"--data.{role}", "criteo_test_nolabel.tsv")
        message = program.refused(*flags, "--quiet")
        assert message == f"criteo_test_nolabel.tsv: the rows have no labels to {use} on"


def test_text_beside_a_row_store_is_read_as_the_store_was(program):
    flags = ("--data.label_map", "1:0,2:1")
    program.run("convert", "labels_1_2.ffm", "rows.h5", *flags)
    program.train("rows.h5", "--data.valid", "labels_1_2.ffm", out="store")
    program.train("labels_1_2.ffm", "--data.valid", "labels_1_2.ffm", *flags, out="text")
    losses = [[record["valid_logloss"] for record in program.history(out)] for out in ("store", "text")]
    assert losses[0] == losses[1] and len(losses[0]) > 1


def test_the_configuration_of_a_run_on_a_row_store_repeats_it(program):
    """It names format and columns as the store was read, for the text beside it."""
    rows = [f"{i % 3},{i % 5},{int(i % 3 + i % 5 > 3)}" for i in range(60)]
    program.write("last.csv", *rows)
    flags = ("--data.format", "dense", "--data.label_column", "last")
    program.run("convert", "last.csv", "rows.h5", *flags)
    model = program.train("rows.h5", "--data.valid", "last.csv")
    losses = [record["valid_logloss"] for record in program.history()]
    program.run("train", "run/config.toml", "--out", "again")
    assert [record["valid_logloss"] for record in program.history("again")] == losses
    assert program.model("again").same_as(model)
    program.run("train", "--data.train", "rows.h5", "--data.valid", "last.csv", "--data.format", "auto")
    assert [record["valid_logloss"] for record in program.history("runs/fm")] == losses


@pytest.mark.parametrize("place", ["first", "last"])
def test_dense_rows_of_another_width_than_in_training_are_refused(program, place):
    """Without the label, a feature of 0 and 1 would pass for it."""
    rows = [f"{i % 2},{i % 3},{i % 4},1" for i in range(40)]
    narrow = [row[: -len(",1")] if place == "last" else row.partition(",")[2] for row in rows]
    program.write("rows.csv", *rows)
    program.write("narrow.csv", "", *narrow)
    flags = ("--data.label_column", place)
    model = program.train("rows.csv", *flags)
    assert f"format of rows.csv: dense, label in the {place} column (guessed" in program.said
    expected = "narrow.csv:2: found 3 columns, expected 4 as in the data that came first, label included"
    assert program.refused("predict", model.path, "narrow.csv") == expected
    assert (
        program.refused("train", "--data.train", "rows.csv", "--data.valid", "narrow.csv", *flags) == expected
    )
    assert len(program.predict(model, "rows.csv")) == 40


def test_no_input_is_overwritten(program):
    model = program.train("good200.ffm", "--train.epochs", 1)
    before = {path: path.read_bytes() for path in program.folder.rglob("*") if path.is_file()}
    for command in (
        ("convert", "good200.ffm", "good50_test.ffm"),  # OUT forgotten
        ("convert", "good200.ffm", model.path),
        ("predict", model.path, "good*.ffm", "-o", "good50_test.ffm"),
        ("predict", model.path, "good200.ffm", "-o", model.path),
        ("inspect", model.path, "--export", model.path),
    ):
        assert program.refused(*command).startswith(f"cannot write {command[-1]}: it is "), command
    assert {path: path.read_bytes() for path in program.folder.rglob("*") if path.is_file()} == before
    program.run("convert", "good200.ffm", "rows.h5")
    program.run("convert", "good50_test.ffm", "rows.h5")  # a row store may be made anew
    assert len(program.predict(model, "rows.h5")) == 50


# --- exit codes and streams, in a process of its own ---


def test_malformed_row_ends_with_one_line_and_exit_code_2(run_cli, tmp_path):
    (tmp_path / "rows.ffm").write_text("1 0:1:1 1:12:1\n" * 180 + "1 0:3:1 1:xx:1\n")
    result = run_cli("train", "--data.train", "rows.ffm")
    assert result.returncode == 2
    expected = "rows.ffm:181: found 'xx', expected a feature number from 0 to 18446744073709551615"
    assert result.stderr == f"lightctr_mpi: error: {expected}\n"
    assert not list((tmp_path / "runs").rglob("*.h5"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("trian",), "unknown command 'trian'; did you mean train?"),
        (("predict",), "the following arguments are required: model, rows"),
        (("train", "--data.train", "absent.ffm"), "absent.ffm"),
        (("train", "--data.train", "a\nb\x1b.ffm"), "a\\nb\\x1b.ffm"),
        (("train", "--optimizer.rl", "1"), "--optimizer.rl"),
    ],
)
def test_usage_errors_are_one_line(run_cli, words, message):
    result = run_cli(*words)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("lightctr_mpi: error: ") and message in result.stderr
    assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n")


def test_whoever_reads_the_output_may_go_away(tmp_path):
    """Training goes on without; what has nothing else to do ends with one line."""
    (tmp_path / "rows.ffm").write_text("1 0:1:1 1:12:1\n0 0:2:1\n" * 20)

    def unheard(*words):
        process = launch.start(sys.executable, "-m", "lightctr_mpi", *words, cwd=tmp_path)
        process.stdout.close()
        process.stdout = None
        done = launch.finish(process)
        return done.returncode, done.stderr

    assert unheard("train", "--data.train", "rows.ffm", "--out", "run") == (0, "")
    stopped = (1, "lightctr_mpi: stopped: standard output was closed\n")
    assert unheard("inspect", "run/model.h5") == unheard("evaluate", "run/model.h5", "rows.ffm") == stopped


@pytest.mark.parametrize("words", [("--help",), ("train", "--help"), ("predict", "--help")])
def test_help_is_no_error(words, tmp_path):
    result = launch.cli(*words, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "--" in result.stdout and not list(tmp_path.iterdir())
