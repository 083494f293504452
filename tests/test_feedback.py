"""What is sent and what is kept add up to the gradients; the largest rows go first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lightctr_mpi import codecs
from lightctr_mpi.codecs.feedback import Feedback, Outgoing
from lightctr_mpi.codecs.topk import top_rows
from lightctr_mpi.config import CODECS
from lightctr_mpi.kernels.table import Dictionary

WIDTH = 3
BIGGEST = np.finfo(np.float32).max


def receive(codec: codecs.Codec, outgoing: Outgoing) -> np.ndarray:
    """Rows as two receivers see them."""
    seen = np.empty_like(outgoing.rows)
    ends = [0, len(seen) // 2, len(seen)]
    for a, b in zip(ends, ends[1:], strict=False):
        data = np.empty(codec.nbytes(b - a, WIDTH), np.uint8)
        outgoing.encode(codec, a, b, data)
        codec.decode(data, seen[a:b])
    return seen


def push(feedback: Feedback, name: str, keys, rows, share: float = 1.0) -> tuple[list[int], np.ndarray]:
    """A whole push: keys sent and rows received."""
    rows = np.array(rows, np.float32)
    outgoing = feedback.prepare(np.array(keys, np.uint64), rows, share)
    seen = receive(codecs.build(name), outgoing)
    outgoing.commit()
    return outgoing.keys.tolist(), seen


# --- top rows ---


def test_top_rows_by_hand():
    rows = np.array([[3, 4], [0, 0], [5, 0], [-6, 0], [0, 0], [1, 1]], np.float32)  # norms 5 0 5 6 0 1.4
    expected = {-1: [], 0: [], 1: [3], 2: [0, 3], 3: [0, 2, 3], 4: [0, 2, 3, 5], 5: [0, 2, 3, 5]}
    for k, picked in (expected | {6: [0, 2, 3, 5], 99: [0, 2, 3, 5]}).items():
        found = top_rows(rows, k)
        assert found.dtype == np.int32 and found.tolist() == picked
    assert top_rows(np.zeros((4, 2), np.float32), 3).tolist() == []
    assert top_rows(np.zeros((0, 2), np.float32), 3).tolist() == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_go_first(bad):
    rows = np.array([[BIGGEST, BIGGEST], [1, bad], [2, 2], [bad, 0]], np.float32)
    assert [top_rows(rows, k).tolist() for k in (1, 2, 3)] == [[1], [1, 3], [0, 1, 3]]


def test_squares_neither_overflow_nor_vanish():
    rows = np.array([[1e-45], [BIGGEST / 2], [3e-45], [0], [BIGGEST]], np.float32)
    assert [top_rows(rows, k).tolist() for k in (1, 2, 3, 4)] == [[4], [1, 4], [1, 2, 4], [0, 1, 2, 4]]


@settings(deadline=None)
@given(
    st.integers(0, 30).flatmap(lambda n: arrays(np.int8, (n, WIDTH), elements=st.integers(-4, 4))),
    st.integers(-2, 33),
)
def test_top_rows_equal_sorting(numbers, k):
    """Small whole numbers have exact squares and many ties."""
    rows = numbers.astype(np.float32)
    squares = (rows.astype(int) ** 2).sum(axis=1)
    order = sorted(range(len(rows)), key=lambda i: (-squares[i], i))
    assert top_rows(rows, k).tolist() == sorted(i for i in order[: max(k, 0)] if squares[i])


# --- feedback ---

pushes = st.lists(
    st.tuples(
        st.lists(st.integers(0, 12), unique=True, max_size=8),
        st.sampled_from([1.0, 0.5, 0.2]),
        st.integers(0, 1000),
    ),
    max_size=6,
)


def gradient(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, WIDTH)) * 10.0 ** rng.integers(-3, 3, (n, 1))).astype(np.float32)


@settings(deadline=None, max_examples=60)
@given(pushes)
def test_largest_rows_in_float32_add_up_bit_for_bit(steps):
    feedback = Feedback(WIDTH)
    kept: dict[int, np.ndarray] = {}  # what an implementation in plain Python keeps
    for keys, share, seed in steps:
        grads = gradient(len(keys), seed)
        wanted = {key: row + kept.get(key, np.float32(0)) for key, row in zip(keys, grads, strict=True)}
        sent, rows = push(feedback, "float32", keys, grads, share)
        assert sent == [key for key in keys if key in set(sent)]  # in the order of the gradient
        assert len(sent) == int(np.ceil(round(share * len(keys), 6)))
        for key, row in zip(sent, rows, strict=True):
            assert row.tobytes() == wanted.pop(key).tobytes()
            kept[key] = np.zeros(WIDTH, np.float32)
        kept |= wanted
    keys, rows = feedback.drain()
    left = {key: row for key, row in sorted(kept.items()) if row.any()}
    assert keys.dtype == np.uint64 and keys.tolist() == list(left)
    assert [row.tobytes() for row in rows] == [row.tobytes() for row in left.values()]


@pytest.mark.parametrize("name", CODECS)
@settings(deadline=None, max_examples=40)
@given(steps=pushes)
def test_sent_and_kept_add_up_to_the_gradients(name, steps):
    feedback = Feedback(WIDTH)
    total, terms = np.zeros((13, WIDTH)), np.zeros((13, WIDTH))
    for keys, share, seed in steps:
        grads = gradient(len(keys), seed)
        total[keys] += grads
        terms[keys] += np.abs(grads)
        sent, rows = push(feedback, name, keys, grads, share)
        total[sent] -= rows
        terms[sent] += np.abs(rows)
    keys, rows = feedback.drain()
    total[keys.tolist()] -= rows
    assert (np.abs(total) <= 2.0**-20 * terms).all()
    assert len(feedback) == 0 and len(feedback.drain()[0]) == 0


def test_halves_add_up_small_gradients_until_they_count():
    feedback, sent, seen = Feedback(WIDTH), 0.0, []
    for _ in range(100):
        _, rows = push(feedback, "float16", [5], [[1e-8] * WIDTH])
        seen.append(rows[0, 0])
        sent += float(rows[0, 0])
    assert seen[0] == 0 and sent == pytest.approx(1e-6, abs=2.0**-25)


def test_what_is_clipped_comes_later():
    feedback = Feedback(WIDTH)
    assert push(feedback, "float16", [5], [[70000, 1, 0]])[1].tolist() == [[65504, 1, 0]]
    assert push(feedback, "float16", [5], [[0, 1, 0]])[1].tolist() == [[4496, 1, 0]]
    assert push(feedback, "float16", [5], [[0, 1, 0]])[1].tolist() == [[0, 1, 0]]


def test_infinity_is_passed_on_without_a_warning(recwarn):
    feedback = Feedback(WIDTH)
    assert push(feedback, "float16", [5], [[np.inf, 1, 0]])[1][0, 0] == np.inf
    assert not np.isfinite(push(feedback, "float16", [5], [[0, 1, 0]])[1][0, 0])
    assert not recwarn.list


def test_several_messages_and_rows_received_whole():
    """Each message has a scale of its own; rows that do not travel leave nothing back."""
    feedback, codec = Feedback(WIDTH), codecs.build("uniform8")
    grads = np.array([[1000, 1, 0], [1, 0.1, 0], [3, 0.1, 0], [128, 64.3, 0]], np.float32)
    outgoing = feedback.prepare(np.array([9, 7, 8, 1], np.uint64), grads.copy())
    data = np.empty(codec.nbytes(1, WIDTH), np.uint8)
    for a in (0, 3):
        outgoing.encode(codec, a, a + 1, data)
    outgoing.whole(1, 3)
    outgoing.commit()
    keys, rows = feedback.drain()
    assert keys.tolist() == [1, 9]
    np.testing.assert_allclose(rows, np.array([[0, 0.3, 0], [0, 1, 0]]), atol=1e-4)


def kept(feedback: Feedback, *keys: int) -> list[list[float]]:
    """What would be added to gradients of these keys. The push it takes to know is given up."""
    return feedback.prepare(np.array(keys, np.uint64), np.zeros((len(keys), WIDTH), np.float32)).rows.tolist()


def test_nothing_changes_before_the_push_is_sent():
    feedback, codec = Feedback(WIDTH), codecs.build("float32")
    push(feedback, "float32", [5, 6], [[1, 2, 3], [9, 9, 9]], 0.5)
    for _ in range(3):
        grads = np.ones((2, WIDTH), np.float32)
        outgoing = feedback.prepare(np.array([4, 5], np.uint64), grads, 0.5)
        assert outgoing.keys.tolist() == [5] and outgoing.picked.tolist() == [1]
        assert receive(codec, outgoing).tolist() == [[2, 3, 4]]
    outgoing.commit()
    assert kept(feedback, 4, 5, 6) == [[1, 1, 1], [0, 0, 0], [0, 0, 0]]


def test_a_push_is_committed_whole_and_once():
    feedback, codec = Feedback(WIDTH), codecs.build("int8")
    keys, grads = np.array([4, 5], np.uint64), np.ones((2, WIDTH), np.float32)
    first = feedback.prepare(keys, grads.copy())
    second = feedback.prepare(keys, grads.copy())
    for late in (lambda: receive(codec, first), lambda: first.whole(0, 2), first.commit):
        with pytest.raises(RuntimeError, match="another one was prepared after it"):
            late()
    second.encode(codec, 0, 1, np.empty(codec.nbytes(1, WIDTH), np.uint8))
    with pytest.raises(RuntimeError, match="1 rows of a push are in no message"):
        second.commit()
    second.whole(1, 2)
    second.commit()
    with pytest.raises(RuntimeError, match="was committed before"):
        second.commit()
    third = feedback.prepare(keys, grads.copy())
    receive(codec, third)
    feedback.drain()
    with pytest.raises(RuntimeError, match="prepared after it"):
        third.commit()


def test_draining_gives_keys_in_order_and_forgets():
    feedback = Feedback(WIDTH)
    keys = [2**64 - 1, 7, 2**63, 8, 9]
    rows = [[1, 0, 0], [2, 0, 0], [3, 0, 0], [9, 0, 0], [0, 0, 0]]
    assert push(feedback, "float32", keys, rows, 0.2)[0] == [8]
    found, left = feedback.drain()
    assert found.tolist() == [7, 2**63, 2**64 - 1] and left[:, 0].tolist() == [2, 3, 1]
    assert kept(feedback, *keys) == [[0, 0, 0]] * 5


def test_many_keys_and_their_memory():
    feedback, n = Feedback(WIDTH), 5000
    keys = np.arange(n)[::-1] << 20
    rows = np.repeat(1 + np.arange(n)[:, None], WIDTH, axis=1)
    push(feedback, "float32", keys[:700], rows[:700], 0.001)  # the row of 700 goes
    push(feedback, "float32", keys, 0 * rows, 0.0001)  # of what was kept, 699
    push(feedback, "float32", keys[700:], rows[700:], 0.0001)  # 5000
    assert len(feedback) == n
    assert n * (24 + 4 * WIDTH) <= feedback.nbytes <= n * (48 + 16 * WIDTH)
    found, left = feedback.drain()
    expected = np.delete(rows, [699, 698, n - 1], axis=0).astype(np.float32)
    np.testing.assert_array_equal(found, np.delete(keys, [699, 698, n - 1])[::-1])
    np.testing.assert_array_equal(left, expected[::-1])
    assert feedback.nbytes < n * 8 * WIDTH  # room for one push


def test_one_look_up_for_each_key_and_push(monkeypatch):
    feedback, asked = Feedback(WIDTH), []
    add = Dictionary.add

    def counted(self, keys):
        asked.append(len(keys))
        return add(self, keys)

    monkeypatch.setattr(Dictionary, "add", counted)
    monkeypatch.setattr(Dictionary, "find", lambda *_: pytest.fail("a second look-up"))
    for _ in range(3):
        push(feedback, "log8", [3, 1, 2], gradient(3, 0), 0.5)
    assert asked == [3, 3, 3]


def test_gradients_of_another_shape_are_refused():
    for rows in (np.ones((2, 2), np.float32), np.ones((3, WIDTH), np.float32), np.ones((WIDTH, 2), "f4").T):
        with pytest.raises(ValueError, match="2 rows of 3 values are not"):
            Feedback(WIDTH).prepare(np.array([4, 5], np.uint64), rows)


@pytest.mark.parametrize(("name", "share"), [*((name, 1.0) for name in CODECS[1:]), ("float32", 0.1)])
def test_descent_on_a_quadratic_arrives_where_it_does_without(name, share):
    """20 rows towards a target: what is left out delays, it does not mislead."""
    target = gradient(20, 3)
    weights, keys, feedback = np.zeros_like(target), np.arange(20), Feedback(WIDTH)
    for _ in range(600):
        sent, rows = push(feedback, name, keys, 0.05 * (weights - target), share)
        weights[sent] -= rows
    assert np.abs(weights - target).max() < 1e-3 * np.abs(target).max()
