"""A server: keeps the rows of its keys, answers pulls as the clock allows, moves rows along gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import codecs
from ..config import Run
from ..errors import UserError
from ..kernels import sparse
from ..models.base import Model
from ..optim.base import Optimizer
from .backup import Backups
from .circle import Circle
from .clocks import Clocks
from .dense import Dense, dense_bounds
from .mail import Mail
from .protocol import FLUSHING, NO_KEYS, SCORING, Kind, Message, ProtocolError, compose_json, compose_keyed
from .roles import MASTER, Roles
from .shardfile import load_shard, save_shard
from .signs import Signs, beat_seconds
from .table import KeyTable
from .trace import PULLED, PUSHED, Trace

POKE_ROWS = 4096  # rows moved between two looks at the mail, lest a link fall idle


class Server:
    """One server of a run.

    Args:
        expected: keys of the whole model as far as they are known, to reserve address space.
        stop: whether this rank was asked to stop.
    """

    def __init__(
        self,
        roles: Roles,
        mail: Mail,
        model: Model,
        optimizer: Optimizer,
        run: Run,
        expected: int,
        stop: Callable[[], bool],
        trace: Trace | None = None,
    ):
        self.roles, self.mail, self.model, self.optimizer, self.run = roles, mail, model, optimizer, run
        self.options = run.ps
        self.circle = Circle(roles.n_servers)
        self.backups = Backups.of(run.ps, roles.n_workers)
        self._expected = expected
        self.table = self._empty_table()
        self.table.touch(1)
        bounds = dense_bounds(model, roles.n_servers)
        self.dense = Dense(optimizer, int(bounds[roles.number + 1] - bounds[roles.number]))
        self.clocks = Clocks()
        self.signs = Signs(mail, stop, beat_seconds(run.ps))
        self.trace = trace
        self._pull_codec = codecs.build(run.ps.pull_codec)
        self._exact = codecs.build("float32")
        self._push_codec = codecs.build(run.ps.push_codec)
        self._held: list[Message] = []  # pulls whose clock has not come
        self._shares: dict[int, dict[int, Message]] = {}  # bsp: pushes of clocks that are not complete
        self._settling: list[Message] = []
        self._flushes = self._homeless = self._saturated = 0
        self._finite = True  # as of the last time that everything was taken in
        self._scratch = np.empty(0, np.int32)

    def _empty_table(self) -> KeyTable:
        options = self.options
        return KeyTable(
            self.model,
            self.optimizer,
            self.run.seed,
            extra=self.backups.extra(self.model.width),
            expected=self._expected // self.roles.n_servers + 1,
            admit_after=options.admit_after,
            track=options.evict_age > 0,
        )

    def serve(self) -> None:
        """Until the Master ends it. Raises ProtocolError, and UserError for files that cannot be used."""
        self.signs.doing = "waiting for requests"
        while True:
            messages = self.mail.receive()
            for message in messages:
                if message.kind is Kind.END:
                    return
                self._handle(message)
            self.signs.beat()  # also under load that never ends
            if not messages:
                self.mail.rest()

    def _handle(self, message: Message) -> None:
        handlers: dict[Kind, Callable[[Message], None]] = {
            Kind.PULL: self._on_pull,
            Kind.PUSH: self._on_push,
            Kind.SETTLE: self._on_settle,
            Kind.SAVE: self._on_save,
            Kind.LOAD: self._on_load,
            Kind.EVICT: self._on_evict,
        }
        if message.kind not in handlers:
            raise ProtocolError(f"a server cannot take a {message.kind.name} from rank {message.source}")
        handlers[message.kind](message)

    # --- pulls ---

    def _may_read(self, clock: int) -> bool:
        """Whether a lease of this clock may be computed on the rows as they are."""
        consistency = self.options.consistency
        if consistency == "asp":
            return True
        lag = self.options.staleness if consistency == "ssp" else 0
        return self.clocks.complete >= clock - lag

    def _on_pull(self, message: Message) -> None:
        if message.flags & SCORING or self._may_read(message.clock):
            self._answer(message)
        else:
            self._held.append(message)

    def _answer(self, message: Message) -> None:
        scoring = bool(message.flags & SCORING)
        keys, width = message.keys(), self.model.width
        numbers = self.table.lookup(keys, create=not scoring)
        codec = self._exact if scoring else self._pull_codec
        reply, room = compose_keyed(
            Kind.ROWS,
            NO_KEYS,
            self.dense.values,
            codec.nbytes(len(keys), width),
            n=len(keys),
            lease=message.lease,
            clock=self.clocks.complete,
            width=width,
        )
        if codec.lossy:
            rows = np.empty((len(keys), width), np.float32)
            self.table.gather(numbers, rows)
            codec.encode(rows, room)
            if self.backups.on:
                codec.decode(room, rows)
        else:
            rows = room.view(np.float32).reshape(len(keys), width)
            self.table.gather(numbers, rows)
        if self.backups.on and not scoring:
            self.backups.keep(message.source, message.lease, keys, rows)
        if self.trace is not None and not scoring:
            where = (message.source, message.clock, message.share)
            self.trace.add(PULLED, *where, self.clocks.complete, len(keys))
        self.mail.send(message.source, reply)

    # --- pushes ---

    def _on_push(self, message: Message) -> None:
        if message.flags & FLUSHING:
            self._flushes += 1
            self._apply([message])
            self._settle()
            return
        clock, share = message.clock, message.share
        whole = self.clocks.arrived(clock, share, message.shares)
        if self.options.consistency == "bsp":
            pushes = self._shares.setdefault(clock, {})
            pushes[share] = message
            if whole:  # in the order of the shares: equal runs give equal bits
                self._apply([pushes[i] for i in sorted(pushes)])
                del self._shares[clock]
        else:
            self._apply([message])
        if self.trace is not None:
            self.trace.add(PUSHED, message.source, clock, share, self.clocks.complete, message.n)
        held, self._held = self._held, []
        for pull in held:
            self._on_pull(pull)
        self._settle()

    def _gradient(self, message: Message) -> tuple[np.ndarray, np.ndarray]:
        """Numbers int32[u] and gradients float32[u, width] of a push."""
        keys, width = message.keys(), self.model.width
        data = message.row_bytes()
        if message.width != width or len(data) != self._codec_of(message).nbytes(len(keys), width):
            raise message.torn(f"{len(data)} bytes for {len(keys)} rows of {width}")
        self._saturated += message.spare
        numbers = self.table.lookup(keys, create=False)
        if not self._codec_of(message).lossy:
            grads = data.view(np.float32).reshape(len(keys), width)
        else:
            grads = np.empty((len(keys), width), np.float32)
            try:
                self._codec_of(message).decode(data, grads)
            except ValueError as error:
                raise message.torn(str(error)) from None
        if self.backups.on and not message.flags & FLUSHING:
            scale = self.optimizer.scale(message.samples)
            self.backups.correct(message.source, message.lease, keys, grads, self.table, numbers, scale)
        return numbers, grads

    def _dense_gradient(self, message: Message) -> np.ndarray:
        dense = message.dense()
        if len(dense) != len(self.dense.values):
            raise message.torn(f"{len(dense)} dense values for {len(self.dense.values)}")
        return dense

    def _codec_of(self, message: Message) -> Any:
        return self._exact if message.flags & FLUSHING else self._push_codec

    def _apply(self, pushes: list[Message]) -> None:
        """One step of the optimizer along the sum of the gradients of these pushes."""
        scale = self.optimizer.scale(sum(push.samples for push in pushes))
        if len(pushes) == 1:
            dense, (numbers, grads) = self._dense_gradient(pushes[0]), self._gradient(pushes[0])
        else:
            dense = np.stack([self._dense_gradient(push) for push in pushes])
            dense = np.asarray(dense.sum(axis=0, dtype=np.float64))
            numbers, grads = self._sum([self._gradient(push) for push in pushes])
        for a in range(0, len(numbers), POKE_ROWS):
            part = slice(a, a + POKE_ROWS)
            self._homeless += self.table.apply(numbers[part], grads[part], scale)
            self.mail.poke()
        self.dense.apply(dense, scale)

    def _sum(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        """Gradients of several pushes added up in their order."""
        numbers = np.concatenate([numbers for numbers, _ in parts])
        if len(self._scratch) < len(self.table):
            self._scratch = np.full(len(self.table) + len(self.table) // 4, -1, np.int32)
        unique, local = sparse.localize(numbers, self._scratch)
        total, at = np.zeros((len(unique), self.model.width), np.float32), 0
        for part, grads in parts:
            sparse.scatter_add_rows(total, local[at : at + len(part)], grads)
            at += len(part)
        self._homeless += int(np.count_nonzero(numbers < 0))
        return unique, total

    # --- what the Master asks for ---

    def _on_settle(self, message: Message) -> None:
        self._settling.append(message)
        self._settle()

    def _settle(self) -> None:
        for message in self._settling:
            if self.clocks.complete >= message.clock and self._flushes >= message.n:
                self._settling.remove(message)
                self._finite = self.table.all_finite() and bool(np.isfinite(self.dense.values).all())
                self._tell()
                break

    def _tell(self, problem: str = "", **more: Any) -> None:
        """SETTLED: what this server has and has done; `problem` says why a command failed."""
        table = self.table
        figures = {
            "problem": problem,
            "finite": self._finite,
            "keys": len(table),
            "bytes": table.nbytes,
            "dense": self.dense.values.tolist(),
            "dense_state": self.dense.state.tolist(),
            "sent": self.mail.sent,
            "received": self.mail.received,
            "unadmitted": table.refused_sightings,
            "evicted": table.evicted,
            "homeless": self._homeless,
            "saturated": self._pull_codec.saturated + self._saturated,
            "uncorrected": self.backups.missed,
        }
        self.mail.send(MASTER, compose_json(Kind.SETTLED, figures | more))

    def _on_save(self, message: Message) -> None:
        self.signs.doing = "writing its part of a checkpoint"
        self.signs.beat(now=True)
        problem = path = ""
        try:
            path = save_shard(self, message.json())
            if self.trace is not None:
                self.trace.save()
        except UserError as error:  # the Master ends the run with it
            problem = f"{error}"
        self.signs.doing = "waiting for requests"
        self._tell(problem, path=path)

    def _on_load(self, message: Message) -> None:
        self.signs.doing = "reading a model"
        self.signs.beat(now=True)
        problem, asked = "", message.json()
        try:
            self.table = self._empty_table()  # keys that the file lacks are to have no row
            self.table.touch(asked["epoch"] + 1)
            load_shard(self, asked["path"], asked["with_state"])
        except UserError as error:
            problem = f"{error}"
        self.signs.doing = "waiting for requests"
        self._tell(problem)

    def _on_evict(self, message: Message) -> None:
        """An epoch has ended: keys that went out of use go, if that is asked for."""
        epoch = message.json()["epoch"]
        self.table.touch(epoch + 1)
        if self.options.evict_age:  # not seen for one epoch: before the one that has ended
            self.table.evict(epoch + 1, self.options.evict_age, self.options.evict_hits)
        self._tell()
