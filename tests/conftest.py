"""What all tests share. Tests in tests/mpi run inside an MPI world, which tests/test_launch_mpi.py starts."""

from __future__ import annotations

from pathlib import Path

import cases
import launch
import pytest

from lightctr_mpi import mpi


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests/mpi to the runs under mpirun, so that nothing is skipped in the run that starts them."""
    inside = Path(__file__).parent / "mpi" in (collection_path, *collection_path.parents)
    return True if inside and not config.getoption("--with-mpi") else None


@pytest.fixture
def run_cli(tmp_path):
    """Function that runs the program in a temporary folder (see `launch.cli`)."""

    def call(*arguments: object, **options):
        return launch.cli(*arguments, **{"cwd": tmp_path, **options})

    return call


@pytest.fixture(params=cases.SOURCES)
def program(request, tmp_path, monkeypatch, capsys):
    """The command line within this process, in a folder with the inputs of the cases (`cases.Program`)."""
    cases.fill(tmp_path, request.param)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mpi, "_world", cases.ALONE)
    return cases.Program(tmp_path, capsys)
