"""Starting programs the way users do, from tests: plain, or under the mpirun that lies beside this Python."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
MPIRUN = Path(sys.executable).parent / "mpirun"
RANKS = (1, 2, 3, 4, 8)

# Each MPI takes what is its own: Open MPI refuses root and more ranks than cores unless told otherwise, and
# spins where ranks outnumber cores.
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """This process's environment with the package importable from any folder, and settings for both MPIs."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, **MPI_ENVIRONMENT, "PYTHONPATH": path, **(extra or {})}


def start(
    *command: object,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    stdin: IO | int = subprocess.DEVNULL,
) -> subprocess.Popen:
    """Start a command in a process group of its own; standard output and error are pipes."""
    return subprocess.Popen(
        [str(word) for word in command],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment(env),
        cwd=cwd,
        start_new_session=True,
    )


def finish(process: subprocess.Popen, timeout: float = 120) -> subprocess.CompletedProcess:
    """Wait for the end; after `timeout` seconds end the whole process group and raise TimeoutError."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        for number, patience in ((signal.SIGTERM, 3), (signal.SIGKILL, 10)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=patience)
                break
        else:
            out = err = "(no output: its pipes are still held open)"
        raise TimeoutError(f"{process.args} took longer than {timeout} s\n{out}\n{err}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(*command: object, timeout: float = 120, **options) -> subprocess.CompletedProcess:
    """Run a command to its end."""
    return finish(start(*command, **options), timeout)


def mpirun(n: int, *command: object, timeout: float = 120, **options) -> subprocess.CompletedProcess:
    """Run a command on n ranks to its end."""
    return run(MPIRUN, "-n", n, *command, timeout=timeout, **options)


def python(*arguments: object, ranks: int = 0, **options) -> subprocess.CompletedProcess:
    """Run Python on `ranks` ranks, or without mpirun where `ranks` is 0."""
    if ranks:
        return mpirun(ranks, sys.executable, *arguments, **options)
    return run(sys.executable, *arguments, **options)


def cli(*arguments: object, ranks: int = 0, **options) -> subprocess.CompletedProcess:
    """Run `python -m lightctr_mpi ARGUMENTS` on `ranks` ranks, or without mpirun where `ranks` is 0."""
    return python("-m", "lightctr_mpi", *arguments, ranks=ranks, **options)
