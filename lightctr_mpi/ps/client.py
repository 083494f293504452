"""A worker's side of the servers: which of them has what, pulls and pushes as messages, error feedback."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import codecs
from ..block import Block
from ..codecs.feedback import Feedback, Outgoing
from ..config import Run
from ..kernels import sparse
from ..models.base import Model
from ..optim.base import Optimizer
from .circle import Circle
from .dense import dense_bounds
from .mail import Mail
from .protocol import FLUSHING, NO_FLOATS, NO_KEYS, Kind, Message, ProtocolError, compose_keyed, tell
from .roles import Roles

SCORING_CLOCK = -1  # of batches that are scored, not learned


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


class Client:
    """Pulls the rows of batches and pushes their gradients; sends and takes messages, and waits for none.

    Args:
        keys: uint64[n] sorted keys of the model; the ids of blocks are positions in it.
    """

    def __init__(
        self, roles: Roles, mail: Mail, model: Model, optimizer: Optimizer, run: Run, keys: np.ndarray
    ):
        assert run.train.batch_size is not None
        self.roles, self.mail, self.model, self.optimizer, self.run = roles, mail, model, optimizer, run
        self.keys = keys
        self.circle = Circle(roles.n_servers)
        self._segments = dense_bounds(model, roles.n_servers)
        self._scratch = np.full(len(keys), -1, np.int32)
        self._pull_codec, self._exact = codecs.build(run.ps.pull_codec), codecs.build("float32")
        self._push_codec = codecs.build(run.ps.push_codec)
        lossy = self._push_codec.lossy or run.ps.top_k < 1
        self._feedback = Feedback(model.width) if lossy else None
        self._flying: dict[int, Batch] = {}  # by lease: batches whose rows are on their way
        self._samples = max(1.0, run.train.batch_size / roles.n_workers)  # of a share, as it should be

    # --- pulling ---

    def batch(self, lease: int, clock: int, share: int, shares: int, block: Block) -> Batch:
        ids, local = sparse.localize(block.ids, self._scratch)
        keys = self.keys[ids]
        order, bounds = self.circle.split(keys)
        rows = np.empty((len(keys), self.model.width), np.float32)
        bias = np.zeros(1, np.float32)
        return Batch(lease, clock, share, shares, block, local, keys, order, bounds, rows, bias)

    def pull(self, batch: Batch, flags: int = 0) -> None:
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

    def arrive(self, message: Message) -> None:
        batch = self._flying.get(message.lease)
        if batch is None or message.source not in batch.missing:
            raise ProtocolError(f"rank {message.source} sends rows of lease {message.lease}, not asked for")
        server, width = message.source - 1, self.model.width
        n = int(batch.bounds[server + 1] - batch.bounds[server])
        codec = self._exact if batch.clock == SCORING_CLOCK else self._pull_codec
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

    # --- pushing ---

    def push(self, batch: Batch, grad: np.ndarray, dbias: float, samples: float) -> None:
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
            factor = self._samples * self.optimizer.scale(samples)
            grad *= np.float32(factor)
            dbias, samples = dbias * factor, self._samples
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
            clipped = codec.saturated
            if isinstance(rows, np.ndarray):
                codec.encode(rows[a:b], room)
            else:
                rows.encode(codec, a, b, room)
            tell(message, spare=codec.saturated - clipped)
            self.mail.send(server + 1, message)

    def flush(self) -> None:
        """Push what the feedback holds back, in full."""
        keys, rows = NO_KEYS, np.empty((0, self.model.width), np.float32)
        if self._feedback is not None:
            keys, rows = self._feedback.drain()
        order, bounds = self.circle.split(keys)
        where = {"flags": FLUSHING}
        # As far as these gradients would have counted: in bsp a share is one of many in a step.
        together = self.roles.n_workers if self.run.ps.consistency == "bsp" else 1
        samples = self._samples * together
        self._send_gradient(keys[order], rows[order], 0.0, samples, bounds, where, self._exact)
