"""The scripts in jobs/ outside Slurm: stand-ins for scontrol and squeue note what is asked for, and do it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import launch
import pytest

JOBS = launch.ROOT / "jobs"
SCRIPTS = sorted(JOBS.glob("*.sh"))

# Slurm ends a job that is requeued, the script first.
SCONTROL = '#!/bin/sh\necho "$@" >>"$WORK/scontrol"\n[ "$REFUSE" ] && exit 1\nkill -TERM $PPID\n'
# Tells one of the states after the other, the last for ever.
SQUEUE = """#!/bin/bash
states=(${JOB_STATES:-RUNNING})
echo >>"$WORK/asked"
n=$(($(wc -l <"$WORK/asked") - 1))
echo "${states[n]:-${states[-1]}}"
"""
# Stands in for mpirun and the program: notes its words, then ends as it is told to.
PROGRAM = """#!/bin/bash
printf '%s\\n' "$@" >"$WORK/words"
trap 'echo >"$WORK/usr1"; exit ${ON_USR1:-75}' USR1
[[ $SUMMARY ]] && mkdir -p "$SUMMARY" && echo '{}' >"$SUMMARY/summary.json"
if [[ $WAITS ]]; then
    echo >"$WORK/waiting"
    while ! [[ -e $WORK/go ]]; do sleep 0.05; done
