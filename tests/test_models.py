"""Models against the float64 reference, and the reference against finite differences."""

import importlib

import numpy as np
import pytest
import reference
from samples import KEYS, KINDS, make_block, make_model, params_of, reference_optimizer

from lightctr_mpi import models, optim
from lightctr_mpi.block import Block
from lightctr_mpi.config import ModelOptions, OptimizerOptions
from lightctr_mpi.errors import UserError
from lightctr_mpi.kernels import losses, sparse
from lightctr_mpi.shard import Shard

MODELS = ["lr", "fm", "ffm"]
SHARES = [("lr", 0.0), ("fm", 0.0), ("ffm", 0.0), ("ffm", 0.7)]  # model, model.share
OPTIMIZERS = [
    OptimizerOptions(name="sgd", lr=0.1, l2=0.01),
    OptimizerOptions(name="adagrad", lr=0.2, l2=0.01),
    OptimizerOptions(name="ftrl", lr=0.1, l2=0.02, l1=0.05, beta=0.5),
]


def backward(model, rows, block, dlogit, l2=0.0, l1=0.0):
    """(dense float32 gradient of the whole table, gradient of the bias) from the package."""
    unique, local = sparse.localize(block.ids, np.full(KEYS, -1, np.int32))
    grad, dbias = np.zeros((len(unique), model.width), np.float32), np.zeros(1)
    model.backward(block, rows, block.ids, local, dlogit, l2, l1, grad, dbias)
    whole = np.zeros((KEYS, model.width), np.float32)
    whole[unique] = grad
    return whole, dbias


@pytest.mark.parametrize("name", MODELS)
def test_reference_gradient_is_the_slope_of_the_reference_loss(name):
    model, _, rows, bias = make_model(name, KINDS["several_per_field"][0], k=3)
    params, row = params_of(model, rows, bias), reference.rows_of(make_block("several_per_field"))[0]
    norm, y, l2, l1 = reference.norm_of(row[2]), 1.0, 0.3, 0.2

    def cost():
        z = reference.logit(name, params, row, norm)
        return reference.loss("logistic", z, y) + reference.penalty(name, params, row, l2, l1)

    z = reference.logit(name, params, row, norm)
    grad = reference.gradient(name, params, row, norm, reference.slope("logistic", z, y), l2, l1)
    for key, value in params.items():
        flat, slopes = value.reshape(-1), np.zeros(value.size)
        for c in range(value.size):
            kept, step = flat[c], 1e-6
            flat[c] = kept + step
            above = cost()
            flat[c] = kept - step
            slopes[c], flat[c] = (above - cost()) / (2 * step), kept
        np.testing.assert_allclose(grad[key].reshape(-1), slopes, atol=1e-8)


