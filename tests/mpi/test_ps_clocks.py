"""How old the parameters may be that a worker computes on, and what becomes of a worker that stalls."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import psdata
import pytest
import ringdata
from psdata import (
    BATCH,
    arrays_in,
    arrays_of,
    fits,
    instead,
    lags,
    learn,
    one_process,
    run_of,
    same,
    steps_of,
    wait_for,
)

from lightctr_mpi.ps import worker

pytestmark = pytest.mark.mpi

CLOCKS = 20
STALL_SECONDS = 0.3
LEASE_SECONDS = 0.2

folder = pytest.fixture(scope="module")(psdata.shared_folder)


def some_servers(world):
    """Two where they leave several workers."""
    return 2 if world.size > 4 else 1


def shares_of(b, servers, steps):
    workers = b.comm.size - 1 - servers
    return [min(workers, len(rows)) for rows in steps]


def uneven(comm):
    """For `instead`: all workers are a little slow, by chance, and the last one stalls twice."""
    rng = np.random.default_rng(comm.rank)

    def nap():
        time.sleep(rng.random() * 2e-3)

    stall = {2: lambda: time.sleep(STALL_SECONDS), 5: lambda: time.sleep(STALL_SECONDS)}
    return psdata.at_calls(stall if comm.rank == comm.size - 1 else {}, nap)


@pytest.mark.parametrize(
    ("consistency", "staleness"), [("bsp", 0), ("ssp", 0), ("ssp", 1), ("ssp", 4), ("asp", None)]
)
def test_parameters_are_as_fresh_as_promised(world, folder, consistency, staleness):
    """By the order of pulls and pushes at each server. A server counts as one that lags only if it can."""
    servers = some_servers(world)
    if not fits(world.comm, servers):
        return
    b = psdata.bench(world, folder, ringdata.mixed_rows(50), "fm")
    options = {"servers": servers, "consistency": consistency, "trace": True, "lease_seconds": 60.0}
    options |= {} if staleness is None else {"staleness": staleness}
    if world.size > servers + 2:
        options["slow"] = f"{servers + 1}:10"  # the first worker, by its naps
    run, steps = run_of("fm", "adagrad", BATCH, **options), list(steps_of(50, BATCH, CLOCKS))
    with instead(worker, "add_gradient", uneven(world.comm)):
        found, path = b.run(run, lambda store: (learn(store, b.data, steps), b.save(store)))
    if world.rank:
        return
    shares = shares_of(b, servers, steps)
    assert found[2] == sum(map(len, steps))
    worst = []
    for trace in b.traces(servers):
        pushed = trace[trace["kind"] == psdata.PUSHED]
        wanted = [(clock, share) for clock, n in enumerate(shares) for share in range(n)]
        assert sorted(zip(pushed["clock"].tolist(), pushed["share"].tolist(), strict=True)) == wanted
        worst.append(max(lags(trace, shares)))
    if staleness is not None:
        assert max(worst) <= staleness
    if consistency == "ssp" and staleness and max(shares) > 1:
        assert max(worst) > 0  # the bound is used
    if consistency == "asp":  # what was pulled ahead is one clock old; without bound others go on for ever
        assert max(worst) > 4 if max(shares) > 1 else max(worst) == 1
    if consistency == "bsp":
        replica, _ = one_process(b, run, steps)
        same(arrays_of(path), arrays_in(replica))


@pytest.mark.parametrize("delay", ["constant", "adaptive"])
def test_late_gradients_are_corrected_under_way(world, folder, delay):
    """Every push finds what its lease had pulled; the formulas are test_ps_server.py's."""
    servers = some_servers(world)
    if not fits(world.comm, servers):
        return
    b = psdata.bench(world, folder, psdata.telling_rows(600, 1), "fm")
    run = run_of("fm", "adagrad", 50, servers=servers, consistency="asp", delay=delay)

    def work(store):
        before = store.evaluate(b.data, "logistic")["logloss"]
        learn(store, b.data, list(steps_of(600, 50, 36)))
        return before, store.evaluate(b.data, "logistic")["logloss"], store.end_epoch(1)

    with instead(worker, "add_gradient", uneven(world.comm)):
        before, after, figures = b.run(run, work)
    assert before == pytest.approx(np.log(2)) and after < 0.6  # nothing was known; constant guesses have 0.68
    assert figures["ps_uncorrected"] == figures["ps_homeless"] == 0


# --- leases ---


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("how", ["sleeps", "is stopped"])
def test_the_lease_of_a_worker_that_stalls_passes_on(world, folder, prefetch, how):
    """The last worker stalls until its lease has moved on, or for a while if nobody is there to take it.

    Others wait at the clock for its share. What it has in the end is too late, and counts nowhere.
    """
    servers = some_servers(world)
    if not fits(world.comm, servers):
        return
    comm, alone = world.comm, world.size - 1 - servers == 1
    stalls, moved = comm.rank == comm.size - 1, folder / f"moved-{prefetch}-{how}"
    b = psdata.bench(world, folder, ringdata.mixed_rows(50), "ffm", valid=ringdata.mixed_rows(20, 5))
    b.heard = lambda text: moved.touch() if "goes to another worker" in text else None
    run = run_of("ffm", "adagrad", BATCH, servers=servers, prefetch=prefetch, lease_seconds=LEASE_SECONDS)
    steps = list(steps_of(50, BATCH, 8))
    pids = comm.allgather(os.getpid())
    one_process(b, run, steps)  # loads the kernels: their first calls take longer than a lease

    def lease_has_moved():
        wait_for(moved.exists, 5 * LEASE_SECONDS if alone else 20)

    def stall():
        if how == "sleeps":
            lease_has_moved()
        else:
            os.kill(os.getpid(), signal.SIGSTOP)

    def work(store):
        threads = [] if how == "sleeps" else [psdata.wake(pids[-1], lease_has_moved)]
        sums = learn(store, b.data, steps)
        store.evaluate(b.more["valid"], "logistic")  # for which the late one must be back
        figures, end = store.end_epoch(1), time.monotonic() + 10
        passed_on, refused = figures["ps_passed_on"], figures["ps_refused"]
        while refused < passed_on and time.monotonic() < end:
            refused += store.end_epoch(1)["ps_refused"]
        for thread in threads:
            thread.join()
        return sums, passed_on, refused, b.save(store)

    with instead(worker, "add_gradient", psdata.at_calls({3: stall}), here=stalls):
        sums, passed_on, refused, path = b.run(run, work)
    if comm.rank:
        return
    replica, expected = one_process(b, run, steps)
    assert sums == pytest.approx(expected, rel=1e-6)
    same(arrays_of(path), arrays_in(replica, b.fields))
    assert refused == passed_on
    if alone:
        assert passed_on == 0
    else:
        assert passed_on >= 1
        assert any("has been silent" in note and "goes to another worker" in note for note in b.notes)
        assert any("was refused" in note for note in b.notes)
