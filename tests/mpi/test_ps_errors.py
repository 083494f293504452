"""Runs that end before their time: all ranks leave soon, with one exception, and another run can begin."""

from __future__ import annotations

import contextlib
import itertools
import time

import numpy as np
import psdata
import pytest
import ringdata
from psdata import (
    BATCH,
    arrays_in,
    arrays_of,
    at_calls,
    fits,
    instead,
    learn,
    one_process,
    run_of,
    same,
    steps_of,
)

from lightctr_mpi import checkpoint
from lightctr_mpi.errors import DataError, Diverged, Fault, Stopped, UserError
from lightctr_mpi.ps import server, worker
from lightctr_mpi.ps.mail import Mail
from lightctr_mpi.ps.master import Master
from lightctr_mpi.ps.protocol import Kind, Message, ProtocolError
from lightctr_mpi.ps.table import KeyTable
from lightctr_mpi.report import NullReport
from lightctr_mpi.train import Fit

pytestmark = pytest.mark.mpi

SOON = 10.0  # seconds, on a crowded machine

folder = pytest.fixture(scope="module")(psdata.shared_folder)


@pytest.fixture
def b(world, folder):
    """Rows; None where the world is too small."""
    if not fits(world.comm, 1):
        return None
    return psdata.bench(world, folder, ringdata.mixed_rows(50), "fm", valid=ringdata.mixed_rows(31, 9))


def whole(b, path="model.h5"):
    """Learn, evaluate and save."""

    def work(store):
        learn(store, b.data, list(steps_of(50, BATCH, 6)))
        return store.evaluate(b.more["valid"], "logistic"), b.save(store, path)

    return work


def fit(b, run, save=lambda *_: None, stop=lambda: False, valid=None):
    return lambda store: Fit(run, store, b.data, valid, NullReport(), save, stop)()


@contextlib.contextmanager
def everybody_raises(comm, kind, match=None):
    """An exception of this very kind with the same text on all ranks."""
    started = time.monotonic()
    with pytest.raises(kind, match=match) as caught:
        yield
    assert type(caught.value) is kind
    assert time.monotonic() - started < SOON
    texts = comm.allgather(str(caught.value))
    assert texts == texts[:1] * comm.size


PROBLEMS = [
    UserError("no such thing"),
    DataError("a.ffm", 7, "x", "a number"),
    Fault("not your fault"),
    ZeroDivisionError("by nothing"),
    UserError("a name \udcff of bytes"),
    AssertionError(),  # without a text
]
PLACES = {
    "a worker learns": (worker, "add_gradient", -1),
    "a worker scores": (worker, "Tally", -1),
    "a server learns": (KeyTable, "apply", 1),
    "a server saves": (server, "save_shard", 1),
    "the Master deals": (Master, "learn", 0),
}


@pytest.mark.parametrize("place", PLACES)
def test_what_one_rank_raises_all_raise(world, b, place):
    if b is None:
        return
    owner, name, rank = PLACES[place]
    run = run_of("fm", "adagrad", BATCH, servers=1)
    for problem in PROBLEMS:

        def fail(problem=problem):
            raise problem

        told = place == "a server saves" and isinstance(problem, UserError)  # in its answer to the Master
        with (
            everybody_raises(world.comm, UserError if told else type(problem)),
            instead(owner, name, at_calls({1: fail}), here=world.rank == rank % world.size),
        ):
            b.run(run, whole(b))
    b.run(run, whole(b))


def torn(kind, cut):
    """For `instead` of Mail.send: the first message of this kind goes out cut."""

    def wrap(send):
        left = [True]

        def call(self, dest, data):
            if left[0] and Message(data, 0).kind is kind:
                left[0] = False
                data = cut(data.copy())
            send(self, dest, data)

        return call

    return wrap


def shorter(data):
    return data[:-8]


def of_another_kind(data):
    data[4] = 99
    return data


def of_another_program(data):
    data[0] ^= 1
    return data


def of_fewer_rows(data):
    """All counts in order, but what is said of the rows."""
    message = Message(data, 0)
    message.head["n"] -= 1
    return data


