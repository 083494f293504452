"""The MPI world: joining it, checking it, leaving it. The only module that imports mpi4py.

Failures are either agreed or sudden. Agreed: all ranks learn of the problem (`comm.agree`) and leave `guard`
with the same exit code, one of them prints. Sudden: a rank fails while others are somewhere in a collective
call; it gives them a moment to arrive at `guard` too, then prints and aborts the world. No rank is left
waiting.
"""

from __future__ import annotations

import errno
import os
import platform
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from .comm import on_some, wait
from .errors import EXIT_FAULT, EXIT_STOPPED, EXIT_USER, Fault, Stopped, UserError, one_line

GRACE_SECONDS = 2.0  # how long a failing rank waits for the others before it aborts the world
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
# What variables of launchers and batch systems begin with: any of them is reason enough to ask MPI.
_LAUNCHERS = ("OMPI_", "PMI", "PRTE_", "MV2_", "MPI", "I_MPI_", "HYDRA_", "PALS_", "ALPS_", "FLUX_", "JSM_")
STARTERS = (*_LAUNCHERS, "SLURM_", "LSB_", "PBS_", "SGE_", "COBALT_", "OAR_")
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")


@dataclass(frozen=True)
class World:
    """This process among the others.

    Attributes:
        comm: communicator of all ranks; rank, size: place in it.
        node: communicator of the ranks on the same host; local_rank, local_size: place in it.
        host: name of the host.
        leaving: communicator used only by `guard`, so that its messages meet no others.
        status: makes an empty MPI status, for those who probe for messages.
        windows: MPI's class of windows, for those who share memory.
    """

    comm: Any
    rank: int
    size: int
    node: Any
    local_rank: int
    local_size: int
    host: str
    leaving: Any
    status: Any = None
    windows: Any = None


_world: World | None = None


def world(*, alone: bool = False) -> World:
    """Join the MPI world (on the first call, by all ranks) and return this rank's place in it.

    Args:
        alone: a single process that no launcher has started may do without MPI, which takes it 50 ms; the
            communicators are None then.

    Raises:
        UserError: the environment says that several processes were started, but MPI sees only this one.
    """
    global _world
    if alone and _world is None and not any(name.startswith(STARTERS) for name in os.environ):
        return World(None, 0, 1, None, 0, 1, host=platform.node(), leaving=None)
    if _world is None:
        mpi = _load()
        library, version = mpi.get_vendor()
        check_starter(os.environ, library, version[0])
        if not mpi.Is_initialized():
            # One thread makes all calls, but MPICH gives up its core while it waits only at this level: with
            # more ranks than cores the lower ones took a hundred times as long for an Allreduce of 1 MB.
            # Without fitting hardware Open MPI's windows over UCX are of no use, and say so on every rank.
            os.environ.setdefault("OMPI_MCA_osc", "^ucx")
            mpi.Init_thread(mpi.THREAD_MULTIPLE)
        comm = mpi.COMM_WORLD
        check_size(os.environ, comm.size, library)
        node = comm.Split_type(mpi.COMM_TYPE_SHARED, key=comm.rank)
        place = (comm.rank, comm.size, node, node.rank, node.size)
        host, leaving = mpi.Get_processor_name(), comm.Dup()
        _world = World(comm, *place, host, leaving, status=mpi.Status, windows=mpi.Win)
    return _world


def _load() -> Any:
    """mpi4py.MPI, not yet initialised (unless somebody else has done it), to be finalised at exit."""
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True
    with warnings.catch_warnings():  # our own checks end with an error where mpi4py only warns
        warnings.filterwarnings("ignore", "suspicious MPI execution environment")
        from mpi4py import MPI
    return MPI


def check_starter(environ: Mapping[str, str], library: str, version: int) -> None:
    """Refuse processes whose starter cannot talk to the MPI library, where initialising it would only fail.

    Args:
        environ: environment variables.
        library, version: name and major version of the MPI library that mpi4py uses.

    Raises:
        UserError: Open MPI 5 (which needs PMIx) started by a PMI starter, or MPICH and its kin the other way.
    """
    if library == "Open MPI":
        foreign = version >= 5 and not any(v.startswith("PMIX_") for v in environ) and "PMI_SIZE"
    else:
        foreign = "PMI_SIZE" not in environ and "MPIR_CVAR_PMI_VERSION" not in environ and SIZE_VARIABLES[0]
    if foreign and _count(environ, foreign) > 1:
        raise _not_our_starter(foreign, environ[foreign], library)


def check_size(environ: Mapping[str, str], size: int, library: str) -> None:
    """Refuse the N worlds of one rank that arise when the mpirun of another MPI starts N processes.

    Only the first known variable counts: below a launcher of its own, a Slurm step may well have more tasks
    than the world. SLURM_NTASKS is no sign, since a batch script has it too.

    Args:
        environ: environment variables.
        size: size of the world as MPI sees it.
        library: name of the MPI library that mpi4py uses.

    Raises:
        UserError: the environment tells of more processes than this one, MPI does not.
    """
    variable = next((v for v in SIZE_VARIABLES if _count(environ, v)), None)
    if variable and size == 1 and _count(environ, variable) > 1:
        raise _not_our_starter(variable, environ[variable], library)


