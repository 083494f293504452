"""The Master: conducts the training as the store of its rank. It deals out leases and holds no parameters.

To the training loop it looks like any other store; behind `learn` lie leases that workers take when they are
ready, behind `finish` the wait for all of them and for the servers to have taken in every gradient.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import checkpoint
from ..bound import BoundRows
from ..checkpoint import Checkpoint, ModelMeta
from ..config import Run
from ..errors import UserError
from ..modelfile import layout_of
from ..models.base import Model
from ..optim.base import Optimizer
from ..stores import StepSums
from .leases import Leases
from .mail import Mail
from .protocol import STOP, URGENT, Kind, Message, ProtocolError, compose, compose_bytes, compose_json
from .roles import Roles
from .watch import Watch
from .worker import ROLES

LOOK_SECONDS = 0.05  # between two looks for leases that ran out and ranks that are silent


class Relayed(Exception):
    """Another rank has failed, and tells everybody itself on leaving."""


class Master:
    """Store of a parameter-server run, at rank 0.

    Args:
        note: told what a person should know.
    """

    comm = None

    def __init__(
        self,
        roles: Roles,
        mail: Mail,
        model: Model,
        optimizer: Optimizer,
        run: Run,
        rows: Mapping[str, BoundRows],
        note: Callable[[str], None],
    ):
        assert run.train.batch_size is not None
        self.roles, self.mail, self.model, self.optimizer, self.run = roles, mail, model, optimizer, run
        self.step_rows = run.train.batch_size
        self.leases = Leases(run.ps.lease_seconds)
        self.watch = Watch(roles, run.ps.silence_seconds, note)
        self.note = note
        self._names = {id(data): ROLES.index(role) for role, data in rows.items()}
        self._hungry: list[int] = []  # workers that asked for a lease, in that order
        self._sums = StepSums()
        self._clock = self._flushes = self._done = 0
        self._settled: dict[int, dict[str, Any]] = {}
        self._result: Any = None
        self._stop = False
        self._look = 0.0
        self._before: dict[str, int] = {}
        self._finite = True
        self._clipped = False  # whether a person was told that values were

    # --- the training loop's side ---

    def learn(self, data: BoundRows, rows: np.ndarray, stop: bool) -> StepSums:
        shares = max(1, min(self.roles.n_workers, len(rows)))
        self.leases.add(self._clock, rows, shares)
        self._clock += 1
        self._turn()
        while len(self.leases.waiting) > self.roles.n_workers:
            self._turn(rest=True)
        return self._take_sums(stop)

    def finish(self) -> StepSums:
        while self.leases.outstanding:
            self._turn(rest=True)
        if self.run.ps.push_codec != "float32" or self.run.ps.top_k < 1:
            self._flush()
        self._settle()
        return self._take_sums(False)

    def _take_sums(self, stop: bool) -> StepSums:
        sums, self._sums = self._sums, StepSums()
        sums.stop = stop or self._stop
        return sums

    def _flush(self) -> None:
        self._done = 0
        for worker in self.roles.workers:
            self.mail.send(worker, compose(Kind.FLUSH))
        self._until(lambda: self._done == self.roles.n_workers)
        self._flushes += self.roles.n_workers

    def _settle(self) -> None:
        """Wait for the servers to have taken in all that was pushed."""
        self._ask_servers(lambda _: compose(Kind.SETTLE, clock=self._clock, n=self._flushes))

    def _ask_servers(self, question: Callable[[int], np.ndarray]) -> None:
        """Send every server a question and wait for its answer. Raises UserError with the first problem."""
        self._settled = {}
        for server in self.roles.servers:
            self.mail.send(server, question(server))
        self._until(lambda: len(self._settled) == self.roles.n_servers)
        for server in self.roles.servers:
            if problem := self._settled[server]["problem"]:
                raise UserError(problem)
        self._finite = all(figures["finite"] for figures in self._settled.values())

    def evaluate(self, data: BoundRows, loss: str) -> dict[str, Any]:
        self._result = None
        for worker in self.roles.workers:
            self.mail.send(worker, compose(Kind.EVALUATE, n=self._names[id(data)]))
        self._until(lambda: self._result is not None)
        return self._result

    def all_finite(self) -> bool:
        return self._finite

    def end_epoch(self, epoch: int) -> dict[str, Any]:
        """Drop keys that went out of use, if asked for; returns keys, traffic and mishaps of the epoch."""
        self._ask_servers(lambda _: compose_json(Kind.EVICT, {"epoch": epoch}))
        totals: dict[str, int] = {"ps_refused": self.leases.refused, "ps_passed_on": self.leases.passed_on}
        for name in ("sent", "received", "unadmitted", "homeless", "evicted", "saturated", "uncorrected"):
            totals[f"ps_{name}"] = sum(figures[name] for figures in self._settled.values())
        new = {name: total - self._before.get(name, 0) for name, total in totals.items()}
        self._before = totals
        for name in ("keys", "bytes"):
            new[f"ps_{name}"] = sum(figures[name] for figures in self._settled.values())
        if new["ps_saturated"] and not self._clipped:
            self._clipped = True
            self.note(
                f"{new['ps_saturated']:,} values did not fit into float16 and were clipped (ps_saturated): "
                "what is learned may be wrong; use another codec or a lower learning rate"
            )
        return new

    # --- model files ---

    def save(self, path: str, meta: ModelMeta, field_keys: np.ndarray | None) -> None:
        """Every server writes its shard, then the Master the file that makes one model of them."""
        token = checkpoint.new_token()
        fields = None if field_keys is None else field_keys.tolist()
        path = os.path.abspath(path)
        asked = {"path": path, "token": token, "meta": dataclasses.asdict(meta), "field_keys": fields}
        try:
            self._ask_servers(lambda _: compose_json(Kind.SAVE, asked))
        except UserError:  # the disk is full, perhaps: what the others wrote is of no use
            for answer in self._settled.values():
                with contextlib.suppress(OSError):
                    os.unlink(answer["path"])
            raise
        answers = [self._settled[server] for server in self.roles.servers]
        layout = layout_of(self.model, self.optimizer, sum(answer["keys"] for answer in answers))
        dense: dict[str, np.ndarray] = {}
        if self.model.bias:
            values = np.concatenate([np.array(answer["dense"], np.float32) for answer in answers])
            dense["parameters/bias"] = values
            for i, slot in enumerate(self.optimizer.slot_names):
                parts = [np.array(answer["dense_state"], np.float32)[i] for answer in answers]
                dense[f"optimizer/{slot}/bias"] = np.concatenate(parts)
        paths = [answer["path"] for answer in answers]
        checkpoint.write_sharded(path, meta, layout, paths, field_keys, dense, token)

    def load(self, source: Checkpoint, *, with_state: bool = True) -> None:
        epoch = source.meta.progress.get("epoch", 0)
        asked = {"path": os.path.abspath(source.path), "with_state": with_state, "epoch": epoch}
        self._ask_servers(lambda _: compose_json(Kind.LOAD, asked))

    # --- messages ---

    def end(self) -> None:
        for rank in range(1, self.roles.size):
            self.mail.send(rank, compose(Kind.END))

    def _until(self, come: Callable[[], bool]) -> None:
        while not come():
            self._turn(rest=True)

    def _turn(self, rest: bool = False) -> None:
        """Take what has come, deal out leases, look after the others."""
        messages = self.mail.receive()
        for message in messages:
            self.watch.heard(message.source)
            self._stop = self._stop or bool(message.flags & STOP)
            self._take(message)
        self._deal()
        now = time.monotonic()
        if now > self._look:
            self._look = now + LOOK_SECONDS
            self._look_after(now)
        if rest and not messages:
            self.mail.rest()

    def _deal(self) -> None:
        """Leases to those who asked. What is overdue may hold up the clock: it does not wait in a queue."""
        for worker in self._hungry:
            if not self.leases.overdue:
                break
            self._give(worker, urgent=True)
        while self._hungry and self.leases.waiting:
            self._give(self._hungry.pop(0))

    def _take(self, message: Message) -> None:
        kind = message.kind
        if kind is Kind.NEXT:
            self._hungry.append(message.source)
        elif kind is Kind.COMMIT:
            self._commit(message)
        elif kind is Kind.ALIVE:
            self.watch.says(message.source, message.text())
            if message.source in self.roles.workers and self.leases.overdue:
                self._give(message.source, urgent=True)
        elif kind is Kind.DONE:
            self._done += 1
        elif kind is Kind.SETTLED:
            self._settled[message.source] = message.json()
        elif kind is Kind.RESULT:
            self._result = message.json()
        elif kind is Kind.FAILED:
            raise Relayed(message.text())
        else:
            raise ProtocolError(f"the Master cannot take a {kind.name} from rank {message.source}")

    def _give(self, worker: int, urgent: bool = False) -> None:
        lease = self.leases.give(worker, time.monotonic(), urgent)
        if lease is None:
            return
        message = compose_bytes(
            Kind.LEASE,
            np.ascontiguousarray(lease.rows, np.int64).tobytes(),
            lease=lease.number,
            clock=lease.clock,
            share=lease.share,
            shares=lease.shares,
            n=len(lease.rows),
            flags=URGENT if urgent else 0,
        )
        self.mail.send(worker, message)

    def _commit(self, message: Message) -> None:
        lease = self.leases.commit(message.lease, message.seconds)
        granted = lease is not None
        if granted:
            self._sums.add(StepSums(message.loss, message.samples, message.rows))
        else:
            self.note(
                f"a late result of {self.roles.name(message.source)} was refused: its lease had moved on"
            )
        self.mail.send(message.source, compose(Kind.GRANT if granted else Kind.REFUSE, lease=message.lease))

    def _look_after(self, now: float) -> None:
        self.watch.look(now)  # first: it knows of times in which the Master itself was away
        heard = {worker: self.watch.last[worker] for worker in self.roles.workers}
        for lease in self.leases.expire(heard, now):
            self.note(
                f"{self.roles.name(lease.worker)} has been silent for {now - heard[lease.worker]:.1f} s: "
                f"its share {lease.share} of clock {lease.clock} goes to another worker"
            )