@pytest.mark.parametrize("k", [1, 2, 4, 8, 10])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_the_reference(name, kind, k):
    block = make_block(kind)
    for linear, bias_on in ((True, True), (False, False)):
        model, _, rows, bias = make_model(name, KINDS[kind][0], k=k, linear=linear, bias=bias_on)
        params, logit = params_of(model, rows, bias), np.empty(block.n_rows, np.float32)
        model.forward(block, rows, block.ids, bias, logit)
        expected = [
            reference.logit(name, params, row, reference.norm_of(row[2])) for row in reference.rows_of(block)
        ]
        np.testing.assert_allclose(logit, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("k", [3, 4, 16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "share"), SHARES)
def test_gradients_equal_the_reference(name, share, kind, k):
    block, rng = make_block(kind), np.random.default_rng(2)
    dlogit = rng.normal(size=block.n_rows).astype(np.float32)
    for linear, (l2, l1) in ((True, (0.3, 0.2)), (False, (0.0, 0.0))):
        model, _, rows, bias = make_model(name, KINDS[kind][0], k=k, linear=linear, share=share)
        params, total = params_of(model, rows, bias), params_of(model, np.zeros_like(rows))
        for i, row in enumerate(reference.rows_of(block)):
            norm = reference.norm_of(row[2])
            grad = reference.gradient(name, params, row, norm, float(dlogit[i]), l2, l1, share)
            for key in total:
                total[key] += grad[key]
        whole, dbias = backward(model, rows, block, dlogit, l2, l1)
        for key, value in params_of(model, whole, dbias).items():
            np.testing.assert_allclose(value, total[key], rtol=3e-5, atol=3e-6, err_msg=key)


@pytest.mark.parametrize(("loss", "k"), [("logistic", 2), ("logistic", 4), ("squared", 5), ("logistic", 8)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "share"), SHARES)
def test_the_pass_that_does_all_equals_its_parts(name, share, kind, loss, k):
    """`gradient` against `forward`, the loss and `backward`, with sample weights and penalties."""
    model, _, rows, bias = make_model(name, KINDS[kind][0], loss=loss, k=k, share=share)
    block = make_block(kind, n=20)
    block.weights = np.random.default_rng(2).uniform(0.5, 2, 20).astype(np.float32)
    logit, dlogit = np.empty(20, np.float32), np.empty(20, np.float32)
    model.forward(block, rows, block.ids, bias, logit)
    total, weight = losses.evaluate(loss, logit, block.labels, block.weights, dlogit)
    expected, dbias = backward(model, rows, block, dlogit, 0.01, 0.02)
    unique, local = sparse.localize(block.ids, np.full(KEYS, -1, np.int32))
    grad = np.zeros((len(unique), model.width), np.float32)
    sums = model.gradient(block, rows, block.ids, local, bias, 0.01, 0.02, grad)
    assert sums == pytest.approx((total, weight, float(dbias[0])), rel=1e-5, abs=1e-5)
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(grad, expected[unique], rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("k", [2, 4, 16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIMIZERS, ids=lambda o: o.name)
@pytest.mark.parametrize(("name", "share"), SHARES)
def test_sweep_equals_the_sequential_reference(name, share, options, kind, k):
    block, order = make_block(kind, 20), np.random.default_rng(4).permutation(20)
    model, moves, rows, bias = make_model(name, KINDS[kind][0], k=k, optimizer=options, share=share)
    params, other = params_of(model, rows, bias), reference_optimizer(options)
    state, listed = reference.start(params, other), reference.rows_of(block)
    for _ in range(2):
        sums = np.zeros(2)
        model.sweep(block, order, rows, block.ids, bias, moves, sums)
        mean = reference.epoch(
            name, "logistic", params, state, other, listed, block.labels, order, share=share
        )
        assert sums[0] / sums[1] == pytest.approx(mean, rel=1e-5)
        assert sums[1] == 20
    for key, value in params_of(model, rows, bias).items():
        np.testing.assert_allclose(value, params[key], rtol=1e-4, atol=1e-5, err_msg=key)
    for slot in range(moves.slots):
        of_slot = rows[:, model.width * (1 + slot) : model.width * (2 + slot)]
        for key, value in params_of(model, of_slot, bias[1 + slot :]).items():
            np.testing.assert_allclose(value, state[key][slot], rtol=1e-4, atol=1e-4, err_msg=key)


@pytest.mark.parametrize("options", OPTIMIZERS, ids=lambda o: o.name)
@pytest.mark.parametrize("name", MODELS)
def test_sweep_of_one_row_equals_a_batch_of_one_row(name, options):
    for kind in ("several_per_field", "few_of_many_fields"):
        block = make_block(kind, 1)
        model, moves, rows, bias = make_model(name, KINDS[kind][0], k=4, optimizer=options)
        swept, swept_bias = rows.copy(), bias.copy()
        model.sweep(block, np.zeros(1, np.int64), swept, block.ids, swept_bias, moves, np.zeros(2))

        unique, local = sparse.localize(block.ids, np.full(KEYS, -1, np.int32))
        logit, dlogit, dbias = np.empty(1, np.float32), np.empty(1, np.float32), np.zeros(1)
        grad = np.zeros((len(unique), model.width), np.float32)
        model.forward(block, rows, block.ids, bias, logit)
        losses.evaluate("logistic", logit, block.labels, None, dlogit)
        model.backward(block, rows, block.ids, local, dlogit, *moves.penalty, grad, dbias)
        moves.apply_rows(rows, unique, rows, unique, model.width, model.width, grad, moves.scale(1))
        moves.apply_dense(bias[:1], bias[1:], dbias.astype(np.float32), moves.scale(1))
        np.testing.assert_allclose(rows, swept, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(bias, swept_bias, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["several_per_field", "one_hot"])
@pytest.mark.parametrize("name", MODELS)
def test_sweep_with_sample_weights_l1_and_squared_loss(name, kind):
    block, rng = make_block(kind, 20), np.random.default_rng(8)
    block.weights = rng.random(20).astype(np.float32)
    block.labels = rng.normal(size=20).astype(np.float32)
    options = OptimizerOptions(name="adagrad", lr=0.2, l2=0.01, l1=0.02)
    how = {"loss": "squared", "k": 8, "optimizer": options, "share": 0.0}
    model, moves, rows, bias = make_model(name, KINDS[kind][0], **how)
    params, other = params_of(model, rows, bias), reference_optimizer(options)
    state, order, sums = reference.start(params, other), np.arange(20), np.zeros(2)
    model.sweep(block, order, rows, block.ids, bias, moves, sums)
    mean = reference.epoch(
        name,
        "squared",
        params,
        state,
        other,
        reference.rows_of(block),
        block.labels,
        order,
        True,
        block.weights,
    )
    assert sums[0] / sums[1] == pytest.approx(mean, rel=1e-5)
    assert sums[1] == pytest.approx(block.weights.sum(dtype=np.float64))
    for key, value in params_of(model, rows, bias).items():
        np.testing.assert_allclose(value, params[key], rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_zero_values_and_unseen_ids_leave_every_parameter_but_the_bias(name):
    block = make_block("one_hot", 3)
    block.values = np.ones(block.nnz, np.float32)
    block.values[:5] = 0  # row 0: all zero; row 1: all unseen
    block.ids[5:10] = -1
    options = OptimizerOptions(name="adagrad", lr=0.2, l2=0.1)
    model, moves, rows, bias = make_model(name, 5, optimizer=options)
    before, b0 = rows.copy(), bias[0]
    logit = np.empty(3, np.float32)
    model.forward(block, rows, block.ids, bias, logit)
    assert logit[0] == logit[1] == b0 != logit[2]
    model.sweep(block, np.arange(2), rows, block.ids, bias, moves, np.zeros(2))
    np.testing.assert_array_equal(rows, before)
    assert bias[0] != b0


@pytest.mark.parametrize("name", ["fm", "ffm"])
def test_columns_that_fill_up_a_vector_stay_zero(name):
    block = make_block("several_per_field", 20)
    options = OptimizerOptions(name="adagrad", lr=0.2, l2=0.1)
    model, moves, rows, bias = make_model(name, 4, k=3, optimizer=options)
    model.sweep(block, np.arange(20), rows, block.ids, bias, moves, np.zeros(2))
    used = np.zeros(model.width, bool)
    for _, columns, _ in model.parts():
        used[columns] = True
    assert used.sum() == (3 if name == "fm" else 12) + 1 < model.width
    assert not rows[:, : model.width][:, ~used].any()


def test_read_only_and_strided_blocks_give_the_same_model_through_the_same_machine_code():
    block = make_block("several_per_field", 20)
    model, moves, rows, bias = make_model("fm", 4, optimizer=OPTIMIZERS[1])
    other_rows, other_bias = rows.copy(), bias.copy()
    model.sweep(block, np.arange(20), rows, block.ids, bias, moves, np.zeros(2))
    for array in (block.indptr, block.ids, block.values, block.labels, block.norms):
        array.flags.writeable = False
    order = np.arange(40)[::2] // 2
    model.sweep(block, order, other_rows, block.ids, other_bias, moves, np.zeros(2))
    np.testing.assert_array_equal(rows, other_rows)
    from lightctr_mpi.kernels import fm

    kernel = fm.make_sweep(*model._sweep_codes(moves))
    assert len(kernel.signatures) == 1


@pytest.mark.parametrize("init", ["normal", "uniform"])
def test_initial_values_depend_on_seed_key_and_column_alone(init):
    model = models.build(ModelOptions(name="ffm", k=4, init=init, init_scale=0.5), 5, "logistic")
    keys = np.arange(20000, dtype=np.uint64) * np.uint64(0x123456789AB)
    rows = np.full((len(keys), 32), np.nan, np.float32)
    model.init_rows(rows, keys, 3)
    assert np.isnan(rows[:, model.width :]).all()
    assert not rows[:, 20 : model.width].any()
    values = rows[:, :20].astype(np.float64)
    order = np.random.default_rng(0).permutation(len(keys))[:500]
    some = np.zeros((500, 32), np.float32)
    model.init_rows(some, keys[order], 3)
    np.testing.assert_array_equal(some[:, :20], rows[order, :20])
    model.init_rows(some, keys[order], 4)
    assert (some[:, :20] != rows[order, :20]).mean() > 0.999
    mean, deviation = (0, 0.5) if init == "normal" else (0.25, 0.5 / np.sqrt(12))
    assert values.mean() == pytest.approx(mean, abs=4 * deviation / np.sqrt(values.size))
    assert values.std() == pytest.approx(deviation, rel=0.01)
    assert abs(np.corrcoef(values.T) - np.eye(20)).max() < 5 / np.sqrt(len(keys))
    fourth = np.mean(((values - mean) / deviation) ** 4)
    assert fourth == pytest.approx(3 if init == "normal" else 1.8, rel=0.02)


def test_ffm_without_fields_is_the_users_error():
    with pytest.raises(UserError, match="fields"):
        models.build(ModelOptions(name="ffm"), 0, "logistic")


@pytest.mark.parametrize("name", MODELS)
def test_every_kernel_is_compiled_for_one_signature(name):
    """Sweep and batch, with and without values and weights, use the same machine code of each kernel."""
    for kind, options in (("one_hot", {"linear": True}), ("several_per_field", {"bias": False})):
        model, moves, rows, bias = make_model(name, KINDS[kind][0], optimizer=OPTIMIZERS[1], **options)
        block = make_block(kind)
        block.weights = None if kind == "one_hot" else np.ones(block.n_rows, np.float32)
        model.sweep(block, np.arange(block.n_rows), rows, block.ids, bias, moves, np.zeros(2))
        model.forward(block, rows, block.ids, bias, np.empty(block.n_rows, np.float32))
        backward(model, rows, block, np.ones(block.n_rows, np.float32))
    counts = {}
    for home in {"lr": ["linear"], "fm": ["fm"], "ffm": ["ffm", "ffmscore"]}[name]:
        module = importlib.import_module(f"lightctr_mpi.kernels.{home}")
        counts |= {
            key: len(kernel.signatures)
            for key, kernel in vars(module).items()
            if hasattr(kernel, "signatures") and kernel.py_func.__module__ == module.__name__
        }
    # Functions called by a kernel that came from the cache have not been loaded themselves.
    assert counts["forward"] == counts["backward"] == max(counts.values()) == 1


def planted_rows(n, seed):
    """One-hot rows of 6 fields with 20 keys each, labels by the sign of a factorization machine of rank 2."""
    rng = np.random.default_rng(seed)
    factors = np.random.default_rng(0).normal(size=(120, 2))
    ids = rng.integers(0, 20, (n, 6)) + 20 * np.arange(6)
    summed = factors[ids].sum(axis=1)
    pairs = (np.square(summed) - np.square(factors[ids]).sum(axis=1)).sum(axis=1)
    block = Block(
        np.arange(0, 6 * n + 1, 6),
        ids.reshape(-1).astype(np.int32),
        np.tile(np.arange(6, dtype=np.int32), n),
        None,
        (pairs > 0).astype(np.float32),
    )
    block.norms = np.full(n, 1 / np.sqrt(6), np.float32)
    return block


def test_blocks_that_move_together_learn_a_factorization_machine_from_fewer_rows():
    train, test = planted_rows(2000, 1), planted_rows(1000, 2)
    loss = {}
    for share in (0.0, 1.0):
        options = ModelOptions(name="ffm", k=4, share=share, init_scale=0.1)
        model, moves = models.build(options, 6, "logistic"), optim.build(OptimizerOptions(), "ffm")
        shard = Shard(model, moves, np.arange(120, dtype=np.uint64), 1)
        logit, slopes = np.empty(1000, np.float32), np.empty(1000, np.float32)
        loss[share] = 1.0
        for _ in range(10):
            model.sweep(train, np.arange(2000), shard.rows, train.ids, shard.bias, moves, np.zeros(2))
            model.forward(test, shard.rows, test.ids, shard.bias, logit)
            total, _ = losses.evaluate("logistic", logit, test.labels, None, slopes)
            loss[share] = min(loss[share], total / 1000)
    assert loss[1.0] < 0.9 * loss[0.0]