def _count(environ: Mapping[str, str], variable: str) -> int:
    text = environ.get(variable, "")
    return int(text) if text.isdecimal() else 0


def _not_our_starter(variable: str, count: str, library: str) -> UserError:
    beside = os.path.join(os.path.dirname(sys.executable), "mpirun")
    starter = beside if os.path.exists(beside) else f"the mpirun of {library}"
    return UserError(
        f"{variable} says that {count} processes were started, but not by {library}, the MPI library of this "
        f"Python, which sees only one: start with {starter}"
    )


def once_per_node(world: World, work: Callable[[], Any]) -> Any:
    """Run `work` on one rank of each host while the others of the world wait without using their cores.

    Returns:
        What `work` returned on the ranks that ran it, None on the others.

    Raises:
        On every rank, the first exception that `work` raised on some rank (see `comm.agree`).
    """
    return on_some(world.comm, world.local_rank == 0, work)


class Signals:
    """Notes SIGUSR1 and SIGTERM while it is entered, for a loop to stop at its next step.

    A rank inside an MPI call notes a signal only when the call returns, and signals reach the ranks at
    different times: the loop must share `stop` in the agreement of its steps (`comm.any_rank`).

    Args:
        numbers: the signals to note, if not both.
    """

    caught: tuple[int, ...] = (signal.SIGUSR1, signal.SIGTERM)

    def __init__(self, *numbers: int) -> None:
        self.caught = numbers or self.caught
        self.stop = False
        self._before: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.stop = True

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._note) for number in self.caught}
        return self

    def __exit__(self, *exception: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def guard(main: Callable[..., int | None], *arguments: Any) -> int:
    """Call `main` and return the exit code of the process, the same on every rank.

    A user's error ends with one line on standard error, a fault with the traceback of the first rank that had
    it.
    Codes: what main returned, 2 the user's error, 1 a fault, 75 stopped after saving, 130 interrupted.
    """
    code, text, speaks = EXIT_FAULT, "", True
    try:
        code = int(main(*arguments) or 0)
    except UserError as problem:
        code, text = EXIT_USER, f"lightctr_mpi: error: {one_line(problem)}\n"
    except Fault as problem:
        text = f"lightctr_mpi: fault: {one_line(problem)}\n"
    except Stopped as problem:
        code, text = EXIT_STOPPED, f"lightctr_mpi: stopped: {problem}\n"
    except KeyboardInterrupt:
        code, text = 130, "lightctr_mpi: interrupted\n"
    except SystemExit as problem:  # --help and the like
        code = problem.code if isinstance(problem.code, int) else EXIT_FAULT if problem.code else 0
        text = f"{problem.code}\n" if isinstance(problem.code, str) else ""
    except BrokenPipeError:  # as in "inspect | head"; training goes on without
        text = "lightctr_mpi: stopped: standard output was closed\n"
    except BaseException as problem:
        if isinstance(problem, OSError) and problem.filename is None and problem.errno == errno.ENOSPC:
            code, text = EXIT_USER, _unwritable(problem)  # of print: names of files are known elsewhere
        else:
            text = traceback.format_exc()
        speaks = getattr(problem, "agreed", _rank()) == _rank()  # elsewhere there is only a copy
    return _leave(code, text, speaks)


def _rank() -> int:
    """Number of this process, from the environment as long as MPI is not initialised."""
    if _world is not None:
        return _world.rank
    return next((int(os.environ[v]) for v in RANK_VARIABLES if os.environ.get(v, "").isdecimal()), 0)


def _leave(code: int, text: str, speaks: bool) -> int:
    """Meet the other ranks, or abort them; print `text` on one rank; return the common exit code."""
    try:
        sys.stdout.flush()
    except OSError as problem:  # what is left goes nowhere, lest Python complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(problem, BrokenPipeError) and not code:
            code, text, speaks = EXIT_USER, _unwritable(problem), True
    if _world is None or _world.size == 1:
        if _rank() == 0 or code == EXIT_FAULT:
            _say(text)
        return code
    mine = np.array([code, speaks], np.int32)
    table = np.empty((_world.size, 2), np.int32)
    request = _world.leaving.Iallgather(mine, table)
    if not wait(request, GRACE_SECONDS if code else None):
        _say(text)
        time.sleep(0.3)  # for mpirun to pass the text on before what it says itself about the abort
        _world.comm.Abort(code)
    failed = np.flatnonzero(table[:, 0])
    if not len(failed):
        return 0
    speakers = np.flatnonzero(table[:, 0] * table[:, 1])
    speaker = speakers[0] if len(speakers) else failed[0]
    if _world.rank == speaker:
        _say(text)
    return int(table[speaker, 0])


def _unwritable(problem: OSError) -> str:
    return f"lightctr_mpi: error: cannot write: {problem.strerror}\n"


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
