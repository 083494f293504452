"""FFM with one sum of squares a block and 16-bit weights, against its definition in NumPy float64."""

from __future__ import annotations

import json

import cases
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightctr_mpi import defaults, mpi, optim
from lightctr_mpi.block import Block
from lightctr_mpi.cli import run
from lightctr_mpi.compact import _to_bfloat16, build_model, build_shard
from lightctr_mpi.config import ModelOptions, OptimizerOptions
from lightctr_mpi.errors import UserError
from lightctr_mpi.stores import Sequential

FIELDS, KEYS = 7, 12
LR, L2, L1, START = 0.3, 1e-3, 2e-3, 0.5


def make(k, storage="float32", **options):
    settings = ModelOptions(name="ffm", k=k, storage=storage, init_scale=0.5, **options)
    adagrad = OptimizerOptions(lr=LR, l2=L2, l1=L1, init=START, sums="block")
    model = build_model(settings, adagrad, FIELDS, "logistic")
    optimizer = optim.build(defaults.optimizer(adagrad, "ffm"))
    return build_shard(model, optimizer, np.arange(KEYS, dtype=np.uint64), 3)


def rows_of(kind, rng, n):
    """(ids, fields, values) of n rows."""
    for _ in range(n):
        if kind == "one hot":
            fields = np.arange(FIELDS)
        elif kind == "shuffled":
            fields = rng.permutation(FIELDS)
        else:  # some fields more than once, others not at all
            fields = rng.integers(0, FIELDS, rng.integers(0, 10))
        ids = rng.permutation(KEYS)[: len(fields)]
        values = np.ones(len(ids)) if kind == "one hot" else rng.normal(size=len(ids))
        yield ids, fields, values


def block_of(rows, labels):
    def joined(i, dtype):
        return np.concatenate([np.asarray(row[i], dtype) for row in rows])

    indptr = np.concatenate(([0], np.cumsum([len(row[0]) for row in rows]))).astype(np.int64)
    block = Block(indptr, joined(0, np.int32), joined(1, np.int32), joined(2, np.float32), labels)
    block.norms = np.ones(len(rows), np.float32)
    return block


class Data:
    def __init__(self, block):
        self.block = block

    def window(self, rows):
        return self.block, rows


def learn_by_definition(shard, rows, labels, share):
    """Weights and sums of squares after one pass, pair after pair in float64; and the sum of the losses."""
    k, bias = shard.model.k, 0.0
    values, state = (array(0, KEYS).astype(np.float64) for array in (shard.weights, shard.rows_of_state))
    w, s = values[:, : FIELDS * k].reshape(KEYS, FIELDS, k), state[:, : FIELDS * k].reshape(KEYS, FIELDS, k)
    linear, squares, bias_squares, total = values[:, -1], state[:, -1], START, 0.0
    for (ids, fields, x), y in zip(rows, labels, strict=True):
        pairs = [(a, b) for a in range(len(ids)) for b in range(a + 1, len(ids)) if x[a] != 0 and x[b] != 0]
        z = bias + sum(x[a] * linear[ids[a]] for a in range(len(ids)))
        z += sum(x[a] * x[b] * w[ids[a], fields[b]] @ w[ids[b], fields[a]] for a, b in pairs)
        total += np.logaddexp(0, z) - y * z
        kappa = 1 / (1 + np.exp(-z)) - y
        along = np.zeros((len(ids), k))  # of all blocks of an entry
        for a, b in pairs:
            along[a] += share * kappa * x[a] * x[b] * w[ids[b], fields[a]]
            along[b] += share * kappa * x[b] * x[a] * w[ids[a], fields[b]]
        for a, b in pairs:
            one, two = (ids[a], fields[b]), (ids[b], fields[a])
            of_one = sum(c != a and x[c] != 0 and fields[c] == fields[b] for c in range(len(ids)))
            of_two = sum(c != b and x[c] != 0 and fields[c] == fields[a] for c in range(len(ids)))
            g = kappa * x[a] * x[b] * w[two] + L2 * w[one] + L1 * np.sign(w[one]) + along[a] / of_one
            h = kappa * x[a] * x[b] * w[one] + L2 * w[two] + L1 * np.sign(w[two]) + along[b] / of_two
            for at, slope in ((one, g), (two, h)):
                s[at] += slope @ slope / k
                w[at] -= LR * slope / np.sqrt(s[at])
        for a, j in enumerate(ids):
            g = kappa * x[a] + L2 * linear[j] + L1 * np.sign(linear[j])
            squares[j] += g * g
            linear[j] -= LR * g / np.sqrt(squares[j])
        bias_squares += kappa**2
        bias -= LR * kappa / np.sqrt(bias_squares)
    return values, state, bias, total


