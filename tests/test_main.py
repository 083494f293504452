"""The end of a process: exit code, what was to be done at the end, what was printed."""

from __future__ import annotations

import subprocess
import sys

import launch
import pytest

ENDS = {
    "nothing left": "",
    "a thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.3), print('late'))).start()\n",
    "a profiler": "import sys; sys.setprofile(lambda *_: None)\n",
}


@pytest.mark.parametrize("end", ENDS)
def test_what_is_left_is_done(end):
    code = f"import atexit\natexit.register(print, 'at exit')\n{ENDS[end]}print('printed')\n"
    code += "from lightctr_mpi.__main__ import leave\nleave(3)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    late = ["late"] if end == "a thread" else []
    assert (done.returncode, done.stdout.split("\n")) == (3, ["printed", *late, "at exit", ""])
    assert done.stderr == ""


def test_memory_is_not_taken_apart():
    """What an object does when it is deleted is not done: the operating system takes the memory."""
    code = "class Large:\n    def __del__(self): print('deleted')\nkept = Large()\n"
    code += "from lightctr_mpi.__main__ import leave\nleave(0)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_closed_output_is_told():
    code = "print('x' * 100_000)\nfrom lightctr_mpi.__main__ import leave\nleave(0)\n"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode != 0 and b"No space left on device" in done.stderr


@pytest.mark.parametrize("buffered", [True, False])
def test_a_full_output_is_one_line(buffered):
    extra = {} if buffered else {"PYTHONUNBUFFERED": "1"}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "lightctr_mpi", "train", "--help"]
        env = launch.environment(extra)
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=env)
    expected = "lightctr_mpi: error: cannot write: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, expected)


def test_no_output_at_all(tmp_path):
    """As after a shell's >&-: Python then has no sys.stdout."""
    words = ["-m", "lightctr_mpi", "synth", "--rows", "5", "--out"]
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, *words, str(tmp_path / "s")]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert "Traceback" not in done.stderr and done.returncode == 0
