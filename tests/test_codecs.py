"""Round trips of rows through every codec, against NumPy and against the error that its formula allows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

from lightctr_mpi import codecs
from lightctr_mpi.config import CODECS
from lightctr_mpi.errors import UserError
from lightctr_mpi.kernels import packing

TABLES = ("uniform8", "log8", "normal8")
EPS = 2.0**-24  # relative error of a rounded float32
GRAIN = 2.0**-149  # least float32 above 0
BIGGEST = float(np.finfo(np.float32).max)

shapes = st.tuples(st.integers(0, 6), st.integers(1, 20))
numbers = st.one_of(
    st.floats(-10, 10, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, GRAIN, -3 * GRAIN, 1e-40, BIGGEST, -BIGGEST, 65504.0, 70000.0]),
)
rows_strategy = shapes.flatmap(lambda shape: arrays(np.float32, shape, elements=numbers))
every_codec = pytest.mark.parametrize("name", CODECS)


def message_of(codec: codecs.Codec, rows: np.ndarray) -> np.ndarray:
    data = np.full(codec.nbytes(*rows.shape), 170, np.uint8)
    codec.encode(rows, data)
    return data


def round_trip(name: str, rows: np.ndarray) -> np.ndarray:
    codec = codecs.build(name)
    out = np.full(rows.shape, np.nan, np.float32)
    codec.decode(message_of(codec, rows), out)
    return out


def largest(rows: np.ndarray) -> float:
    return float(np.abs(rows).max(initial=0))


def bound(name: str, rows: np.ndarray) -> np.ndarray:
    """float64, of the shape of rows: how far a decoded value may be from the value itself."""
    x = np.abs(rows.astype(np.float64))
    if name == "float32":
        return np.zeros_like(x)
    if name == "float16":  # half a unit in the last of 11 places, or half of 2^-24; what does not fit is cut
        return np.maximum(np.maximum(x * 2.0**-11, 2.0**-25), x - 65504)
    if name == "int8":  # half a step; quotient and product are rounded, at numbers up to 127
        return x.max(axis=1, keepdims=True, initial=0) / 254 * (1 + 512 * EPS) + GRAIN
    m = largest(rows)
    slack = 4 * EPS * m + GRAIN  # of quotient, middles and products
    if name == "uniform8":
        return np.where(rows < 0, m / 254, m / 256) + slack
    if name == "log8":
        ratio = 2 ** (1 / 8)
        least = np.where(rows < 0, m * 2 ** (-126 / 8), m * 2 ** (-127 / 8))
        return np.maximum(x * (ratio - 1) / (ratio + 1), least / 2) + slack
    # normal8: half the widest gap, between the last two of 128 quantiles or of 127
    last = 1 - (1 / 512 + 1 / 510) / 2
    gaps = [1 - norm.ppf(0.5 + (last - 0.5) * (n - 1) / n) / norm.ppf(last) for n in (127, 128)]
    return np.full_like(x, m * max(gaps) / 2 + slack)


def test_the_names_are_those_of_the_options():
    assert [codecs.build(name).name for name in CODECS] == list(CODECS)
    assert [codecs.build(name).lossy for name in CODECS] == [False, *[True] * 5]
    with pytest.raises(UserError, match="unknown codec 'float61', did you mean float16"):
        codecs.build("float61")


@pytest.mark.parametrize(
    ("name", "size"),
    [("float32", 840), ("float16", 420), ("int8", 250), ("uniform8", 214), ("log8", 214), ("normal8", 214)],
)
def test_sizes_of_messages(name, size):
    """10 rows of 21 values: 4 or 2 bytes a value, or 1 and 4 for each row or for all of them."""
    codec = codecs.build(name)
    assert codec.nbytes(10, 21) == size
    assert codec.nbytes(0, 21) == codec.nbytes(10, 0) == 0


@every_codec
@settings(deadline=None, max_examples=150)
@given(rows=rows_strategy)
@example(rows=np.array([[BIGGEST, -BIGGEST / 3, 1]], np.float32))
@example(rows=np.array([[200 * GRAIN, -GRAIN, 100 * GRAIN]], np.float32))
@example(rows=np.array([[GRAIN]], np.float32))
def test_errors_are_within_the_bound_of_the_formula(name, rows):
    decoded = round_trip(name, rows).astype(np.float64)
    assert np.isfinite(decoded).all()
    assert (np.abs(decoded - rows) <= bound(name, rows)).all()
    assert (decoded[rows == 0] == 0).all()
    assert (decoded * rows >= 0).all()  # no sign is turned round


@every_codec
@settings(deadline=None, max_examples=50)
@given(rows=rows_strategy)
def test_equal_rows_are_equal_messages_and_equal_rows_again(name, rows):
    codec, other = codecs.build(name), codecs.build(name)
    data = message_of(codec, rows)
    assert message_of(other, rows).tobytes() == message_of(codec, rows).tobytes() == data.tobytes()
    first, second = np.empty_like(rows), np.empty_like(rows)
    codec.decode(data, first)
    other.decode(data, second)
    assert first.tobytes() == second.tobytes()


@every_codec
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (1, 1), (1, 40), (700, 1), (33, 9), (50, 40)])
def test_shapes(name, shape):
    rows = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    decoded = round_trip(name, rows)
    assert decoded.shape == shape
    assert (np.abs(decoded - rows) <= bound(name, rows)).all()


@every_codec
def test_a_message_in_the_middle_of_a_buffer(name):
    codec, rows = codecs.build(name), np.random.default_rng(2).normal(size=(5, 7)).astype(np.float32)
    size = codec.nbytes(5, 7)
    buffer = np.full(size + 40, 99, np.uint8)
    start = (-buffer.ctypes.data) % 4 + 12
    codec.encode(rows, buffer[start : start + size])
    assert (buffer[:start] == 99).all() and (buffer[start + size :] == 99).all()
    assert buffer[start : start + size].tobytes() == message_of(codec, rows).tobytes()
    with pytest.raises(ValueError, match="multiple of 4 bytes"):
        codec.encode(rows, buffer[start + 1 : start + 1 + size])


@every_codec
def test_data_from_anywhere_can_be_read_and_need_no_other_kernel(name):
    codec, rows = codecs.build(name), np.random.default_rng(3).normal(size=(5, 7)).astype(np.float32)
    expected = round_trip(name, rows)
    data = message_of(codec, rows)
    read_only = np.frombuffer(data.tobytes(), np.uint8)
    odd = np.frombuffer(b"x" + data.tobytes(), np.uint8)[1:]
    for source in (read_only, odd):
        out = np.empty_like(rows)
        codec.decode(source, out)
        assert out.tobytes() == expected.tobytes()
    rows.flags.writeable = False
    assert message_of(codec, rows).tobytes() == data.tobytes()
    for kernel in vars(packing).values():
        assert len(getattr(kernel, "signatures", [])) <= 1


@every_codec
def test_torn_messages_are_refused(name):
    codec, rows = codecs.build(name), np.ones((3, 5), np.float32)
    data, out = message_of(codec, rows), np.empty_like(rows)
    for wrong in (data[:-1], data[:0], np.append(data, np.uint8(0)), data.view(np.int8), data[None]):
        with pytest.raises(ValueError, match="message of 3 rows of 5 values has"):
            codec.decode(wrong, out)
    with pytest.raises(ValueError, match="has 0 bytes"):
        codec.decode(data, np.empty((0, 5), np.float32))


@every_codec
def test_arrays_that_do_not_fit_are_refused(name):
    codec, rows = codecs.build(name), np.ones((4, 4), np.float32)
    data = message_of(codec, rows)
    for wrong in (rows.astype(np.float64), rows[0]):
        with pytest.raises(ValueError, match="cannot encode"):
            codec.encode(wrong, data)
        with pytest.raises(ValueError, match="cannot decode into"):
            codec.decode(data, wrong)
    with pytest.raises(ValueError, match="cannot decode into"):
        codec.decode(data, rows.T[:, ::2])
    for place in (data[:-1], np.empty(2 * len(data), np.uint8)[::2], np.frombuffer(bytes(len(data)), "u1")):
        with pytest.raises(ValueError, match="the message needs"):
            codec.encode(rows, place)


@pytest.mark.parametrize("magnitude", [-1.0, -np.inf, np.inf])
@pytest.mark.parametrize("name", ["int8", *TABLES])
def test_scales_that_none_can_have(name, magnitude):
    codec, rows = codecs.build(name), np.ones((2, 3), np.float32)
    data = message_of(codec, rows)
    data[:4].view(np.float32)[0] = magnitude
    with pytest.raises(ValueError, match=f"{name} message with "):
        codec.decode(data, rows)


@pytest.mark.parametrize("magnitude", [0.0, np.nan])
@pytest.mark.parametrize("name", ["int8", *TABLES])
def test_numbers_that_mean_nothing(name, magnitude):
    """All values are 0, or no numbers: yet the message has other numbers."""
    codec, rows = codecs.build(name), np.ones((2, 3), np.float32)
    data = message_of(codec, rows)
    data[:4].view(np.float32)[0] = magnitude
    with pytest.raises(ValueError, match=f"{name} message with "):
        codec.decode(data, rows)


def test_int8_has_no_number_below_minus_127():
    codec, rows = codecs.build("int8"), np.ones((1, 3), np.float32)
    data = message_of(codec, rows)
    data[-1] = 128
    with pytest.raises(ValueError, match="int8 message with a scale or a number"):
        codec.decode(data, rows)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@every_codec
def test_what_is_not_finite_stays_noticeable(name, bad):
    rows = np.random.default_rng(4).normal(size=(3, 4)).astype(np.float32)
    good = round_trip(name, rows)
    rows[1, 2] = bad
    decoded = round_trip(name, rows)
    if name in ("float32", "float16"):
        assert decoded[1, 2] == bad or np.isnan(bad) and np.isnan(decoded[1, 2])
        good[1, 2] = decoded[1, 2]
        assert decoded.tobytes() == good.tobytes()
    elif name == "int8":
        assert np.isnan(decoded[1]).all()
        assert (decoded[[0, 2]] == good[[0, 2]]).all()
    else:
        assert np.isnan(decoded).all()


# --- float16 ---


def test_float16_decodes_every_half_as_numpy_does():
    halves = np.arange(1 << 16, dtype=np.uint16)
    out = np.empty((1 << 10, 1 << 6), np.float32)
    codecs.build("float16").decode(halves.view(np.uint8), out)
    np.testing.assert_array_equal(out.reshape(-1), halves.view(np.float16).astype(np.float32))
    assert (np.signbit(out.reshape(-1)) == (halves >> 15)).all()


def test_float16_rounds_as_numpy_does_around_every_half_and_every_middle():
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[1:] + halves[:-1]) / 2  # exact in float32
    points = np.concatenate([halves, middles])
    points = np.concatenate([points, np.nextafter(points, np.float32(9e9)), np.nextafter(points, -points)])
    points = np.concatenate([points, -points])
    points = points[np.abs(points) <= 65504]
    codec = codecs.build("float16")
    found = message_of(codec, points[None]).view(np.uint16)
    np.testing.assert_array_equal(found, points.astype(np.float16).view(np.uint16))
    assert codec.saturated == 0


def test_float16_clips_and_counts():
    codec = codecs.build("float16")
    rows = np.array([[70000, -65505, 65504, np.inf, -np.inf, np.nan, 1, BIGGEST]], np.float32)
    expected = np.array([[65504, -65504, 65504, np.inf, -np.inf, np.nan, 1, 65504]], np.float32)
    out = np.empty_like(rows)
    for seen in (3, 6):
        codec.decode(message_of(codec, rows), out)
        np.testing.assert_array_equal(out, expected)
        assert codec.saturated == seen


def test_float16_keeps_subnormals_down_to_their_grain():
    rows = np.array([[2.0**-24, 3e-8, 2.0**-15, 1e-8, 2.0**-25]], np.float32)
    expected = np.array([[2.0**-24, 2.0**-24, 2.0**-15, 0, 0]], np.float32)
    np.testing.assert_array_equal(round_trip("float16", rows), expected)


@pytest.mark.parametrize("name", ["float32", "int8", *TABLES])
def test_others_clip_nothing(name):
    codec = codecs.build(name)
    rows = np.array([[BIGGEST, 70000, 1e-30], [-BIGGEST, 0, 0]], np.float32)
    out = np.empty_like(rows)
    codec.decode(message_of(codec, rows), out)
    assert codec.saturated == 0
    np.testing.assert_allclose(out[:, 0], rows[:, 0], rtol=1e-6)  # the largest has a value of its own


# --- int8 ---


def test_int8_sums_are_taken_of_decoded_rows():
    rows = np.array([[100, -50, 0]], np.float32)
    total = round_trip("int8", rows) + round_trip("int8", rows)
    scale = np.float32(100) / np.float32(127)  # -50 / scale is -63.5, which rounds to even
    np.testing.assert_allclose(total, np.array([[200, -128 * scale, 0]]), rtol=1e-6)


def test_int8_scales_are_by_row():
    rows = np.array([[127, 63.4, -1], [0, 0, 0], [1.27e-20, -1e-22, 4e-23]], np.float32)
    data = message_of(codecs.build("int8"), rows)
    np.testing.assert_allclose(data[:12].view(np.float32), [1, 0, 1e-22], rtol=1e-6)
    assert data[12:].view(np.int8).tolist() == [127, 63, -1, 0, 0, 0, 127, -1, 0]


# --- tables ---


def unit_of(name: str) -> np.ndarray:
    return codecs.build(name).unit  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", TABLES)
def test_tables_ascend_from_minus_1_to_1_by_way_of_0(name):
    unit = unit_of(name)
    assert unit.shape == (256,) and unit.dtype == np.float32
    assert (np.diff(unit) > 0).all()
    assert unit[0] == -1 and unit[packing.ZERO] == 0 and unit[255] == 1


def test_tables_are_what_their_names_say():
    below, above = np.arange(1, 128), np.arange(1, 129)
    uniform = np.concatenate([-below[::-1] / 127, [0], above / 128])
    np.testing.assert_allclose(unit_of("uniform8"), uniform, rtol=EPS)
    log = np.concatenate([-np.exp2(-(below - 1) / 8), [0], np.exp2(-(128 - above) / 8)])
    np.testing.assert_allclose(unit_of("log8"), log, rtol=EPS)
    # NormalFloat: equal probabilities between 1/2 and 1 - (1/2) (1/512 + 1/510)
    last = 1 - (1 / 512 + 1 / 510) / 2
    sides = [norm.ppf(0.5 + (last - 0.5) * np.arange(1, n + 1) / n) for n in (127, 128)]
    normal = np.concatenate([-sides[0][::-1], [0], sides[1]]) / norm.ppf(last)
    np.testing.assert_allclose(unit_of("normal8"), normal, rtol=1e-6)


@pytest.mark.parametrize("name", TABLES)
@settings(deadline=None, max_examples=100)
@given(
    rows=rows_strategy.filter(lambda rows: largest(rows) > 1e-30),
    codes=st.lists(st.integers(0, 254), max_size=30),
)
def test_the_nearest_value_is_taken(name, rows, codes):
    """Also for the values of the table themselves, and close to the middles between them."""
    table = largest(rows) * unit_of(name).astype(np.float64)
    chosen = np.array(codes, np.int64)
    middles = (table[chosen] + table[chosen + 1]) / 2
    values = np.concatenate([table, middles, middles * (1 + 1e-6), middles * (1 - 1e-6), rows.reshape(-1)])
    values = values.astype(np.float32)[None]
    decoded = round_trip(name, values).astype(np.float64)
    nearest = np.abs(values.astype(np.float64)[..., None] - table).min(axis=-1)
    slack = 4 * EPS * np.abs(values) + 4 * EPS * np.abs(decoded) + 2 * GRAIN
    assert (np.abs(decoded - values) <= nearest + slack).all()
    np.testing.assert_allclose(decoded[0, :256], table, rtol=4 * EPS, atol=GRAIN)


def test_cells_have_one_middle_at_most():
    unit = unit_of("normal8").astype(np.float64)
    middles = (unit[1:] + unit[:-1]) / 2
    assert np.diff(middles).min() > 1 / packing.CELLS + 2e-6


def test_log8_sees_small_values_beside_large_ones():
    rows = np.array([[1.0, 1e-4, -1e-4, 2e-5]], np.float32)
    np.testing.assert_allclose(round_trip("log8", rows), rows, rtol=0.0434)
    for name in ("uniform8", "normal8"):
        assert (round_trip(name, rows)[0, 1:] == 0).all()
