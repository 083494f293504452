"""Compilation, the cache on disk, and the vector operations that kernels are written in."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from lightctr_mpi.kernels import jit, simd

ROOT = Path(__file__).parent.parent

# Trains on two rows by a sweep and by a batch, then prints what became of them and whether Numba was needed.
PROGRAM = """
import sys
import numpy as np
from samples import make_block, make_model
from lightctr_mpi.config import OptimizerOptions
from lightctr_mpi.kernels import fm, jit, steps
block = make_block("several_per_field", 2)
options = OptimizerOptions(name="adagrad", lr=0.1, l2=0.0)
model, moves, rows, bias = make_model("fm", 4, optimizer=options)
model.sweep(block, np.arange(2), rows, block.ids, bias, moves, np.zeros(2))
ids, grads = np.zeros(1, np.int32), np.ones((1, model.width), np.float32)
moves.apply_rows(rows, ids, rows, ids, model.width, model.width, grads, 1.0)
print(rows.tobytes().hex(), bias.tobytes().hex())
print("numba" in sys.modules)
print(jit.CACHE_DIR)
"""


def run(cache, **environment):
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    env = os.environ | {"LIGHTCTR_CACHE_DIR": str(cache), "PYTHONPATH": paths} | environment
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


def test_a_second_process_runs_what_the_first_compiled_without_numba(tmp_path):
    first, second = run(tmp_path), run(tmp_path)
    assert (first[1], second[1]) == ("True", "False")
    assert first[0] == second[0]
    assert first[2] == second[2]
    assert Path(first[2]).parent == tmp_path
    names = sorted(path.name.rpartition("-")[0] for path in Path(first[2]).glob("native-*"))
    assert "native-sweep" in names and "native-apply_rows" in names


def test_with_checks_of_bounds_kernels_are_left_to_numba(tmp_path):
    for _ in range(2):
        checked = run(tmp_path, NUMBA_BOUNDSCHECK="1")
        assert checked[1] == "True"
        assert not list(Path(checked[2]).glob("native-*"))


def test_the_cache_folder_is_named_after_all_the_code_depends_on(monkeypatch, tmp_path):
    before = jit._digest()
    assert jit._digest() == before
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    checked = jit._digest()
    monkeypatch.setattr(jit.platform, "python_version", lambda: "3.99.0")
    assert len({before, checked, jit._digest()}) == 3
    (tmp_path / "jit.py").write_text("another source")
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "jit.py"))
    one = jit._digest()
    (tmp_path / "jit.py").write_text("another source, changed")
    assert jit._digest() != one


def test_a_folder_that_others_can_write_to_is_not_trusted(monkeypatch, tmp_path):
    monkeypatch.delenv("LIGHTCTR_CACHE_DIR", raising=False)
    monkeypatch.setattr(jit.tempfile, "gettempdir", lambda: str(tmp_path))
    base = tmp_path / f"lightctr_mpi-{os.getuid()}"
    assert jit._choose_cache_dir().parent == base
    base.chmod(0o777)
    assert jit._choose_cache_dir().parent != base


def test_own_copies_only_what_a_kernel_cannot_take():
    array = np.arange(6, dtype=np.float32)
    assert jit.own(array, np.float32) is array
    locked = array.copy()
    locked.flags.writeable = False
    for other in (locked, array[::2], array.astype(np.float64)):
        mine = jit.own(other, np.float32)
        assert mine.flags.writeable and mine.flags.c_contiguous and mine.dtype == np.float32
        np.testing.assert_array_equal(mine, other)


@jit.jit
def combine4(a, b, x, out):
    left, right = simd.load4(a, 1), simd.load4(b, 0)
    simd.store4(out, 2, simd.fma(simd.splat4(x), left, simd.mul(simd.sign(right), simd.sub(left, right))))
    return simd.total4(left)


@jit.jit
def combine8(a, b, x, out):
    left, right = simd.load8(a, 1), simd.load8(b, 0)
    simd.prefetch(a, np.int64(1) << 40)
    simd.store8(out, 2, simd.div(simd.add(left, simd.splat8(x)), simd.sqrt(right)))
    return simd.total8(left)


def test_vector_operations_equal_numpy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 4)).astype(np.float32), rng.random(12).astype(np.float32)
    b[:3] = [-1, 0, 2]
    x, out = np.float32(1.5), np.full(12, 9, np.float32)
    left, right = a.reshape(-1)[1:5], b[:4]
    assert combine4(a, b, x, out) == pytest.approx(left.sum(), rel=1e-5)
    np.testing.assert_allclose(out[2:6], 1.5 * left + np.sign(right) * (left - right), rtol=1e-5)
    assert (out[[0, 1, 6, 7, 8, 9, 10, 11]] == 9).all()
    b, left = np.abs(b) + np.float32(0.1), a.reshape(-1)[1:9]
    assert combine8(a, b, x, out) == pytest.approx(left.sum(), rel=1e-5)
    np.testing.assert_allclose(out[2:10], (left + 1.5) / np.sqrt(b[:8]), rtol=1e-5)
    assert (out[[0, 1, 10, 11]] == 9).all()


def test_eight_lanes_are_one_register_where_the_cpu_has_them():
    fresh = numba.njit(fastmath=jit.FAST, error_model="numpy")(
        combine8.py_func
    )  # cached code has no assembly
    arrays = np.ones(12, np.float32), np.ones(12, np.float32)
    fresh(*arrays, np.float32(1), np.empty(12, np.float32))
    assembly = next(iter(fresh.inspect_asm().values()))
    wide = jit.llvmlite.binding.get_host_cpu_features().get("avx", False)
    assert ("ymm" in assembly) == wide


@jit.jit
def _inverse_roots(x, out):
    for c in range(0, len(x), 8):
        simd.store8(out[0], c, simd.rsqrt(simd.load8(x, c)))
        simd.store4(out[1], c, simd.rsqrt(simd.load4(x, c)))
        simd.store4(out[1], c + 4, simd.rsqrt(simd.load4(x, c + 4)))


def test_the_inverse_square_root_is_one_of_float32():
    x = np.geomspace(1.2e-38, 3e38, 4096, dtype=np.float32)
    out = np.zeros((2, len(x)), np.float32)
    _inverse_roots(x, out)
    np.testing.assert_allclose(out, np.tile(1 / np.sqrt(x.astype(np.float64)), (2, 1)), rtol=2.5e-7)
