"""A worker by itself: what the Master and the servers say is made here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from letterbox import Box

from lightctr_mpi import codecs, models, optim
from lightctr_mpi.block import Block
from lightctr_mpi.config import ModelOptions, OptimizerOptions, PsOptions, Run, TrainOptions
from lightctr_mpi.kernels import sparse
from lightctr_mpi.ps.protocol import (
    FLUSHING,
    NO_KEYS,
    URGENT,
    Kind,
    Message,
    ProtocolError,
    compose,
    compose_bytes,
    compose_keyed,
)
from lightctr_mpi.ps.roles import MASTER, Roles
from lightctr_mpi.ps.worker import Worker

F = np.float32
SERVER, ME = 1, 2
KEYS = np.array([3, 2**40, 2**63], np.uint64)


class Rows:
    """Row i has one entry, of the i-th key and value 1, and label 1."""

    def block(self, rows: np.ndarray) -> Block:
        n = len(rows)
        block = Block(np.arange(n + 1), rows.astype(np.int32), None, None, np.ones(n, F))
        block.norms = np.empty(n, F)
        sparse.row_norms(block.indptr, None, block.norms, True)
        return block


class Post:
    """A worker of two, with one server, and its letter box. Each step has a batch of 8 rows."""

    def __init__(self, optimizer: str = "sgd", **options: Any):
        run = Run(
            "ps",
            model=ModelOptions(name="lr", k=0),
            optimizer=OptimizerOptions(name=optimizer, lr=0.5, l2=0.0),
            train=TrainOptions(batch_size=8),
            ps=PsOptions(**{"servers": 1, **options}),
        )
        model, moves = models.build(run.model, 0, "logistic"), optim.build(run.optimizer, "lr")
        self.box, self.width, self.optimizer = Box(), model.width, moves
        roles = Roles(ME, 4, 1, None, None, ("here",) * 4)
        rows: Any = {"train": Rows()}
        self.worker = Worker(roles, self.box, model, moves, run, KEYS, rows, lambda: False)  # type: ignore[arg-type]

    def sent(self, *kinds: Kind) -> list[Message]:
        return [message for _, message in self.box.out if message.kind in kinds]

    def rows(self, lease: int, n: int = 1, **fields: Any) -> Message:
        data, room = compose_keyed(
            Kind.ROWS,
            NO_KEYS,
            np.zeros(1, F),
            4 * n * self.width,
            **{"n": n, "width": self.width, "lease": lease, **fields},
        )
        room[:] = 0
        return Message(data, SERVER)


def lease(number: int, rows: list[int], clock: int = 0, flags: int = 0) -> Message:
    body = np.array(rows, np.int64).tobytes()
    where = {"lease": number, "clock": clock, "share": 0, "shares": 1, "n": len(rows), "flags": flags}
    return Message(compose_bytes(Kind.LEASE, body, **where), MASTER)


def say(kind: Kind, **fields: Any) -> Message:
    return Message(compose(kind, **fields), MASTER)


@pytest.mark.parametrize("prefetch", [True, False])
def test_what_a_worker_says_in_the_course_of_a_lease(prefetch: bool) -> None:
    post = Post(prefetch=prefetch)
    turns = [[lease(7, [0, 2, 2])], [post.rows(7, 2)], [say(Kind.GRANT, lease=7)], [say(Kind.END)]]
    post.box.inbox = turns
    post.worker.serve()
    told = [(to, message.kind) for to, message in post.box.out if message.kind is not Kind.ALIVE]
    ahead = [(MASTER, Kind.NEXT)]
    expected = [(MASTER, Kind.NEXT), (SERVER, Kind.PULL), *(ahead if prefetch else []), (MASTER, Kind.COMMIT)]
    assert told == [*expected, (SERVER, Kind.PUSH), *([] if prefetch else ahead)]
    (pull,), (push,), (commit,) = post.sent(Kind.PULL), post.sent(Kind.PUSH), post.sent(Kind.COMMIT)
    assert pull.keys().tolist() == push.keys().tolist() == [3, 2**63]
    assert (push.lease, push.clock, push.share, push.shares, push.samples) == (7, 0, 0, 1, 3.0)
    # From weights of 0: probability 1/2 and label 1, so each entry has the gradient -1/2.
    grads = push.row_bytes().view(F).reshape(2, post.width)
    assert grads[:, 0].tolist() == [-0.5, -1.0] and push.dense().tolist() == [-1.5]
    assert (commit.lease, commit.rows, commit.samples) == (7, 3, 3.0)
    assert commit.loss == pytest.approx(3 * np.log(2))


def test_a_refused_result_is_not_pushed() -> None:
    post = Post()
    post.box.inbox = [[lease(7, [0])], [post.rows(7)], [say(Kind.REFUSE, lease=7)], [say(Kind.END)]]
    post.worker.serve()
    assert post.sent(Kind.COMMIT) and not post.sent(Kind.PUSH)


def test_an_urgent_lease_does_not_keep_back_what_its_clock_waits_for() -> None:
    """Lease 2 of clock 1 gets its rows when lease 1 of clock 0 has been pushed, by this same worker."""
    post = Post()

    class Served(Box):
        def receive(self) -> list[Message]:
            if not self.inbox:
                pushed = [message.lease for _, message in self.out if message.kind is Kind.PUSH]
                assert pushed == [1], "nothing will come any more"
                self.inbox = [[post.rows(2)], [say(Kind.GRANT, lease=2)], [say(Kind.END)]]
            return super().receive()

    box = Served()
    box.inbox = [
        [lease(1, [0])],
        [post.rows(1), lease(2, [1], 1, URGENT)],
        [],
        [say(Kind.GRANT, lease=1)],
        [],
        [],
    ]
    post.box = post.worker.mail = post.worker.client.mail = post.worker.signs.mail = box  # type: ignore[assignment]
    post.worker.serve()
    assert [message.lease for message in post.sent(Kind.PUSH)] == [1, 2]


def test_an_urgent_lease_goes_before_the_one_that_is_waited_for() -> None:
    post = Post()
    turns = [[lease(1, [0], 5)], [lease(2, [1], 3, URGENT), post.rows(2)], [say(Kind.GRANT, lease=2)]]
    post.box.inbox = [*turns, [post.rows(1)], [say(Kind.GRANT, lease=1)], [say(Kind.END)]]
    post.worker.serve()
    assert [message.lease for message in post.sent(Kind.PUSH)] == [2, 1]


@pytest.mark.parametrize("samples", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_a_push_with_feedback_moves_as_far_as_one_without(optimizer: str, samples: float) -> None:
    """Sample weights may sum up to less than 1: SGD then takes the sum, as everywhere."""
    moves = []
    for options in ({}, {"push_codec": "float16"}):
        post = Post(optimizer, **options)
        client = post.worker.client
        batch = client.batch(1, 0, 0, 1, Rows().block(np.array([0, 1])))
        grad = np.array([[0.75], [-2.0]], F).repeat(post.width, 1)  # halves hold these exactly
        client.push(batch, grad, -0.5, samples)
        (push,) = post.sent(Kind.PUSH)
        codec = codecs.build(options.get("push_codec", "float32"))
        found = np.empty((2, post.width), F)
        codec.decode(push.row_bytes(), found)
        moves.append(np.append(found, push.dense()) * post.optimizer.scale(push.samples))
    np.testing.assert_allclose(moves[1], moves[0], rtol=1e-3)
    assert np.abs(moves[0]).max() == 2 / (max(samples, 1) if optimizer == "sgd" else 1)


@pytest.mark.parametrize(("consistency", "samples"), [("bsp", 8), ("ssp", 4)])
def test_a_flush_says_how_much_it_counts(consistency: str, samples: float) -> None:
    """In bsp a step is the mean over both workers' samples, else each push is a step of its own."""
    post = Post(top_k=0.5, consistency=consistency)
    client = post.worker.client
    batch = client.batch(1, 0, 0, 1, Rows().block(np.array([0, 1])))
    client.push(batch, np.array([[4.0], [-2.0]], F).repeat(post.width, 1), 0.0, 4.0)
    client.flush()
    client.flush()  # has nothing left
    push, flush, empty = post.sent(Kind.PUSH)
    assert (push.keys().tolist(), push.samples) == ([3], 4)
    assert (flush.keys().tolist(), flush.samples, flush.flags) == ([2**40], samples, FLUSHING)
    assert (flush.row_bytes().view(F) == -2).all()
    assert empty.n == 0 and empty.flags == FLUSHING


