"""Reports: what is printed when, and what stands in metrics.jsonl after a kill and a resume."""

import io
import json
import math

import numpy as np
import pytest

from lightctr_mpi import report
from lightctr_mpi.errors import UserError
from lightctr_mpi.report.console import Console, can_be_live, clock_text, progress_text, size_text


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def console(live):
    clock, out, live_out = Clock(), io.StringIO(), io.StringIO()
    return Console(out, live_out, live, clock), clock, out, live_out


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- console ---


def test_a_reader_that_leaves_does_not_end_the_training():
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    news = Console(Broken(), io.StringIO(), False, Clock())
    news.note("train ... | head -1")
    news.finish({"rows": 3})


@pytest.mark.parametrize(
    ("env", "live"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
        ({"TERM": "xterm", "OMPI_COMM_WORLD_SIZE": "1"}, False),
        ({"TERM": "xterm", "PMI_RANK": "0"}, False),
        ({"TERM": "xterm", "SLURM_STEP_NUM_TASKS": "4"}, False),
    ],
)
def test_a_live_line_needs_a_terminal_and_no_launcher(env, live):
    assert can_be_live(Terminal(), env) is live
    assert not can_be_live(io.StringIO(), env)


def test_the_live_line_is_rewritten_five_times_a_second_at_most():
    shown, clock, out, live_out = console(live=True)
    for _ in range(101):  # one second in steps of 10 ms
        shown.progress(1, 10, 100, 0.5, 1.0)
        clock.now += 0.01
    assert 5 <= live_out.getvalue().count("\r") <= 6
    assert "\n" not in live_out.getvalue() and out.getvalue() == ""


def test_text_takes_the_live_line_away_first():
    shown, _, out, live_out = console(live=True)
    shown.progress(1, 10, 100, 0.5, 1.0)
    assert not live_out.getvalue().endswith("\r\x1b[K")
    shown.note("hello")
    assert live_out.getvalue().endswith("\r\x1b[K") and out.getvalue() == "hello\n"
    before = live_out.getvalue()
    shown.close()  # nothing is shown any more
    assert live_out.getvalue() == before


def test_a_narrow_terminal_gets_a_cut_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    shown, _, _, live_out = console(live=True)
    shown.progress(1, 10, 100, 0.5, 1.0)
    assert live_out.getvalue() == "\repoch 1   10%  10 r\x1b[K"


def test_plain_lines_come_every_ten_seconds():
    shown, clock, out, live_out = console(live=False)
    for _ in range(250):
        shown.progress(2, 25, 100, 0.5, 0.5)
        clock.now += 0.1
    assert out.getvalue() == "epoch 2   25%  50 rows/s  loss 0.50000  0:02 left\n" * 2
    assert live_out.getvalue() == ""


def test_plain_lines_count_from_the_start_of_the_run():
    shown, clock, out, _ = console(live=False)
    clock.now += 60  # reading data
    shown.start([], epochs=1)
    shown.progress(1, 25, 100, 0.5, 0.5)
    assert out.getvalue() == ""


def test_progress_text():
    # 600 of 1,000 rows, 200 of them before a resume, in 4 s: 100 rows/s; 400 + 2 * 1,000 rows left
    text = progress_text(2, 4, 600, 1000, 0.25, 4.0, 200)
    assert text == "epoch 2/4   60%  100 rows/s  loss 0.25000  0:24 left"
    assert progress_text(1, None, 0, 0, 0.0, 0.0, 0) == "epoch 1  0 rows  0 rows/s  loss 0.00000"


def test_clock_text():
    assert [clock_text(s) for s in (0, 0.2, 61, 3599.5, 3600, 86399)] == [
        *("0:00", "0:01", "1:01", "1:00:00", "1:00:00", "23:59:59")
    ]


