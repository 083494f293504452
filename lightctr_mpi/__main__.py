"""`python -m lightctr_mpi`: settle threads, then hand over to the commands under one guard."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading

_GC_OBJECTS = 50_000


def main() -> int:
    _open_closed()
    from .threads import limit_threads

    # Modules are loaded to stay; looking for garbage among them takes a tenth of the time to start.
    gc.set_threshold(_GC_OBJECTS)
    # Before NumPy and Numba are loaded: they read the environment once.
    limit_threads(_threads_wanted(sys.argv[1:]))
    from .cli import run
    from .mpi import guard

    return guard(run, sys.argv[1:])


def _open_closed() -> None:
    """Give what a shell's >&- has closed a place: else the next file to be opened would get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (stays open)


def _threads_wanted(argv: list[str]) -> int:
    """train.threads as far as it can be known before options are read properly (which checks it)."""
    text = os.environ.get("LIGHTCTR_TRAIN_THREADS", "1")
    for i, word in enumerate(argv):
        if word == "--train.threads" and i + 1 < len(argv):
            text = argv[i + 1]
        elif word.startswith("--train.threads="):
            text = word.partition("=")[2]
    return int(text) if text.isdecimal() and int(text) > 0 else 1


def leave(code: int) -> None:
    """End the process, its tables as they lie: taking apart what is in memory takes a twentieth of a second.

    Where others have work left at the end (MPI, threads, a profiler), it ends as usual.
    """
    watched = sys.getprofile() is not None or sys.gettrace() is not None
    if not watched and "mpi4py.MPI" not in sys.modules and threading.active_count() == 1:
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:  # sys.exit says so
            pass
        else:
            os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    leave(main())