fi
exit ${CODE:-0}
"""


class Slurm:
    """A folder from which the script is submitted, with the stand-ins on its PATH."""

    def __init__(self, folder: Path):
        self.folder, self.scripts = folder, []
        tools, venv = folder / "tools", folder / "venv" / "bin"
        tools.mkdir()
        venv.mkdir(parents=True)
        (folder / "jobs").symlink_to(JOBS)
        for name, text in (("scontrol", SCONTROL), ("squeue", SQUEUE), ("program", PROGRAM)):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        (venv / "activate").write_text(f'PATH={Path(sys.executable).parent}:"$PATH"\n')
        self.environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "WORK": str(folder),
            "VENV": str(folder / "venv"),
            "LAUNCH": "program",
            "SLURM_SUBMIT_DIR": str(folder),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NAME": "ring",
            "SLURM_JOB_NODELIST": "n1",
        }

    def start(self, *arguments: object, job: str = "ring.sh", **variables: object) -> subprocess.Popen:
        extra = {name: str(value) for name, value in variables.items()}
        script = launch.start("bash", JOBS / job, *arguments, env=self.environment | extra)
        self.scripts.append(script)
        return script

    def run(self, *arguments: object, **variables: Any) -> subprocess.CompletedProcess:
        return launch.finish(self.start(*arguments, **variables), timeout=300)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    @property
    def requeued(self) -> list[str]:
        return self.lines("scontrol")

    @property
    def words(self) -> list[str]:
        return self.lines("words")

    def wait_for(self, name: str, seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while not (self.folder / name).exists():
            assert time.monotonic() < end, f"no {name} after {seconds} s"
            time.sleep(0.02)


@pytest.fixture
def slurm(tmp_path):
    slurm = Slurm(tmp_path)
    yield slurm
    for script in slurm.scripts:
        if script.poll() is None:  # a test failed before it came to the end of what it started
            os.killpg(script.pid, signal.SIGKILL)


def test_there_are_scripts():
    assert JOBS / "ring.sh" in SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_syntax(script):
    done = launch.run("bash", "-n", script)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_directives_on_which_resuming_relies(script):
    directives = [line.split()[1] for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
    assert {"--requeue", "--open-mode=append", "--signal=B:USR1@120"} <= set(directives)


def test_a_finished_run_is_not_requeued(slurm):
    done = slurm.run(
        "train", "job.toml", "--seed", 3, SUMMARY=slurm.folder / "runs/ring-7", SLURM_CPUS_PER_TASK=2
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert slurm.requeued == []
    ours = ["--mode", "ring", "--train.threads", "2", "--train.resume", "auto"]
    place = ["--out", "runs/ring-7"]
    assert slurm.words == ["python", "-m", "lightctr_mpi", "train", *ours, "job.toml", "--seed", "3", *place]


@pytest.mark.parametrize(
    ("variables", "servers"),
    [
        ({"SLURM_JOB_NUM_NODES": 3, "SLURM_NTASKS": 12}, 3),  # one on each node
        ({"SLURM_JOB_NUM_NODES": 2, "SLURM_NTASKS": 3}, 1),  # a worker is needed too
        ({"SLURM_JOB_NUM_NODES": 3, "SLURM_NTASKS": 12, "PS_SERVERS": 5}, 5),
    ],
)
def test_parameter_servers(slurm, variables, servers):
    slurm.run("train", "job.toml", job="ps.sh", SLURM_JOB_NAME="ps", **variables)
    ours = ["--mode", "ps", "--ps.servers", str(servers), "--train.threads", "1", "--train.resume", "auto"]
    expected = ["python", "-m", "lightctr_mpi", "train", *ours, "job.toml", "--out", "runs/ps-7"]
    assert slurm.words == expected
    assert slurm.requeued == ["requeue 7"]


@pytest.mark.parametrize(
    ("version", "options"),
    [("mpirun (Open MPI) 5.0.11", "--map-by node"), ("HYDRA build details:", "-ppn 1")],
)
def test_ranks_are_dealt_to_the_nodes_in_turn(slurm, version, options):
    mpirun = slurm.folder / "venv" / "bin" / "mpirun"
    mpirun.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit\nexec program "$@"\n')
    mpirun.chmod(0o755)
    (slurm.folder / "venv" / "bin" / "activate").write_text(f'PATH={mpirun.parent}:"$PATH"\n')
    slurm.run("train", job="ps.sh", LAUNCH="", SLURM_NTASKS=8)
    assert slurm.words[:8] == ["-n", "8", *options.split(), "python", "-m", "lightctr_mpi", "train"]


def test_without_a_command_the_sample_job_runs(slurm):
    slurm.run("--train.epochs", 3)
    assert slurm.words[:4] == ["python", "-m", "lightctr_mpi", "--mode"]
    assert slurm.words[-4:-2] == ["--train.epochs", "3"]


def test_another_command_is_refused(slurm):
    done = slurm.run("predict", "model.h5")
    assert done.returncode == 2
    assert "expected train and its options, found predict" in done.stdout
    assert slurm.words == []


@pytest.mark.parametrize("code", [75, 0, 143])  # saved; daemons ended; preempted before the training
def test_a_stopped_run_is_requeued(slurm, code):
    done = slurm.run("train", CODE=code)
    assert slurm.requeued == ["requeue 7"]
    assert done.returncode == (code or 75)


@pytest.mark.parametrize("code", [1, 2, 137])
def test_a_failed_run_is_not_requeued(slurm, code):
    done = slurm.run("train", CODE=code)
    assert slurm.requeued == []
    assert done.returncode == code


def test_a_summary_of_an_earlier_run_does_not_count(slurm):
    (slurm.folder / "runs/ring-7").mkdir(parents=True)
    (slurm.folder / "runs/ring-7/summary.json").write_text("{}")
    slurm.run("train")
    assert slurm.requeued == ["requeue 7"]


def test_the_next_start_goes_on_from_its_own_checkpoint(slurm):
    slurm.run("train", "--train.resume", "other.h5", SLURM_RESTART_COUNT=1)
    others = [i for i, word in enumerate(slurm.words) if word == "--train.resume"]
    assert [slurm.words[i + 1] for i in others] == ["auto", "other.h5", "auto"]


@pytest.mark.parametrize("given", [["--out", "mine"], ["--out=mine"]])
def test_a_run_folder_of_the_users_own(slurm, given):
    done = slurm.run("train", *given, SUMMARY=slurm.folder / "mine")
    assert done.returncode == 0
    assert slurm.requeued == []


def test_a_job_that_is_being_cancelled_is_not_requeued(slurm):
    done = slurm.run("train", CODE=75, JOB_STATES="COMPLETING")
    assert slurm.requeued == []
    assert done.returncode == 75


def test_a_signal_on_its_way_is_waited_for(slurm):
    slurm.run("train", CODE=75, JOB_STATES="SIGNALING RUNNING")
    assert slurm.requeued == ["requeue 7"]


def test_requeueing_ends_after_many_starts(slurm):
    done = slurm.run("train", CODE=75, MAX_RESTARTS=3, SLURM_RESTART_COUNT=3)
    assert slurm.requeued == []
    assert done.returncode == 75


def test_a_cluster_without_requeueing(slurm):
    done = slurm.run("train", CODE=75, REFUSE=1)
    assert slurm.requeued == ["requeue 7"]
    assert done.returncode == 75
    assert "could not be requeued" in done.stdout


@pytest.mark.parametrize(
    ("on_usr1", "requeued"), [(75, ["requeue 7"]), (138, ["requeue 7"]), (1, []), (2, [])]
)
def test_the_warning_before_the_limit_reaches_the_program(slurm, on_usr1, requeued):
    script = slurm.start("train", WAITS=1, ON_USR1=on_usr1)
    slurm.wait_for("waiting")
    script.send_signal(signal.SIGUSR1)
    done = launch.finish(script)
    assert slurm.lines("usr1") == [""]
    assert slurm.requeued == requeued
    assert done.returncode == on_usr1


def test_slurm_decides_what_follows_a_term(slurm):
    script = slurm.start("train", WAITS=1, CODE=75)
    slurm.wait_for("waiting")
    script.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert script.poll() is None  # it waits for the program, which may be saving
    (slurm.folder / "go").touch()
    assert launch.finish(script).returncode == 75
    assert slurm.requeued == []


def test_an_array_task_takes_its_setting_and_requeues_only_itself(slurm):
    # The last task of an array has the number of the whole array as its own.
    task = {"SLURM_ARRAY_JOB_ID": 7, "SLURM_ARRAY_TASK_ID": 1}
    slurm.run("train", CODE=75, **task)
    assert slurm.requeued == ["requeue 7_1"]
    assert slurm.words[-4:] == ["--optimizer.lr", "0.1", "--out", "runs/ring-7_1"]
    slurm.run("train", "--out", "mine", **task)
    assert slurm.words[-2:] == ["--out", "mine_1"]


def test_an_array_task_without_a_setting(slurm):
    done = slurm.run("train", SLURM_ARRAY_JOB_ID=7, SLURM_ARRAY_TASK_ID=99)
    assert done.returncode == 2
    assert "SETTINGS has no line number 99" in done.stdout
    assert slurm.words == []


def test_two_ranks_save_are_requeued_and_finish(slurm):
    """The program itself under mpirun: a warning in the middle, a second start to the end."""
    rows = slurm.folder / "rows.ffm"
    rows.write_text("".join(f"{i % 2} 0:{i % 7}:1 1:{10 + i % 5}:1\n" for i in range(400)))
    real = {"LAUNCH": f"{launch.MPIRUN} -n 2", "SLURM_SUBMIT_DIR": launch.ROOT}
    job = [
        "train",
        "--data.train",
        rows,
        "--out",
        slurm.folder / "run",
        "--train.batch_size",
        2,
        "--model.name",
        "lr",
    ]
    script = slurm.start(*job, "--train.epochs", 100000, **real)
    slurm.wait_for("run/metrics.jsonl")
    script.send_signal(signal.SIGUSR1)
    stopped = launch.finish(script, timeout=300)
    assert stopped.returncode == 75, stopped.stdout + stopped.stderr
    assert slurm.requeued == ["requeue 7"]
    epochs = len(slurm.lines("run/metrics.jsonl"))
    finished = slurm.run(*job, "--train.epochs", epochs + 2, SLURM_RESTART_COUNT=1, **real)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "resuming from" in finished.stdout + finished.stderr
    assert len(slurm.lines("run/metrics.jsonl")) == epochs + 2
    assert slurm.requeued == ["requeue 7"]