SENDERS = {Kind.PULL: -1, Kind.PUSH: -1, Kind.COMMIT: -1, Kind.ROWS: 1, Kind.LEASE: 0}
TORN = [
    *itertools.product(SENDERS, [shorter, of_another_kind, of_another_program]),
    *[(kind, of_fewer_rows) for kind in SENDERS if kind is not Kind.COMMIT],  # which has none
]


@pytest.mark.parametrize(("kind", "cut"), TORN)
def test_a_torn_message_ends_the_run(world, b, kind, cut):
    if b is None:
        return
    sender = SENDERS[kind] % world.size
    run = run_of("fm", "adagrad", BATCH, servers=1)
    with (
        everybody_raises(world.comm, ProtocolError, f"from rank {sender} "),
        instead(Mail, "send", torn(kind, cut), here=world.rank == sender),
    ):
        b.run(run, whole(b))


def test_files_that_cannot_be_used_are_told_by_all(world, b, folder):
    if b is None:
        return
    lr = psdata.bench(world, folder, ringdata.mixed_rows(50), "lr")
    path = lr.run(run_of("lr", "sgd", BATCH, servers=1), lambda store: lr.save(store, "lr.h5"))
    run = run_of("fm", "adagrad", BATCH, servers=1)

    def load(store):
        with checkpoint.open(path) as source:
            store.load(source)

    with everybody_raises(world.comm, UserError, "lr.h5 holds another model: its tables are"):
        b.run(run, load)
    with everybody_raises(world.comm, UserError, "^cannot write .*lr.h5/model"):
        b.run(run, whole(b, "lr.h5/model.h5"))
    assert world.rank or sorted(psdata.leftovers(folder)) == []


# --- numbers that are none ---


def test_a_loss_that_is_no_number_ends_the_run(world, b):
    if b is None:
        return
    run = run_of("fm", "adagrad", BATCH, epochs=5, servers=1)

    def wrap(original):
        def call(*arguments):
            dbias, sums = original(*arguments)
            sums.loss = float("nan")
            return dbias, sums

        return call

    with (
        everybody_raises(world.comm, Diverged, "^the training loss became non-finite at step "),
        instead(worker, "add_gradient", wrap, here=world.rank == world.size - 1),
    ):
        b.run(run, fit(b, run))


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("dense", [True, False])
def test_a_parameter_that_is_no_number_ends_the_run(world, b, servers, dense):
    """The only step of the only epoch gives a weight that no loss has seen."""
    if b is None or not fits(world.comm, servers):
        return
    run = run_of("fm", "adagrad", 50, epochs=1, servers=servers)
    saved = []

    def wrap(original):
        def call(*arguments):
            dbias, sums = original(*arguments)
            if dense:
                return float("nan"), sums
            arguments[-1][-1] = np.nan  # the gradient of the last key
            return dbias, sums

        return call

    with (
        everybody_raises(world.comm, Diverged, "^a parameter became non-finite at step 1 "),
        instead(worker, "add_gradient", wrap),
    ):
        b.run(run, fit(b, run, lambda *_: saved.append(1)))
    assert not saved


# --- a request to stop ---


@pytest.mark.parametrize("rank", [0, 1, -1])
def test_a_stop_that_one_rank_is_asked_for_reaches_all(world, b, rank):
    """The Master, a server or a worker. What is saved is the state after so many whole steps."""
    if b is None:
        return
    asked = [False]
    b.stop = lambda: asked[0]
    run = run_of("fm", "ftrl", BATCH, epochs=100_000, servers=1, lease_seconds=0.5)
    saved = []

    def ask_later(original):
        ask = 3 * int(world.rank == rank % world.size)

        def call(*arguments):
            nonlocal ask
            ask -= 1
            asked[0] = asked[0] or ask == 0
            return original(*arguments)

        return call

    owner, name = [(Master, "learn"), (KeyTable, "apply"), (worker, "add_gradient")][rank]
    with everybody_raises(world.comm, Stopped), instead(owner, name, ask_later):
        b.run(
            run,
            lambda store: fit(b, run, lambda *state: saved.append((state[0].step, b.save(store))), b.stop)(
                store
            ),
        )
    if world.rank:
        return
    steps, path = saved[-1]  # epochs may have ended before
    assert steps >= 3
    replica, _ = one_process(b, run, list(steps_of(50, BATCH, steps)))
    same(arrays_of(path), arrays_in(replica))