@pytest.mark.parametrize(("k", "share"), [(2, 0.7), (4, 0.7), (8, 0.0), (16, 0.7)])
def test_a_pass_is_the_definition(k, share):
    rng = np.random.default_rng(k)
    for kind in ("one hot", "shuffled", "any"):
        rows = list(rows_of(kind, rng, 40))
        labels = rng.integers(0, 2, len(rows)).astype(np.float32)
        shard = make(k, share=share)
        values, state, bias, total = learn_by_definition(shard, rows, labels, share)
        result = Sequential(shard).learn(Data(block_of(rows, labels)), np.arange(len(rows)), False)
        assert result.loss == pytest.approx(total, rel=1e-5)
        np.testing.assert_allclose(shard.weights(0, KEYS), values, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(shard.rows_of_state(0, KEYS), state, rtol=2e-4)
        assert shard.bias[0] == pytest.approx(bias, rel=1e-4)


@pytest.mark.parametrize(("storage", "k"), [("float16", 2), ("bfloat16", 4), ("float16", 16)])
def test_logits_are_those_of_the_stored_weights(storage, k):
    rng = np.random.default_rng(0)
    rows = list(rows_of("one hot", rng, 5)) + list(rows_of("any", rng, 15))
    block = block_of(rows, np.zeros(len(rows), np.float32))
    packed, plain = make(k, storage), make(k)
    for slot, source in ((None, packed.weights(0, KEYS)), (0, packed.rows_of_state(0, KEYS))):
        for _, columns, _ in plain.model.parts():
            plain.put(np.arange(KEYS), columns, source[:, columns], slot)
    logits = np.empty((2, len(rows)), np.float32)
    for shard, logit in zip((packed, plain), logits, strict=True):
        shard.model.forward(block, shard.rows, block.ids, shard.bias, logit)
    assert np.abs(logits).max() > 0.1
    np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("storage", "digits", "k"), [("float16", 11, 2), ("float16", 11, 4), ("bfloat16", 8, 8)]
)
def test_steps_below_the_last_digit_add_up(storage, digits, k):
    """Rounding to the nearest would leave every weight where it is; on average they move as in float32."""
    n_keys, passes = 30_000, 40  # some thousand steps of a digit: a mean to about 3 %
    settings = ModelOptions(name="ffm", k=k, storage=storage, bias=False, linear=False, share=0.0)
    adagrad = OptimizerOptions(lr=0.02 * 2.0**-digits, l2=0.0, init=1.0, sums="block")
    model = build_model(settings, adagrad, 2, "logistic")
    shard = build_shard(model, optim.build(defaults.optimizer(adagrad, "ffm")), np.arange(n_keys), 1)
    factors = np.zeros((n_keys, 2 * k), np.float32)
    factors[:, :] = 0.75  # between two powers of 2: neighbours are 2^-digits apart
    shard.put(np.arange(n_keys), slice(0, 2 * k), factors)
    ids = np.arange(n_keys, dtype=np.int32)
    rows = [(ids[i : i + 2], [0, 1], [1.0, 1.0]) for i in range(0, n_keys, 2)]
    data, order = Data(block_of(rows, np.ones(len(rows), np.float32))), np.arange(len(rows))
    for p in range(passes):
        np.random.default_rng(p).shuffle(order)
        Sequential(shard).learn(data, order, False)
    touched = np.concatenate([shard.weights(0, n_keys)[::2, k : 2 * k], shard.weights(0, n_keys)[1::2, :k]])
    moved = touched - 0.75
    assert set(np.unique(moved * 2**digits)) >= {0.0, 1.0}  # whole digits, not all of them alike
    slope = 0.75 / (1 + np.exp(k * 0.75**2))
    s = 1 + slope**2 * np.arange(1, passes + 1)
    expected = np.sum(adagrad.lr * slope / np.sqrt(s))
    assert moved.mean() == pytest.approx(expected, rel=0.1)