def test_table_of_epochs_and_summary():
    shown, _, out, _ = console(live=False)
    shown.start(["a run"], epochs=2)
    first = {"epoch": 1, "train_logloss": 0.5, "valid_logloss": 0.51234567, "valid_auc": None}
    shown.epoch(first | {"rows_per_second": 123456.7, "seconds": 1.234}, best=True)
    shown.epoch(first | {"epoch": 2, "valid_logloss": math.nan, "rows_per_second": 9.0, "seconds": 10.0})
    shown.finish({"test_logloss": 0.25, "rows": 1234567, "model": "runs/fm/model.h5", "test_auc": None})
    assert out.getvalue().splitlines() == [
        "a run",
        "epoch  train logloss  valid logloss  valid auc     rows/s    seconds",
        "    1        0.50000        0.51235  undefined    123,457       1.23  best",
        "    2        0.50000      undefined  undefined          9      10.00",
        "test logloss  0.25000",
        "rows          1,234,567",
        "model         runs/fm/model.h5",
        "test auc      undefined",
    ]


# --- metrics.jsonl ---


def test_one_object_for_each_epoch_with_null_for_what_json_lacks(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"epoch": 1, "old": true}\n')
    lines = report.JsonLines()
    lines.epoch({"epoch": 0})  # nowhere to write to yet
    lines.open_metrics(path)
    lines.epoch({"epoch": 1, "train_logloss": np.float32(0.5), "valid_auc": None, "n": np.int64(3)})
    assert lines_of(path) == [{"epoch": 1, "train_logloss": 0.5, "valid_auc": None, "n": 3}]  # before close
    why = {"valid_auc": "one class"}
    lines.epoch({"epoch": 2, "valid_logloss": math.nan, "x": [math.inf, 1.5], "why": why})
    lines.close()
    assert lines_of(path)[1] == {"epoch": 2, "valid_logloss": None, "x": [None, 1.5], "why": why}
    assert "NaN" not in path.read_text() and not (tmp_path / "metrics.jsonl.part").exists()


def test_resume_writes_the_epochs_of_the_checkpoint_whatever_the_old_file_has(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"epoch": 1, "a": 1}\n{"epoch": 3, "a": 3}\n{"epoch": 4, "a')
    lines = report.JsonLines()
    lines.open_metrics(path, [{"epoch": 1, "a": 1}, {"epoch": 2, "a": math.nan}])
    lines.epoch({"epoch": 3, "a": 30})
    lines.close()
    assert lines_of(path) == [{"epoch": 1, "a": 1}, {"epoch": 2, "a": None}, {"epoch": 3, "a": 30}]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot write .*nowhere/metrics.jsonl: No such file"):
        report.JsonLines().open_metrics(tmp_path / "nowhere" / "metrics.jsonl")


# --- who gets what ---


def tell_all(news, path):
    news.start(["start"], epochs=1)
    news.open_metrics(path)
    news.progress(1, 1, 2, 0.5, 1.0)
    news.note("note")
    news.epoch({"epoch": 1, "train_logloss": 0.5}, best=True)
    news.finish({"model": "x"})
    news.close()


def test_rank_0_prints_and_writes(tmp_path, capsys):
    tell_all(report.build(0, False), tmp_path / "m.jsonl")
    printed = capsys.readouterr()
    assert printed.out.splitlines()[:2] == ["start", "note"] and "model  x" in printed.out
    assert printed.err == ""
    assert lines_of(tmp_path / "m.jsonl") == [{"epoch": 1, "train_logloss": 0.5}]


def test_quiet_writes_only(tmp_path, capsys):
    tell_all(report.build(0, True), tmp_path / "m.jsonl")
    assert capsys.readouterr() == ("", "")
    assert lines_of(tmp_path / "m.jsonl") == [{"epoch": 1, "train_logloss": 0.5}]


def test_other_ranks_are_silent(tmp_path, capsys):
    tell_all(report.build(1, False), tmp_path / "m.jsonl")
    assert capsys.readouterr() == ("", "")
    assert not (tmp_path / "m.jsonl").exists()


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (33804, "33.8 kB"),
        (999_949, "999.9 kB"),
        (999_951, "1.0 MB"),
        (2.5e12, "2,500.0 GB"),
    ],
)
def test_sizes_have_a_unit_that_fits(n, text):
    assert size_text(n) == text
