"""Tests of this folder run on all ranks of an MPI world at once. A failure on one rank ends the world.

Without that the other ranks would wait for ever in a collective call that the failing one has left.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest

from lightctr_mpi import mpi


@pytest.hookimpl(trylast=True)  # after the reporter has been made
def pytest_configure(config: pytest.Config) -> None:
    """Only rank 0 reports; the others print nothing but failures."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None and mpi.world().rank > 0:
        reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115  (open as long as the run)


def _abort(where: str, text: str) -> None:
    world = mpi.world()
    if world.size > 1:
        sys.__stderr__.write(f"\nrank {world.rank} of {world.size}: {where} failed\n{text}\n")
        sys.__stderr__.flush()
        time.sleep(0.5)  # for other ranks that fail too, and for the pipes
        world.comm.Abort(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.config.pluginmanager.getplugin("capturemanager").suspend_global_capture(in_=True)
        _abort(item.nodeid, report.longreprtext)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if report.failed:
        collector.config.pluginmanager.getplugin("capturemanager").suspend_global_capture(in_=True)
        _abort(collector.nodeid, report.longreprtext)
    return report


@pytest.fixture(scope="session")
def world() -> mpi.World:
    return mpi.world()


@pytest.fixture(scope="session")
def comm(world):
    return world.comm


@pytest.fixture
def folder(comm):
    """A folder that all ranks know."""
    path = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    yield Path(path)
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(path)
