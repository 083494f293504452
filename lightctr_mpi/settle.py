"""Values that the user left to the program, chosen from model, loss and the size of world and data."""

from __future__ import annotations

import dataclasses

from . import defaults
from .config import Run
from .errors import UserError


def settle(run: Run, ranks: int, on_node: int | None = None) -> Run:
    """Fill in what can be known before the data is read; mode auto on several ranks waits for that.

    Args:
        ranks: of the world; on_node: those on this rank's node (default: all).

    Raises UserError for combinations that make no sense on this number of ranks.
    """
    if not run.data.train:
        raise UserError("no training data: give --data.train FILE (or train.toml with [data] train = ...)")
    mode = run.mode
    if mode == "auto" and ranks == 1:
        mode = "single"
    node = run.ring.replica == "node"
    if node and mode == "auto":
        mode = "ring"
    if node and on_node not in (None, ranks):
        raise UserError(
            f"ring.replica = node is for the ranks of one node, mpirun has started {ranks} on several: start "
            "them on one, or let each rank hold the model (--ring.replica rank)"
        )
    servers = run.ps.servers or max(1, ranks // 4)
    if mode == "ps":
        check_ranks(ranks, servers)
        if run.ps.slow and not servers < int(run.ps.slow.partition(":")[0]) < ranks:
            raise UserError(
                f"ps.slow = {run.ps.slow}: not the rank of a worker; they are {servers + 1} to {ranks - 1}"
            )
    if mode == "single" and ranks > 1:
        raise UserError(f"mode single is for one rank, mpirun has started {ranks}: use --mode ring")
    sync = run.train.sync
    if sync == "auto":
        sequential = node or (mode == "single" and run.train.batch_size is None)
        sync = "none" if sequential else "exact"
    if sync == "none" and mode != "single" and not node:
        raise UserError(
            f"train.sync none (row after row) is for --mode single, or for many ranks of one node with "
            f"--ring.replica node; mode {mode} needs --train.sync exact"
        )
    if sync != "none" and run.optimizer.sums == "block":
        raise UserError("optimizer.sums = block learns row by row: on one rank, or with --ring.replica node")
    monitor = run.train.monitor
    if monitor == "auto":
        monitor = "valid_logloss" if run.model.loss == "logistic" else "valid_rmse"
    return dataclasses.replace(
        run,
        mode=mode,
        out=run.out or f"runs/{run.model.name}",
        ps=dataclasses.replace(run.ps, servers=servers),
        train=dataclasses.replace(run.train, sync=sync, monitor=monitor),
    )


def check_ranks(ranks: int, servers: int) -> None:
    """Raises UserError when there are too few ranks for a Master, the servers and a worker."""
    if ranks < servers + 2:
        need = f"a Master, {servers} server{'s' if servers > 1 else ''} and at least one worker"
        raise UserError(
            f"mode ps with ps.servers = {servers} needs {servers + 2} ranks or more ({need}), there "
            f"{'are' if ranks > 1 else 'is'} {ranks}: mpirun -n {servers + 2} python -m lightctr_mpi ..."
        )


def settle_for(run: Run, n_rows: int, ranks: int = 1) -> Run:
    """Fill in what depends on the data."""
    model = defaults.model(run.model)
    batch_size = run.train.batch_size or default_batch(n_rows)
    rows_of_step = 1 if run.train.sync == "none" else batch_size
    if run.mode == "ps" and run.ps.consistency != "bsp":  # each worker's share is a step of its own
        assert run.ps.servers is not None
        rows_of_step = max(1, batch_size // (ranks - 1 - run.ps.servers))
    optimizer = defaults.optimizer(run.optimizer, run.model.name, rows_of_step)
    return dataclasses.replace(
        run,
        model=model,
        optimizer=optimizer,
        train=dataclasses.replace(
            defaults.course(run.train, run.model.name, bool(run.data.valid)), batch_size=batch_size
        ),
    )


def default_batch(n_rows: int) -> int:
    """About a hundred steps an epoch, but batches neither tiny nor beyond 4096 rows; a power of two."""
    return min(4096, max(32, 1 << (n_rows // 128).bit_length()))