@given(st.floats(width=32, allow_nan=True))
@settings(deadline=None)
def test_bfloat16_is_the_nearest(number):
    value = np.array([number], np.float32)
    code = int(_to_bfloat16(value)[0])
    with np.errstate(invalid="ignore"):
        every = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
    if not np.isfinite(value[0]):
        assert np.array_equal(every[code], value[0], equal_nan=True)
        return
    finite = np.isfinite(every)
    largest = every[finite].max()
    if abs(float(value[0])) > largest + 2.0**119 / 2:  # beyond half a step: infinite
        assert np.isinf(every[code])
    elif np.isfinite(every[code]):
        assert abs(every[code] - value[0]) == np.abs(every[finite] - value[0]).min()


@pytest.mark.parametrize("storage", ["float32", "float16", "bfloat16"])
def test_what_was_put_in_comes_out(storage):
    shard, rng = make(4, storage), np.random.default_rng(1)
    values = (rng.integers(-64, 65, (KEYS, shard.model.width)) / 32).astype(np.float32)  # exact in 8 bits
    state = np.repeat(rng.random((KEYS, FIELDS)).astype(np.float32), 4, axis=1)
    for _, columns, _ in shard.model.parts():
        shard.put(np.arange(KEYS), columns, values[:, columns])
    shard.put(np.arange(KEYS), slice(0, 4 * FIELDS), state, 0)
    for _, columns, _ in shard.model.parts():
        np.testing.assert_array_equal(shard.weights(0, KEYS)[:, columns], values[:, columns])
    np.testing.assert_array_equal(shard.rows_of_state(0, KEYS)[:, : 4 * FIELDS], state)
    assert shard.all_finite()
    values[:] = np.inf
    shard.put(np.arange(1), slice(0, 4 * FIELDS), values[:1, : 4 * FIELDS])
    assert not shard.all_finite()


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A run within this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mpi, "_world", cases.ALONE)


def write_rows(path, n, seed):
    rng = np.random.default_rng(seed)
    with open(path, "w") as out:
        for _ in range(n):
            ids = rng.integers(0, 5, 4)
            label = int(rng.random() < 1 / (1 + np.exp(2 - ids[0] * ids[1] / 3)))
            out.write(f"{label} " + " ".join(f"{f}:{10 * f + i}:1" for f, i in enumerate(ids)) + "\n")


def logloss(folder):
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["train_logloss"]


def test_a_run_saves_resumes_and_predicts(alone, tmp_path):
    """Stopped and resumed equals through; any other run reads the file; 16 bits learn as well as 32."""
    write_rows("train.ffm", 2000, 0)
    common = "train --data.train train.ffm --model.name ffm --quiet --optimizer.sums block"
    half = f"{common} --model.storage float16"
    assert run(f"{half} --train.epochs 3 --out whole".split()) == 0
    assert run(f"{half} --train.epochs 1 --out parts".split()) == 0
    assert run(f"{half} --train.epochs 3 --out parts --train.resume auto".split()) == 0
    assert logloss(tmp_path / "whole") == logloss(tmp_path / "parts")
    plain = common.replace(" --optimizer.sums block", "")
    assert run(f"{plain} --train.epochs 3 --out full".split()) == 0
    assert logloss(tmp_path / "whole") == pytest.approx(logloss(tmp_path / "full"), abs=5e-3)
    assert run(f"{plain} --train.epochs 4 --out on --train.resume whole/model.h5".split()) == 0
    assert logloss(tmp_path / "on") < logloss(tmp_path / "whole")
    assert run(["predict", "whole/model.h5", "train.ffm", "--out", "p.txt"]) == 0
    assert len((tmp_path / "p.txt").read_text().split()) == 2000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model.name fm --optimizer.sums block", "is for model.name = ffm"),
        ("--model.name ffm --model.storage float16", "needs optimizer.sums = block"),
        ("--model.name ffm --optimizer.name sgd --optimizer.sums block", "belongs to adagrad"),
        ("--model.name ffm --optimizer.sums block --train.sync exact", "row by row"),
        ("--model.name ffm --optimizer.sums block --model.k 5", "a multiple of 8, not 5"),
    ],
)
def test_what_it_cannot_do_is_refused(words, message, alone):
    write_rows("train.ffm", 5, 0)
    with pytest.raises(UserError, match=message):
        run(f"train --data.train train.ffm {words} --out r".split())


def test_k_is_checked():
    with pytest.raises(UserError, match="multiple of 8, not 12"):
        make(12)
