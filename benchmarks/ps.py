"""One server and one worker of the parameter server: mpirun -n 3 python benchmarks/ps.py

Rank 0 is an idle Master, rank 1 the server, rank 2 the worker. The worker pulls and pushes batches of keys
with two requests under way, as training does; in turn with that (A B A B ...) both send each other the bytes
of the same messages by MPI's Sendrecv, so that other load on the machine meets both alike. Rates are medians
over rounds; the share is the time of Sendrecv over the time of a pull or push. Run over two hosts, it shows
how well the link is used.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lightctr_mpi import defaults, models, mpi, optim
from lightctr_mpi.config import CODECS, ModelOptions, OptimizerOptions, PsOptions, Run, TrainOptions
from lightctr_mpi.ps import roles, warm
from lightctr_mpi.ps.client import Batch, Client
from lightctr_mpi.ps.mail import Mail
from lightctr_mpi.ps.master import Master
from lightctr_mpi.ps.protocol import SCORING, Kind, compose
from lightctr_mpi.ps.server import Server

SERVER, WORKER = 1, 2
IN_FLIGHT = 2


class Bench:
    """The ranks of one benchmark; every method is called by all of them."""

    def __init__(self, world: mpi.World, args: argparse.Namespace, codec: str):
        self.world, self.args = world, args
        self.roles = roles.split(world.comm, world.host, 1)
        self.mail = Mail(self.roles.mail, world.status)
        ps = PsOptions(consistency="asp", pull_codec=codec, push_codec=codec)
        self.run = Run(mode="ps", train=TrainOptions(batch_size=args.batch), ps=ps)
        options = defaults.model(ModelOptions(name="fm", k=args.floats, linear=False))
        self.model = models.build(options, 0, "logistic")
        self.optimizer = optim.build(defaults.optimizer(OptimizerOptions(name="adagrad"), "fm"))
        self.run = dataclasses.replace(self.run, model=options)
        mpi.once_per_node(world, lambda: warm.warm(self.model, self.optimizer, self.run))
        rng = np.random.default_rng(1)
        keys = np.unique(rng.integers(0, 2**64 - 1, args.keys, np.uint64))
        self.batches = [np.sort(rng.choice(keys, args.batch, replace=False)) for _ in range(8)]
        parts = (self.roles, self.mail, self.model, self.optimizer, self.run)
        if world.rank == SERVER:
            self.server = Server(*parts, len(keys), lambda: False)
            self.server.table.lookup(keys, create=True)
        elif world.rank == WORKER:
            self.client = Client(*parts, keys)
            self.gradient = rng.normal(size=(args.batch, self.model.width)).astype(np.float32)
        else:
            self.master = Master(*parts, {}, print)
        self._lease = self._clock = 0

    def timed(self, work: Callable[[], None]) -> float:
        """Seconds of `work` on the worker, while the server serves and the Master looks on."""
        self.world.comm.Barrier()
        seconds = 0.0
        if self.world.rank == WORKER:
            start = time.perf_counter()
            work()
            seconds = time.perf_counter() - start
            for rank in (0, SERVER):
                self.mail.send(rank, compose(Kind.END))
        elif self.world.rank == SERVER:
            self.server.serve()
        else:
            while not any(m.kind is Kind.END for m in self.mail.receive()):
                self.mail.rest()
        return self.world.comm.bcast(seconds, WORKER)

    def pulls(self) -> None:
        """`rounds` batches, two under way at a time."""
        under_way: list[Batch] = []
        for i in range(self.args.rounds):
            under_way.append(self._ask(self.batches[i % 8]))
            if len(under_way) == IN_FLIGHT:
                self._wait(under_way.pop(0))
        for batch in under_way:
            self._wait(batch)

    def pushes(self) -> None:
        """`rounds` gradients; the answer to a tiny pull says that the one before has been applied."""
        answers: list[Batch] = []
        for i in range(self.args.rounds):
            batch = self._batch(self.batches[i % 8])
            batch.clock, self._clock = self._clock, self._clock + 1
            self.client.push(batch, self.gradient.copy() if self.lossy else self.gradient, 0.1, 100.0)
            answers.append(self._ask(self.batches[0][:1], SCORING))
            if len(answers) == IN_FLIGHT:
                self._wait(answers.pop(0))
        for batch in answers:
            self._wait(batch)

    @property
    def lossy(self) -> bool:
        return self.run.ps.push_codec != "float32"

    def _batch(self, keys: np.ndarray) -> Batch:
        self._lease += 1
        order, bounds = self.client.circle.split(keys)
        rows = np.empty((len(keys), self.model.width), np.float32)
        nothing: Any = None
        return Batch(
            self._lease, 0, 0, 1, nothing, nothing, keys, order, bounds, rows, np.zeros(1, np.float32)
        )

    def _ask(self, keys: np.ndarray, flags: int = 0) -> Batch:
        batch = self._batch(keys)
        if flags & SCORING:
            batch.clock = -1
        self.client.pull(batch, flags)
        return batch

    def _wait(self, batch: Batch) -> None:
        while batch.missing:
            messages = self.mail.receive()
            for message in messages:
                self.client.arrive(message)
            if not messages:
                self.mail.rest()

    def raw(self, there: int, back: int) -> float:
        """Seconds of as many Sendrecv between server and worker, `there` bytes to the server."""
        comm = self.world.comm
        to_server, to_worker = np.ones(there, np.uint8), np.ones(back, np.uint8)
        comm.Barrier()
        start = time.perf_counter()
        for _ in range(self.args.rounds):
            if self.world.rank == WORKER:
                comm.Sendrecv(to_server, SERVER, 0, to_worker, SERVER, 0)
            elif self.world.rank == SERVER:
                comm.Sendrecv(to_worker, WORKER, 0, to_server, WORKER, 0)
        return comm.bcast(time.perf_counter() - start, WORKER)

    def bytes(self, work: Callable[[], None]) -> tuple[int, int]:
        """Bytes of a round of `work`: (to the server, to the worker)."""
        before = self.mail.sent, self.mail.received
        self.timed(work)
        mine = (self.mail.sent - before[0], self.mail.received - before[1])
        there, back = self.world.comm.bcast(mine, WORKER)
        return there // self.args.rounds, back // self.args.rounds

    def idle(self, seconds: float = 3.0) -> list[float]:
        """Share of a core that Master and server use while nothing is asked of them."""
        begun = time.process_time()
        self.timed(lambda: time.sleep(seconds))
        used = self.world.comm.gather((time.process_time() - begun) / seconds)
        return used[:2] if self.world.rank == 0 else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys at the server")
    parser.add_argument("--batch", type=int, default=50_000, help="keys of a batch")
    parser.add_argument("--floats", type=int, default=40, help="floats of a row, a multiple of 8")
    parser.add_argument("--rounds", type=int, default=20, help="batches between two looks at the clock")
    parser.add_argument("--repeat", type=int, default=5, help="looks at the clock; the median counts")
    parser.add_argument("--codecs", nargs="+", default=list(CODECS))
    args = parser.parse_args()
    world = mpi.world()
    say = print if world.rank == 0 else (lambda *_, **__: None)
    say(f"batches of {args.batch:,} of {args.keys:,} keys, rows of {args.floats} floats")
    say("codec     direction   million rows/s   of Sendrecv   bytes a row   MB a batch")
    for codec in args.codecs:
        bench = Bench(world, args, codec)
        for name, work in (("pull", bench.pulls), ("push", bench.pushes)):
            there, back = bench.bytes(work)
            ours, raw = [], []
            for _ in range(args.repeat):
                raw.append(bench.raw(there, back))
                ours.append(bench.timed(work))
            rows = args.batch * args.rounds
            rate, share = rows / np.median(ours) / 1e6, np.median(raw) / np.median(ours)
            size = there + back
            say(
                f"{codec:<9} {name:<11} {rate:>14.2f} {share:>13.0%} {size / args.batch:>13.1f}"
                f" {size / 1e6:>12.2f}",
                flush=True,
            )
        if codec == args.codecs[0]:
            idle = bench.idle()
    for name, used in zip(("Master", "server"), idle, strict=False):
        say(f"idle {name}: {used:.1%} of a core")


if __name__ == "__main__":
    main()
