"""A worker: takes leases, pulls the rows of their batches, pushes gradients; scores rows for evaluations.

The pull of the next lease is under way while a batch is computed. Whatever a worker waits for, it listens to
the Master, who may give it a lease that another worker let run out, which goes first.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import codecs
from ..block import Block
from ..bound import BoundRows
from ..codecs.feedback import Feedback, Outgoing
from ..config import Run
from ..kernels import sparse
from ..metrics import Tally
from ..models.base import Model
from ..optim.base import Optimizer
from ..stores import EVALUATION_ROWS, add_gradient
from .circle import Circle
from .dense import dense_bounds
from .mail import Mail
from .protocol import (
    FLUSHING,
    NO_FLOATS,
    NO_KEYS,
    SCORING,
    URGENT,
    Kind,
    Message,
    ProtocolError,
    compose,
    compose_bytes,
    compose_keyed,
)
from .roles import MASTER, Roles
from .signs import Signs

ROLES = ("train", "valid", "test")  # EVALUATE names them by number


class Ended(Exception):
    """The Master has ended the run."""


@dataclass
class Batch:
    """Rows with the parameters they need, some of which may still be on their way."""

    lease: int
    clock: int
    share: int
    shares: int
    block: Block
    local: np.ndarray  # int32[nnz] row of `rows` of each entry
    keys: np.ndarray  # uint64[u] ascending
    order: np.ndarray  # int32[u]: keys grouped by server, server s has order[bounds[s]:bounds[s + 1]]
    bounds: np.ndarray
    rows: np.ndarray  # float32[u, width]
    bias: np.ndarray  # float32[1]
    missing: set[int] = field(default_factory=set)  # servers whose rows have not come
    complete: int = -1  # clocks that were complete at every server when it read them


class Worker:
    """One worker of a run.

    Args:
        keys: uint64[n] sorted keys of the model; rows are bound to them.
        rows: the rows of each role.
        stop: whether this rank was asked to stop.
    """

    def __init__(
        self,
        roles: Roles,
        mail: Mail,
        model: Model,
        optimizer: Optimizer,
        run: Run,
        keys: np.ndarray,
        rows: Mapping[str, BoundRows],
        stop: Callable[[], bool],
    ):
        self.roles, self.mail, self.model, self.optimizer, self.run = roles, mail, model, optimizer, run
        self.keys, self.rows = keys, rows
        self.circle = Circle(roles.n_servers)
        self.signs = Signs(mail, stop)
        self._segments = dense_bounds(model, roles.n_servers)
        self._scratch = np.full(len(keys), -1, np.int32)
        self._pull_codec, self._exact = codecs.build(run.ps.pull_codec), codecs.build("float32")
        self._push_codec = codecs.build(run.ps.push_codec)
        lossy = self._push_codec.lossy or run.ps.top_k < 1
        self._feedback = Feedback(model.width) if lossy else None
        self._slowness = slowness(run.ps.slow, roles.rank)
        self._flying: dict[int, Batch] = {}  # by lease: batches whose rows are on their way
        self._ready: deque[Batch] = deque()  # leases in hand, in the order they were given
        self._urgent: deque[Batch] = deque()
        self._commands: deque[Message] = deque()
        self._verdicts: dict[int, bool] = {}
        assert run.train.batch_size is not None
        self._samples = max(1.0, run.train.batch_size / roles.n_workers)  # of a share, as it should be
        self._scored = 0

    def serve(self) -> None:
        """Until the Master ends it."""
        try:
            self._ask()
            while True:
                self.signs.doing = "waiting for a lease"
                self._wait(lambda: bool(self._ready or self._commands))
                if self._commands:
                    self._obey(self._commands.popleft())
                else:
                    self._learn(self._ready.popleft(), ask=True)
        except Ended:
            return

    # --- listening ---

    def _wait(self, arrived: Callable[[], bool], waiting: int = 0) -> None:
        """Listen until `arrived`; a lease that is urgent is done meanwhile."""
        while not arrived():
            messages = self.mail.receive()
            for message in messages:
                self._take(message)
            if self._urgent:
                doing = self.signs.doing
                self._learn(self._urgent.popleft(), ask=False)
                self.signs.doing = doing
            elif not messages:
                self.signs.beat()
                self.mail.rest()

    def _take(self, message: Message) -> None:
        kind = message.kind
        if kind is Kind.ROWS:
            self._arrive(message)
        elif kind is Kind.LEASE:
            batch = self._begin(message)
            (self._urgent if message.flags & URGENT else self._ready).append(batch)
        elif kind in (Kind.GRANT, Kind.REFUSE):
            self._verdicts[message.lease] = kind is Kind.GRANT
        elif kind in (Kind.EVALUATE, Kind.FLUSH):
            self._commands.append(message)
        elif kind is Kind.END:
            raise Ended
        else:
            raise ProtocolError(f"a worker cannot take a {kind.name} from rank {message.source}")

    def _ask(self) -> None:
        self.mail.send(MASTER, compose(Kind.NEXT))

    # --- pulling ---

    def _begin(self, message: Message) -> Batch:
        block = self.rows["train"].block(message.row_numbers())
        batch = self._batch(message.lease, message.clock, message.share, message.shares, block)
        self._pull(batch)
        return batch

    def _batch(self, lease: int, clock: int, share: int, shares: int, block: Block) -> Batch:
        ids, local = sparse.localize(block.ids, self._scratch)
        keys = self.keys[ids]
        order, bounds = self.circle.split(keys)
        rows = np.empty((len(keys), self.model.width), np.float32)
        bias = np.zeros(1, np.float32)
        return Batch(lease, clock, share, shares, block, local, keys, order, bounds, rows, bias)

    def _pull(self, batch: Batch, flags: int = 0) -> None:
        self._flying[batch.lease] = batch
        for server in range(self.roles.n_servers):
            keys = batch.keys[self._places(batch, server)]
            dense = self._segments[server + 1] > self._segments[server]
            if not len(keys) and not dense:
                continue  # nothing of it is there
            where = {"lease": batch.lease, "clock": batch.clock, "share": batch.share, "shares": batch.shares}
            request, _ = compose_keyed(Kind.PULL, keys, NO_FLOATS, 0, flags=flags, **where)
            batch.missing.add(server + 1)
            self.mail.send(server + 1, request)

    def _places(self, batch: Batch, server: int) -> Any:
        """Which of a batch's keys are a server's: int32[u], or all of them."""
        if self.roles.n_servers == 1:
            return slice(None)
        return batch.order[batch.bounds[server] : batch.bounds[server + 1]]

    def _arrive(self, message: Message) -> None:
        batch = self._flying.get(message.lease)
        if batch is None or message.source not in batch.missing:
            raise ProtocolError(f"rank {message.source} sends rows of lease {message.lease}, not asked for")
        server, width = message.source - 1, self.model.width
        n = int(batch.bounds[server + 1] - batch.bounds[server])
        codec = self._exact if batch.clock < 0 else self._pull_codec
        data = message.row_bytes()
        if message.n != n or message.width != width or len(data) != codec.nbytes(n, width):
            raise message.torn(f"{message.n} rows in {len(data)} bytes for {n} keys")
        part = batch.rows if self.roles.n_servers == 1 else np.empty((n, width), np.float32)
        if codec.lossy:
            codec.decode(data, part)
        elif self.roles.n_servers == 1:
            batch.rows = data.view(np.float32).reshape(n, width)
        else:
            part = data.view(np.float32).reshape(n, width)
        if self.roles.n_servers > 1:
            sparse.scatter_set_rows(batch.rows, self._places(batch, server), part)
        if message.n_dense:
            batch.bias[:] = message.dense()
        batch.complete = message.clock if batch.complete < 0 else min(batch.complete, message.clock)
        batch.missing.discard(message.source)
        if not batch.missing:
            del self._flying[batch.lease]

    # --- learning ---

    def _learn(self, batch: Batch, ask: bool) -> None:
        prefetch = ask and self.run.ps.prefetch
        if prefetch:
            self._ask()
        self.signs.doing = f"waiting for rows of clock {batch.clock} from {self._names(batch.missing)}"
        self._wait(lambda: not batch.missing)
        self.signs.doing = f"learning share {batch.share} of clock {batch.clock}"
        started = time.perf_counter()
        grad = np.zeros((len(batch.keys), self.model.width), np.float32)
        dbias, sums = add_gradient(
            self.model,
            self.run.model.loss,
            self.optimizer.penalty,
            batch.block,
            batch.rows,
            batch.local,
            batch.local,
            batch.bias,
            grad,
        )
        seconds = time.perf_counter() - started
        self._linger(seconds)
        commit = compose(
            Kind.COMMIT,
            lease=batch.lease,
            samples=sums.weight,
            loss=sums.loss,
            rows=sums.rows,
            seconds=seconds * self._slowness,
        )
        self.mail.send(MASTER, commit)
        self._wait(lambda: batch.lease in self._verdicts)
        if self._verdicts.pop(batch.lease):
            self._push(batch, grad, dbias, sums.weight)
        if ask and not prefetch:
            self._ask()

    def _names(self, ranks: set[int]) -> str:
        return ", ".join(self.roles.name(rank) for rank in sorted(ranks)) or "nobody"

    def _linger(self, seconds: float) -> None:
        if self._slowness > 1:
            time.sleep(seconds * (self._slowness - 1))

    def _push(self, batch: Batch, grad: np.ndarray, dbias: float, samples: float) -> None:
        """A message to every server: the gradient of its keys, whatever there is of them."""
        where = {"lease": batch.lease, "clock": batch.clock, "share": batch.share, "shares": batch.shares}
        keys = batch.keys
        if self.roles.n_servers > 1:  # grouped by server
            keys, grouped = keys[batch.order], np.empty_like(grad)
            sparse.gather_rows(grad, batch.order, grouped)
            grad = grouped
        if self._feedback is None:
            self._send_gradient(keys, grad, dbias, samples, batch.bounds, where)
            return
        if self.optimizer.reduction == "mean":  # what is kept back must fit a batch of any size
            grad *= np.float32(self._samples / max(samples, 1e-30))
            dbias, samples = dbias * self._samples / max(samples, 1e-30), self._samples
        outgoing = self._feedback.prepare(keys, grad, self.run.ps.top_k)
        bounds = np.searchsorted(outgoing.picked, batch.bounds)
        self._send_gradient(outgoing.keys, outgoing, dbias, samples, bounds, where)
        outgoing.commit()

    def _send_gradient(
        self,
        keys: np.ndarray,
        rows: np.ndarray | Outgoing,
        dbias: float,
        samples: float,
        bounds: np.ndarray,
        where: dict[str, int],
        codec: codecs.Codec | None = None,
    ) -> None:
        """PUSH to every server its part, [bounds[s], bounds[s + 1]), of the keys and rows."""
        codec, width = codec or self._push_codec, self.model.width
        dense = np.array([dbias], np.float32)
        for server in range(self.roles.n_servers):
            a, b = int(bounds[server]), int(bounds[server + 1])
            mine = dense[self._segments[server] : self._segments[server + 1]]
            nbytes = codec.nbytes(b - a, width)
            message, room = compose_keyed(
                Kind.PUSH, keys[a:b], mine, nbytes, width=width, samples=samples, **where
            )
            if isinstance(rows, np.ndarray):
                codec.encode(rows[a:b], room)
            else:
                rows.encode(codec, a, b, room)
            self.mail.send(server + 1, message)

    # --- commands ---

    def _obey(self, command: Message) -> None:
        if command.kind is Kind.EVALUATE:
            self._evaluate(ROLES[command.n])
        else:
            self._flush()
            self.mail.send(MASTER, compose(Kind.DONE))

    def _flush(self) -> None:
        """Push what the feedback holds back, in full."""
        keys, rows = NO_KEYS, np.empty((0, self.model.width), np.float32)
        if self._feedback is not None:
            keys, rows = self._feedback.drain()
        order, bounds = self.circle.split(keys)
        where = {"flags": FLUSHING}
        self._send_gradient(keys[order], rows[order], 0.0, self._samples, bounds, where, self._exact)

    def _evaluate(self, role: str) -> None:
        data, loss = self.rows[role], self.run.model.loss
        self.signs.doing = f"scoring the {role} rows"
        tally = Tally(loss)
        for batch in self._pulled_ahead(self._scoring(data)):
            logit = np.empty(batch.block.n_rows, np.float32)
            self.model.forward(batch.block, batch.rows, batch.local, batch.bias, logit)
            tally.add(logit, batch.block.labels, batch.block.weights, batch.block.groups)
            self.signs.beat()
        self.signs.doing = f"waiting for the other workers to score the {role} rows"
        barrier = self.roles.team.Ibarrier()
        self._wait(barrier.Test)
        tally.merge(self.roles.team)
        if self.roles.number == 0:
            self.mail.send(MASTER, compose_bytes(Kind.RESULT, json.dumps(tally.result()).encode()))

    def _scoring(self, data: BoundRows) -> Iterator[Batch]:
        """This worker's part of the rows of an evaluation."""
        number, workers = self.roles.number, self.roles.n_workers
        a, b = number * data.n_rows // workers, (number + 1) * data.n_rows // workers
        for start in range(a, b, EVALUATION_ROWS):
            self._scored -= 1  # leases count up, these down
            yield self._batch(self._scored, -1, 0, 0, data.slice(start, min(start + EVALUATION_ROWS, b)))

    def _pulled_ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches with their rows; those of the next are under way meanwhile."""
        before: Batch | None = None
        for batch in batches:
            self._pull(batch, SCORING)
            if before is not None:
                yield self._pulled(before)
            before = batch
        if before is not None:
            yield self._pulled(before)

    def _pulled(self, batch: Batch) -> Batch:
        self._wait(lambda: not batch.missing)
        return batch


def slowness(text: str, rank: int) -> float:
    """Factor by which a rank is to be slowed: "3:10" makes rank 3 ten times slower. 1 for the others."""
    if not text:
        return 1.0
    which, _, factor = text.partition(":")
    return float(factor) if int(which) == rank else 1.0
