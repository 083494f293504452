"""A server by itself: messages made here, answers read from a letter box that leads nowhere."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from letterbox import Box

from lightctr_mpi import codecs, models, optim
from lightctr_mpi.config import ModelOptions, OptimizerOptions, PsOptions, Run
from lightctr_mpi.ps.protocol import (
    FLUSHING,
    SCORING,
    Kind,
    Message,
    ProtocolError,
    compose,
    compose_json,
    compose_keyed,
)
from lightctr_mpi.ps.roles import MASTER, Roles
from lightctr_mpi.ps.server import Server
from lightctr_mpi.ps.trace import EVENT, Trace

F = np.float32
LR = 0.5
ONE, OTHER = 2, 3  # two workers
KEYS = np.array([1, 5, 9], np.uint64)


class Post:
    """A server and its letter box."""

    def __init__(self, optimizer: str = "sgd", trace: Trace | None = None, workers: int = 2, **options: Any):
        run = Run(
            "ps",
            seed=4,
            model=ModelOptions(name="fm", k=2, init_scale=0.5),
            optimizer=OptimizerOptions(name=optimizer, lr=LR, l2=0.0),
            ps=PsOptions(**{"servers": 1, "consistency": "asp", **options}),
        )
        self.model = models.build(run.model, 0, "logistic")
        self.optimizer = optim.build(run.optimizer, "fm")
        self.box, self.width = Box(), self.model.width
        roles = Roles(1, 2 + workers, 1, None, None, ("here",) * (2 + workers))
        parts = (roles, self.box, self.model, self.optimizer, run)
        self.server = Server(*parts, 10, lambda: False, trace)  # type: ignore[arg-type]
        self.push_codec = codecs.build(run.ps.push_codec)

    def tell(self, data: np.ndarray, source: int) -> None:
        self.server._handle(Message(data, source))

    def pull(
        self, source: int, lease: int, clock: int = 0, share: int = 0, keys=KEYS, flags: int = 0
    ) -> None:
        where = {"lease": lease, "clock": clock, "share": share, "shares": 1, "flags": flags}
        self.tell(compose_keyed(Kind.PULL, keys, **where)[0], source)

    def push(
        self, source: int, lease: int, grads: np.ndarray, keys=KEYS, dense=(0.0,), **fields: Any
    ) -> None:
        size = self.push_codec.nbytes(*grads.shape)
        fields = {"lease": lease, "samples": 1.0, "width": self.width, "shares": 1, **fields}
        data, room = compose_keyed(Kind.PUSH, keys, np.array(dense, F), size, **fields)
        self.push_codec.encode(grads.astype(F), room)
        self.tell(data, source)

    def rows(self, source: int) -> np.ndarray:
        """float32[u, width] of the ROWS that went to a worker last."""
        message = self.box.last(source, Kind.ROWS)
        return message.row_bytes().view(F).reshape(message.n, message.width)

    def weights(self, keys=KEYS) -> np.ndarray:
        """As an evaluation would see them."""
        self.pull(ONE, -1, -1, keys=keys, flags=SCORING)
        return self.rows(ONE)

    def figures(self) -> dict[str, Any]:
        self.tell(compose(Kind.SETTLE), MASTER)
        return self.box.last(MASTER, Kind.SETTLED).json()

    def normal(self, seed: int, n: int = 3) -> np.ndarray:
        return np.random.default_rng(seed).normal(size=(n, self.width)).astype(F)


def answered(post: Post) -> list[int]:
    """Leases of the ROWS sent so far."""
    return [message.lease for _, message in post.box.out if message.kind is Kind.ROWS]


# --- late gradients ---


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("delay", ["none", "constant", "adaptive"])
@pytest.mark.parametrize("picked", [[0, 1, 2], [0, 2]], ids=["all rows", "by top-k"])
def test_a_late_gradient_is_corrected(optimizer: str, delay: str, picked: list[int]) -> None:
    """DC-ASGD: with the weights w of now and b of the pull, g becomes g + lambda g g (w - b).

    Adaptive: lambda = 2 / sqrt(m + 1e-7), where each gradient has moved m = 0.95 m + 0.05 g g on before. g is
    what moves the weights: of SGD the mean, of Adagrad the sum. Adagrad's sums of squares begin at 1.
    """
    post = Post(optimizer, delay=delay)
    post.pull(ONE, 1)
    before = post.rows(ONE).astype(float)
    post.pull(OTHER, 2)
    early, late = post.normal(1), post.normal(2)
    post.push(OTHER, 2, 4 * early, samples=4.0, clock=1)
    post.push(ONE, 1, 8 * late[picked], KEYS[picked], samples=8.0)
    factor = 1 if optimizer == "sgd" else 4
    first, second = factor * early.astype(float), (factor if optimizer == "sgd" else 8) * late.astype(float)
    state = 1 + first**2
    now = before - LR * first / (1 if optimizer == "sgd" else np.sqrt(state))
    strength: Any = {"none": 0.0, "constant": 0.04}.get(delay)
    if strength is None:
        strength = 2 / np.sqrt(0.95 * 0.05 * first**2 + 0.05 * second**2 + 1e-7)
    second += strength * second**2 * (now - before)
    after = now.copy()
    step = LR * second / (1 if optimizer == "sgd" else np.sqrt(state + second**2))
    after[picked] -= step[picked]
    np.testing.assert_allclose(post.weights(), after, rtol=2e-5, atol=2e-6)
    assert post.figures()["uncorrected"] == 0


def test_late_gradients_without_a_backup_are_counted() -> None:
    post = Post(delay="constant", delay_memory=0)
    post.pull(ONE, 1)
    before, grads = post.rows(ONE), post.normal(1)
    post.push(ONE, 1, grads)
    np.testing.assert_allclose(post.weights(), before - LR * grads, rtol=1e-6, atol=1e-7)
    assert post.figures()["uncorrected"] == 3


def test_what_a_worker_flushes_is_not_corrected() -> None:
    post = Post(delay="constant", push_codec="int8")
    post.pull(ONE, 0)
    before, grads = post.rows(ONE), post.normal(1)
    post.push_codec = codecs.build("float32")
    post.push(ONE, 0, grads, flags=FLUSHING, samples=2.0)
    np.testing.assert_allclose(post.weights(), before - LR / 2 * grads, rtol=1e-6, atol=1e-7)
    post.tell(compose(Kind.SETTLE, n=1), MASTER)
    assert post.box.last(MASTER, Kind.SETTLED).json()["uncorrected"] == 0


# --- clocks ---


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([("bsp", 0), ("ssp", 0), ("ssp", 1), ("ssp", 3), ("asp", 99)]),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_pulls_wait_for_their_clock_and_no_longer(how: tuple[str, int], shares: int, chance: Any) -> None:
    """Six clocks, pulls and pushes in any order that workers could bring about."""
    consistency, lag = how
    trace = Trace(None)  # type: ignore[arg-type]
    post = Post(trace=trace, consistency=consistency, staleness=min(lag, 4))
    leases = dict(enumerate(itertools.product(range(6), range(shares)), 1))
    waiting: set[int] = set(leases)
    asked: list[int] = []
    done: set[int] = set()
    while len(done) < len(leases):
        there = answered(post)
        complete = next((c for c in range(6) if any(leases[n][0] == c for n in leases if n not in done)), 6)
        assert set(there) == {n for n in asked if leases[n][0] - lag <= complete}  # no sooner, no later
        pushable = [n for n in there if n not in done]
        if waiting and (not pushable or chance.random() < 0.6):
            number = chance.choice(sorted(waiting)[: 2 * shares + 2])
            waiting.remove(number)
            asked.append(number)
            clock, share = leases[number]
            post.pull(ONE, number, clock, share)
        elif pushable:
            number = chance.choice(pushable)
            done.add(number)
            clock, share = leases[number]
            post.push(ONE, number, post.normal(number), clock=clock, share=share, shares=shares)
    events = np.array(trace._events, EVENT)
    assert len(events) == 2 * len(leases) and sorted(answered(post)) == sorted(leases)
    assert events["complete"].max() == 6


def test_bsp_adds_shares_in_their_order_and_moves_once() -> None:
    """Adagrad tells one step from three; float32 sums tell one order from another."""
    results = []
    for order in itertools.permutations(range(3)):
        post = Post("adagrad", consistency="bsp")
        post.pull(ONE, 1)
        before = post.rows(ONE)
        parts = [(10.0**share * post.normal(share)).astype(F) for share in range(3)]
        for share in order:
            np.testing.assert_array_equal(post.weights(), before)
            post.push(ONE, share, parts[share], dense=(share,), clock=0, share=share, shares=3)
        total = (parts[0] + parts[1]) + parts[2]
        expected = before - LR * total.astype(float) / np.sqrt(1 + total.astype(float) ** 2)
        np.testing.assert_allclose(post.weights(), expected, rtol=1e-5, atol=1e-6)
        figures = post.figures()
        assert figures["dense"] == pytest.approx([-LR * 3 / np.sqrt(10)], rel=1e-6)
        results.append((post.weights().tobytes(), figures["dense"], figures["dense_state"]))
    assert all(result == results[0] for result in results)


def test_bsp_takes_the_mean_over_all_samples_of_a_step() -> None:
    post = Post("sgd", consistency="bsp")
    post.pull(ONE, 1)
    before, one, two = post.rows(ONE), post.normal(1), post.normal(2, 2)
    post.push(ONE, 1, one, share=0, shares=2, samples=3.0, dense=(6.0,))
    post.push(OTHER, 2, two, KEYS[1:], share=1, shares=2, samples=1.0, dense=(2.0,))
    total = one.copy()
    total[1:] += two
    np.testing.assert_allclose(post.weights(), before - LR * total / 4, rtol=1e-5, atol=1e-6)
    assert post.figures()["dense"] == [-LR * 8 / 4]


# --- keys ---


@pytest.mark.parametrize("pull_codec", ["float32", "int8"])
def test_an_evaluation_sees_exact_rows_makes_none_and_never_waits(pull_codec: str) -> None:
    post = Post(consistency="bsp", pull_codec=pull_codec)
    post.pull(ONE, 1)
    post.pull(OTHER, 2, clock=1)  # is held
    assert answered(post) == [1]
    keys = np.array([1, 2, 5, 7], np.uint64)
    found = post.weights(keys)
    table = post.server.table
    exact = table.rows[table.lookup(keys[[0, 2]], create=False), : post.width]
    np.testing.assert_array_equal(found[[0, 2]], exact)
    assert exact.any() and not found[[1, 3]].any()
    assert post.figures()["keys"] == 3 and answered(post) == [1, -1]


def test_gradients_of_keys_without_a_row_are_dropped_and_counted() -> None:
    for consistency, shares in (("asp", 1), ("bsp", 2)):
        post = Post(consistency=consistency, admit_after=2)
        for share in range(shares):
            post.push(ONE, 1 + share, post.normal(1), share=share, shares=shares)
        figures = post.figures()
        assert figures["homeless"] == 3 * shares and figures["keys"] == 0 and figures["finite"]


def test_clipped_values_are_counted_whoever_clips() -> None:
    post = Post(pull_codec="float16", push_codec="float16")
    post.pull(ONE, 1)
    post.push(ONE, 1, np.full((3, post.width), -2e5), spare=5)
    post.push(ONE, 2, post.normal(1), clock=1, spare=2)
    assert post.figures()["saturated"] == 7
    post.push(ONE, 3, np.full((3, post.width), -6e4), clock=2)
    post.push(ONE, 4, np.full((3, post.width), -6e4), clock=3)
    post.pull(OTHER, 5)  # rows of 0.5 (65504 + 6e4 + 6e4) and a little
    assert post.figures()["saturated"] == 7 + 3 * post.width


# --- messages that cannot be ---


def bad_width(post: Post) -> None:
    post.push(ONE, 1, post.normal(1), width=post.width + 8)


def bad_rows(post: Post) -> None:
    post.push(ONE, 1, post.normal(1, 2))


def bad_dense(post: Post) -> None:
    post.push(ONE, 1, post.normal(1), dense=(1.0, 2.0))


def no_dense(post: Post) -> None:
    post.push(ONE, 1, post.normal(1), dense=())


def a_share_twice(post: Post) -> None:
    for _ in range(2):
        post.push(ONE, 1, post.normal(1), shares=2)


def no_such_share(post: Post) -> None:
    post.push(ONE, 1, post.normal(1), share=1)


def none_of_its_kinds(post: Post) -> None:
    post.tell(compose(Kind.NEXT), ONE)


def uneven_dense(post: Post) -> None:
    post.push(ONE, 1, post.normal(1), shares=2)
    post.push(ONE, 2, post.normal(1), share=1, shares=2, dense=(1.0, 2.0))


WRONG = [
    bad_width,
    bad_rows,
    bad_dense,
    no_dense,
    a_share_twice,
    no_such_share,
    none_of_its_kinds,
    uneven_dense,
]


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_ends_the_run(consistency: str, wrong: Any) -> None:
    post = Post(consistency=consistency)
    post.pull(ONE, 1)
    with pytest.raises(ProtocolError):
        wrong(post)


def test_it_serves_until_the_end_and_gives_signs_of_life_under_load() -> None:
    """Also when there is always something to do."""
    post = Post(lease_seconds=1e-9)
    pull = compose_keyed(Kind.PULL, KEYS, lease=1)[0]
    post.box.inbox = [[Message(pull, ONE)] for _ in range(5)]
    post.box.inbox += [[Message(compose(Kind.END), MASTER), Message(pull, ONE)]]
    post.server.serve()
    kinds = [message.kind for _, message in post.box.out]
    assert kinds == [Kind.ROWS, Kind.ALIVE] * 5


def test_eviction_counts_whole_epochs() -> None:
    """Key 1 is seen in epoch 1 only, key 5 in epochs 1 and 2, key 9 in all of them."""
    post = Post(evict_age=1)
    for epoch, left in ((1, 3), (2, 2), (3, 1), (4, 0)):
        if epoch < 4:
            post.pull(ONE, epoch, keys=KEYS[epoch - 1 :])
        post.tell(compose_json(Kind.EVICT, {"epoch": epoch}), MASTER)
        figures = post.box.last(MASTER, Kind.SETTLED).json()
        assert (figures["keys"], figures["evicted"]) == (left, 3 - left)
