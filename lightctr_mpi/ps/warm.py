"""A batch through every kernel of the parameter server, without messages: compiled before it is needed."""

from __future__ import annotations

import numpy as np

from .. import codecs
from ..codecs.feedback import Feedback
from ..config import Run
from ..kernels import sparse
from ..models.base import Model
from ..optim.base import Optimizer
from .backup import Backups
from .circle import Circle
from .protocol import NO_FLOATS, Kind, Message, compose_keyed
from .table import KeyTable


def warm(model: Model, optimizer: Optimizer, run: Run) -> None:
    """What workers and servers do with a batch of eight keys."""
    width, keys = model.width, np.arange(8, dtype=np.uint64)
    circle = Circle(2)
    order, bounds = circle.split(keys)
    circle.owners(keys)
    backups = Backups.of(run.ps, 1)
    table = KeyTable(
        model,
        optimizer,
        run.seed,
        extra=backups.extra(width),
        admit_after=run.ps.admit_after,
        track=run.ps.evict_age > 0,
    )
    rows, grads = np.empty((8, width), np.float32), np.ones((8, width), np.float32)
    table.gather(table.lookup(keys, create=True), rows)
    sparse.gather_rows(grads, order, np.empty_like(grads))
    sparse.scatter_set_rows(rows, order[bounds[0] :], rows)
    for name in {"float32", run.ps.pull_codec, run.ps.push_codec}:
        codec = codecs.build(name)
        message, room = compose_keyed(Kind.PUSH, keys, NO_FLOATS, codec.nbytes(8, width))
        codec.encode(rows, room)
        codec.decode(Message(message, 0).row_bytes(), rows)
    feedback = Feedback(width)
    outgoing = feedback.prepare(keys, grads, run.ps.top_k)
    outgoing.whole(0, len(outgoing.keys))
    outgoing.commit()
    feedback.drain()
    numbers = table.lookup(Message(message, 0).keys(), create=False)
    if backups.on:
        backups.keep(1, 1, keys, rows)
        backups.correct(1, 1, keys, grads, table, numbers)
    _, local = sparse.localize(numbers, np.full(8, -1, np.int32))
    sparse.scatter_add_rows(rows, local, grads)
    table.apply(numbers, grads, 1.0)
    table.all_finite()
    table.restore(keys)
