"""The parameter server as a store: every rank makes one, and `run` turns it into its role."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..bound import BoundRows
from ..comm import agree
from ..config import Run
from ..models.base import Model
from ..optim.base import Optimizer
from ..stores import Store
from .mail import Mail
from .master import Master, Relayed
from .protocol import Kind, compose_bytes
from .roles import MASTER, split
from .server import Server
from .trace import Trace
from .watch import Lost
from .worker import Worker


class ParameterServer:
    """Store of a parameter-server run, before the roles part.

    Args:
        comm, host, status: all ranks, the name of this one's host, makes an MPI status (mpi.World).
        keys: uint64[n] sorted keys of the model.
        note: told what a person should know; stop: whether this rank was asked to stop.
        folder: the run folder, for traces.
    """

    def __init__(
        self,
        comm: Any,
        host: str,
        status: Any,
        model: Model,
        optimizer: Optimizer,
        keys: np.ndarray,
        run: Run,
        note: Callable[[str], None],
        stop: Callable[[], bool],
        folder: Path,
    ):
        self._all, self.model, self.optimizer, self.keys, self.run_options = comm, model, optimizer, keys, run
        self.roles = split(comm, host, run.ps.servers or 1)
        self.mail = Mail(self.roles.mail, status)
        self.note, self.stop, self.folder = note, stop, folder

    def run(self, work: Callable[[Store], None], rows: Mapping[str, BoundRows]) -> None:
        """The Master calls `work`, the others serve it. Raises the first problem on every rank."""
        problem: BaseException | None = None
        try:
            if self.roles.is_master:
                self._conduct(work, rows)
            else:
                self._serve(rows)
        except Lost:
            raise
        except Relayed:
            pass
        except Exception as caught:
            problem = caught
        self.mail.close()
        agree(self._all, problem)

    def _conduct(self, work: Callable[[Store], None], rows: Mapping[str, BoundRows]) -> None:
        parts = (self.roles, self.mail, self.model, self.optimizer, self.run_options)
        master = Master(*parts, rows, self.note)
        try:
            work(master)
        finally:
            master.end()

    def _serve(self, rows: Mapping[str, BoundRows]) -> None:
        parts = (self.roles, self.mail, self.model, self.optimizer, self.run_options)
        role: Any
        if self.roles.is_server:
            trace = None
            if self.run_options.ps.trace:
                trace = Trace(self.folder / f"ps-trace-{self.roles.number}.npy")
            role = Server(*parts, len(self.keys), self.stop, trace)
        else:
            role = Worker(*parts, self.keys, rows, self.stop)
        try:
            role.serve()
        except Exception as caught:
            text = str(caught).encode(errors="backslashreplace")  # file names may hold anything
            self.mail.send(MASTER, compose_bytes(Kind.FAILED, text))
            raise
