"""Run the tests of tests/mpi under mpirun, on each number of ranks."""

from __future__ import annotations

import re
import sys

import launch
import pytest

SECONDS = 1200  # of a whole run; a test that hangs ends its run after 120

FAILING = """
import pytest

@pytest.mark.mpi
def test_fails_on_the_last_rank(comm):
    assert comm.rank < comm.size - 1, "the last rank has had enough"
    comm.Barrier()
"""


def outcomes(text: str) -> dict[str, int]:
    """Counts of the last line of a pytest report: {"passed": 12, "skipped": 1}."""
    last = [line for line in text.splitlines() if re.search(r"\bin [\d.]+s\b", line)][-1]
    return {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", last.split(" in ")[0])}


def run_pytest(ranks: int, *arguments: object, timeout: float = SECONDS):
    # The thread method shows where a rank hangs inside an MPI call, which no signal handler interrupts.
    options = [
        "--with-mpi",
        "-q",
        "--timeout=120",
        "--timeout-method=thread",
        "--color=no",
        "-p",
        "no:cacheprovider",
    ]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    return launch.mpirun(ranks, *command, timeout=timeout, cwd=launch.ROOT)


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("ranks", launch.RANKS)
def test_suite(ranks):
    done = run_pytest(ranks, "tests/mpi")
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    counts = outcomes(done.stdout)
    assert counts.get("passed", 0) > 0, text
    assert set(counts) <= {"passed", "warnings", "warning"}, text


def test_a_failure_on_one_rank_ends_all(tmp_path):
    (tmp_path / "conftest.py").write_text((launch.ROOT / "tests/mpi/conftest.py").read_text())
    (tmp_path / "test_bad.py").write_text(FAILING)
    done = run_pytest(3, "-c", launch.ROOT / "setup.cfg", tmp_path, timeout=60)
    assert done.returncode != 0
    assert "rank 2 of 3: " in done.stderr and "the last rank has had enough" in done.stderr
