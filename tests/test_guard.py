"""How a run ends: exit codes and messages as they come through mpirun, stop signals, a foreign mpirun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import launch
import pytest

from lightctr_mpi import mpi
from lightctr_mpi.errors import UserError

# argv: what happens. Written as an entry point of the program would be.
PROGRAM = """
import sys, time
from lightctr_mpi import comm, mpi
from lightctr_mpi.errors import DataError, Stopped, UserError

def main(what):
    world = mpi.world()
    last = world.rank == world.size - 1
    if what == "agreed":
        with comm.agreed(world.comm):
            if last:
                raise DataError("rows.ffm", 7, "a word", "a number")
    if what == "agreed fault":
        with comm.agreed(world.comm):
            if last:
                raise ZeroDivisionError("no ground")
    if what == "everywhere":
        raise UserError("the same on all ranks")
    if what == "stopped":
        raise Stopped("state saved")
    if what == "code":
        return 3
    if what == "sudden" and last:
        raise UserError("one rank alone")
    if what == "sudden fault" and last:
        raise ZeroDivisionError("no ground")
    if what == "interrupted" and last:
        raise KeyboardInterrupt
    if what == "after others" and last:
        time.sleep(0.5)
        raise UserError("the others were done")
    if what == "exit":
        sys.exit(0)
    if what == "signals":
        with mpi.Signals() as signals:
            world.comm.Barrier()
            if world.rank == 0:
                print("ready", flush=True)
            while not comm.any_rank(world.comm, signals.stop):
                time.sleep(0.01)
        raise Stopped("state saved")
    if what in ("sudden", "sudden fault", "interrupted"):
        world.comm.Barrier()

sys.exit(mpi.guard(main, sys.argv[1]))
"""

ENDS = {
    "nothing": (0, ""),
    "exit": (0, ""),
    "code": (3, ""),
    "agreed": (2, "lightctr_mpi: error: rows.ffm:7: found a word, expected a number"),
    "everywhere": (2, "lightctr_mpi: error: the same on all ranks"),
    "after others": (2, "lightctr_mpi: error: the others were done"),
    "sudden": (2, "lightctr_mpi: error: one rank alone"),
    "stopped": (75, "lightctr_mpi: stopped: state saved"),
    "agreed fault": (1, "ZeroDivisionError: no ground"),
    "sudden fault": (1, "ZeroDivisionError: no ground"),
    "interrupted": (130, "lightctr_mpi: interrupted"),
}


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("what", ENDS)
@pytest.mark.parametrize("ranks", [0, 3])
def test_exit_code_and_message(program, ranks, what):
    code, message = ENDS[what]
    done = launch.python(program, what, ranks=ranks, timeout=60)
    assert done.returncode == code, done.stderr
    assert done.stderr.count(message or "lightctr_mpi: ") == (1 if message else 0), done.stderr
    if message.startswith("lightctr_mpi"):
        assert message in done.stderr.splitlines() and "Traceback" not in done.stderr
    if "fault" in what:
        assert "in main" in done.stderr  # the traceback of the rank where it happened


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_to_the_process_stops_it_at_its_next_step(program, number):
    process = launch.start(sys.executable, program, "signals")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    done = launch.finish(process, 30)
    assert done.returncode == 75 and "state saved" in done.stderr


def test_mpirun_forwards_sigusr1(program):
    process = launch.start(launch.MPIRUN, "-n", 3, sys.executable, program, "signals")
    assert process.stdout.readline().strip() == "ready"
    process.send_signal(signal.SIGUSR1)
    done = launch.finish(process, 30)
    assert done.returncode == 75, done.stderr
    assert "lightctr_mpi: stopped: state saved" in done.stderr.splitlines()


def test_processes_of_a_foreign_mpirun_are_refused(program):
    library = subprocess.run(
        [sys.executable, "-c", "import mpi4py; mpi4py.rc.initialize = False\n"
         "from mpi4py import MPI; print(MPI.get_vendor()[0])"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    variable = "PMI_SIZE" if library == "Open MPI" else "OMPI_COMM_WORLD_SIZE"
    for foreign in (variable, "SLURM_STEP_NUM_TASKS"):
        done = launch.python(program, "nothing", env={foreign: "4"}, timeout=60)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"lightctr_mpi: error: {foreign} says that 4 processes were started")
        assert library in line and str(launch.MPIRUN) in line
    for harmless in ({variable: "1"}, {"SLURM_NTASKS": "4"}):
        assert launch.python(program, "nothing", env=harmless, timeout=60).returncode == 0


@pytest.mark.parametrize("variable", mpi.SIZE_VARIABLES)
def test_check_size(variable):
    with pytest.raises(UserError, match=f"^{variable} says that 4 .*Some MPI.*mpirun$"):
        mpi.check_size({variable: "4"}, 1, "Some MPI")
    mpi.check_size({variable: "4"}, 4, "Some MPI")
    mpi.check_size({variable: "1", "SLURM_STEP_NUM_TASKS": "1"}, 1, "Some MPI")
    mpi.check_size({variable: "many"}, 1, "Some MPI")


def test_check_size_believes_the_launcher_more_than_the_slurm_step_around_it():
    mpi.check_size({"PMI_SIZE": "1", "SLURM_STEP_NUM_TASKS": "2"}, 1, "MPICH")


@pytest.mark.parametrize(
    "environ, library, version, refused",
    [
        ({"PMI_SIZE": "4"}, "Open MPI", 5, True),
        ({"PMI_SIZE": "1"}, "Open MPI", 5, False),
        ({"PMI_SIZE": "4"}, "Open MPI", 4, False),  # could still be built with PMI-2
        ({"PMI_SIZE": "4", "PMIX_RANK": "0"}, "Open MPI", 5, False),
        ({"OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "0"}, "Open MPI", 5, False),
        ({"OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "0"}, "MPICH", 5, True),
        ({"OMPI_COMM_WORLD_SIZE": "4", "PMI_SIZE": "4"}, "MPICH", 5, False),
        ({"OMPI_COMM_WORLD_SIZE": "4", "MPIR_CVAR_PMI_VERSION": "x"}, "MPICH", 5, False),
        ({"PMI_SIZE": "4"}, "MPICH", 5, False),
        ({}, "MPICH", 5, False),
    ],
)
def test_check_starter(environ, library, version, refused):
    if refused:
        with pytest.raises(UserError, match=f"says that 4 processes .* not by {library}"):
            mpi.check_starter(environ, library, version)
    else:
        mpi.check_starter(environ, library, version)


def test_signals_are_noted_and_handlers_put_back():
    before = [signal.getsignal(n) for n in mpi.Signals.caught]
    with mpi.Signals() as signals:
        assert not signals.stop
        os.kill(os.getpid(), signal.SIGUSR1)
        for _ in range(100):
            if signals.stop:
                break
            time.sleep(0.01)
        assert signals.stop
    assert [signal.getsignal(n) for n in mpi.Signals.caught] == before
