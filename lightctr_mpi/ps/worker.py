"""A worker: takes leases, pulls the rows of their batches, pushes gradients; scores rows for evaluations.

The pull of the next lease is under way while a batch is computed. Whatever a worker waits for, it listens to
the Master, who may give it a lease that another worker let run out, which goes first.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from .. import unseen
from ..bound import BoundRows
from ..config import Run
from ..metrics import Tally
from ..models.base import Model
from ..optim.base import Optimizer
from ..shard import Shard
from ..stores import EVALUATION_ROWS, add_gradient
from .client import SCORING_CLOCK, Batch, Client
from .mail import Mail
from .protocol import (
    NO_KEYS,
    SCORING,
    URGENT,
    Kind,
    Message,
    ProtocolError,
    compose,
    compose_bytes,
)
from .roles import MASTER, Roles
from .signs import Signs, beat_seconds

ROLES = ("train", "valid", "test")  # EVALUATE names them by number


class Ended(Exception):
    """The Master has ended the run."""


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
        self.rows = rows
        self.client = Client(roles, mail, model, optimizer, run, keys)
        self.signs = Signs(mail, stop, beat_seconds(run.ps))
        self._slowness = slowness(run.ps.slow, roles.rank)
        self._ready: deque[Batch] = deque()  # leases in hand, in the order they were given
        self._urgent: list[Batch] = []
        self._commands: deque[Message] = deque()
        self._verdicts: dict[int, bool] = {}
        self._scored = 0
        self._free_since = 0.0  # when the last lease was done, if that was just before

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

    def _wait(self, arrived: Callable[[], bool]) -> None:
        """Listen until `arrived`; leases that are urgent are done meanwhile, as soon as their rows are there.

        Not sooner: their clock may be waiting for the very batch that is waited for here.
        """
        while not arrived():
            messages = self.mail.receive()
            for message in messages:
                self._take(message)
            complete = [i for i, batch in enumerate(self._urgent) if not batch.missing]
            if complete:
                doing = self.signs.doing
                self._learn(self._urgent.pop(complete[0]), ask=False)
                self.signs.doing = doing
                continue
            self.signs.beat()
            if not messages:
                self.mail.rest()

    def _take(self, message: Message) -> None:
        kind = message.kind
        if kind is Kind.ROWS:
            self.client.arrive(message)
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

    # --- learning ---

    def _begin(self, message: Message) -> Batch:
        block = self.rows["train"].block(message.row_numbers())
        batch = self.client.batch(message.lease, message.clock, message.share, message.shares, block)
        self.client.pull(batch)
        return batch

    def _learn(self, batch: Batch, ask: bool) -> None:
        prefetch = ask and self.run.ps.prefetch
        begun = self._free_since or time.perf_counter()
        if prefetch:
            self._ask()
        self.signs.doing = f"waiting for rows of clock {batch.clock} from {self._names(batch.missing)}"
        self._wait(lambda: not batch.missing)
        self.signs.doing = f"learning share {batch.share} of clock {batch.clock}"
        started = time.perf_counter()
        grad = np.zeros((len(batch.keys), self.model.width), np.float32)
        dbias, sums = add_gradient(
            self.model,
            self.optimizer.penalty,
            batch.block,
            batch.rows,
            batch.local,
            batch.local,
            batch.bias,
            grad,
        )
        self._linger(begun)
        seconds = time.perf_counter() - started
        commit = compose(
            Kind.COMMIT,
            lease=batch.lease,
            samples=sums.weight,
            loss=sums.loss,
            rows=sums.rows,
            seconds=seconds,
        )
        self.mail.send(MASTER, commit)
        self._wait(lambda: batch.lease in self._verdicts)
        if self._verdicts.pop(batch.lease):
            self.client.push(batch, grad, dbias, sums.weight)
        if ask and not prefetch:
            self._ask()
        self._free_since = time.perf_counter()

    def _names(self, ranks: set[int]) -> str:
        return ", ".join(self.roles.name(rank) for rank in sorted(ranks)) or "nobody"

    def _linger(self, begun: float) -> None:
        """For `ps.slow`: make the lease take a multiple of the time it has taken, messages included."""
        if self._slowness > 1:
            time.sleep((time.perf_counter() - begun) * (self._slowness - 1))

    # --- commands ---

    def _obey(self, command: Message) -> None:
        self._free_since = 0.0
        if command.kind is Kind.EVALUATE:
            self._evaluate(ROLES[command.n])
        else:
            self.client.flush()
            self.mail.send(MASTER, compose(Kind.DONE))

    def _evaluate(self, role: str) -> None:
        data, loss = self.rows[role], self.run.model.loss
        self.signs.doing = f"scoring the {role} rows"
        tally = Tally(loss)
        start = Shard(self.model, self.optimizer, NO_KEYS, None).starter(data.start)
        for batch in self._pulled_ahead(self._scoring(data)):
            logit = np.empty(batch.block.n_rows, np.float32)
            unseen.forward(self.model, batch.block, batch.rows, batch.local, batch.bias, logit, start)
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
            block = data.slice(start, min(start + EVALUATION_ROWS, b))
            yield self.client.batch(self._scored, SCORING_CLOCK, 0, 0, block)

    def _pulled_ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches with their rows; those of the next are under way meanwhile."""
        before: Batch | None = None
        for batch in batches:
            self.client.pull(batch, SCORING)
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