@pytest.mark.parametrize("codec", ["float16", "int8"])
def test_clipped_values_go_with_the_push(codec: str) -> None:
    post = Post("adagrad", push_codec=codec)
    client = post.worker.client
    for value, clipped in ((1e5, codec == "float16"), (1.0, False)):
        batch = client.batch(1, 0, 0, 1, Rows().block(np.array([0])))
        client._feedback.drain()  # type: ignore[union-attr]
        client.push(batch, np.full((1, post.width), value, F), 0.0, 1.0)
        assert post.sent(Kind.PUSH)[-1].spare == clipped * post.width


WRONG = {
    "rows that were not asked for": lambda post: post.rows(9),
    "too many rows": lambda post: post.rows(7, 2),
    "rows of another width": lambda post: post.rows(7, 1, width=post.width + 1),
    "a push": lambda post: Message(compose(Kind.PUSH), SERVER),
    "too few rows of data": lambda post: Message(
        compose_keyed(Kind.ROWS, NO_KEYS, np.zeros(1, F), 0, n=1, width=post.width, lease=7)[0], SERVER
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_ends_the_run(wrong: str) -> None:
    post = Post()
    post.box.inbox = [[lease(7, [0])], [WRONG[wrong](post)]]
    with pytest.raises(ProtocolError, match="rank 1"):
        post.worker.serve()


def test_rows_come_once() -> None:
    post = Post()
    post.box.inbox = [[lease(7, [0])], [post.rows(7), post.rows(7)]]
    with pytest.raises(ProtocolError, match="not asked for"):
        post.worker.serve()
