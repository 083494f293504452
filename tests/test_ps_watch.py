"""Who is silent, what is said of it, and the signs of life of those who are not."""

from __future__ import annotations

import numpy as np
import pytest

from lightctr_mpi.config import PsOptions
from lightctr_mpi.errors import Fault
from lightctr_mpi.ps import signs, watch
from lightctr_mpi.ps.protocol import STOP, Kind, Message
from lightctr_mpi.ps.roles import Roles
from lightctr_mpi.ps.signs import Signs, beat_seconds
from lightctr_mpi.ps.trace import PULLED, PUSHED, Trace
from lightctr_mpi.ps.watch import Lost, Watch


class Clock:
    """A time that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watch, "time", clock)
    monkeypatch.setattr(signs, "time", clock)
    return clock


def roles_of(rank: int = 0, servers: int = 1, workers: int = 2) -> Roles:
    size = 1 + servers + workers
    return Roles(rank, size, servers, None, None, tuple(f"node{r // 2}" for r in range(size)))


def watching(watched: Watch, clock: Clock, seconds: float, *alive: int) -> None:
    """Time passes while the Master looks 20 times a second and hears of some ranks."""
    for _ in range(round(seconds * 20)):
        clock.now += 0.05
        for rank in alive:
            watched.heard(rank)
        watched.look(clock.now)


def test_silence_is_told_once_and_its_end(clock) -> None:
    notes: list[str] = []
    watched = Watch(roles_of(), 600.0, notes.append)
    watched.says(3, "learning share 1 of clock 5")
    watching(watched, clock, 29.9, 1)
    assert notes == []
    watching(watched, clock, 0.2, 1)
    assert notes == [
        "rank 2 (worker 0 on node1) has been silent for 30 s; it last said: starting",
        "rank 3 (worker 1 on node1) has been silent for 30 s; it last said: learning share 1 of clock 5",
    ]
    watching(watched, clock, 100, 1)
    assert len(notes) == 2
    watched.heard(3)
    assert notes[2:] == ["rank 3 (worker 1 on node1) is back"]
    watched.heard(3)
    watching(watched, clock, 20, 1, 3)
    assert len(notes) == 3
    watching(watched, clock, 31, 1)
    assert notes[3:] == [
        "rank 3 (worker 1 on node1) has been silent for 30 s; it last said: learning share 1 of clock 5"
    ]


def test_silence_ends_the_run(clock) -> None:
    watched = Watch(roles_of(), 600.0, lambda text: None)
    watched.says(1, "writing its part of a checkpoint")
    watching(watched, clock, 599.9, 2, 3)
    with pytest.raises(Lost) as caught:
        watching(watched, clock, 0.2, 2, 3)
    wanted = (
        "rank 1 (server 0 on node0) has been silent for 600 s; it last said: writing its part of a checkpoint"
    )
    assert str(caught.value) == wanted
    assert isinstance(caught.value, Fault)


def test_short_limits_are_told_at_half(clock) -> None:
    notes: list[str] = []
    watched = Watch(roles_of(), 10.0, notes.append)
    watching(watched, clock, 4.9, 1, 2)
    assert notes == []
    watching(watched, clock, 0.2, 1, 2)
    assert [note[:6] for note in notes] == ["rank 3"]


def test_time_in_which_nobody_looked_is_no_silence(clock) -> None:
    """Of a gap between two looks a second counts, whoever caused it; what came before and after does too."""
    notes: list[str] = []
    watched = Watch(roles_of(), 600.0, notes.append)
    watching(watched, clock, 20, 1, 2)
    clock.now += 7200
    watched.heard(2)  # its signs are there already, those of the others not yet
    watched.look(clock.now)
    assert notes == [] and watched.last[2] == clock.now
    assert watched.last[3] == pytest.approx(clock.now - 21)
    assert watched.last[1] == pytest.approx(clock.now - 1)
    watching(watched, clock, 8.9, 1, 2)
    assert notes == []
    watching(watched, clock, 0.2, 1, 2)
    assert len(notes) == 1 and notes[0].startswith("rank 3 (worker 1 on node1) has been silent for 30 s")
    with pytest.raises(Lost, match="rank 3"):
        watching(watched, clock, 571, 1, 2)


def test_names_of_ranks() -> None:
    roles = roles_of(servers=2, workers=3)
    wanted = ["Master on node0", "server 0 on node0", "server 1 on node1", "worker 0 on node1"]
    wanted += ["worker 1 on node2", "worker 2 on node2"]
    assert [roles.name(rank) for rank in range(6)] == [f"rank {r} ({text})" for r, text in enumerate(wanted)]
    assert [roles_of(rank, 2, 3).number for rank in range(6)] == [0, 0, 1, 0, 1, 2]
    assert [roles_of(rank, 2, 3).is_master for rank in range(6)] == [True] + [False] * 5
    assert [roles_of(rank, 2, 3).is_server for rank in range(6)] == [False, True, True, False, False, False]
    assert (list(roles.servers), list(roles.workers), roles.n_workers) == ([1, 2], [3, 4, 5], 3)


class Sent:
    """Takes the place of the mail: what was sent."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def send(self, dest: int, data: np.ndarray) -> None:
        assert dest == 0
        self.messages.append(Message(data, 4))


def test_beats(clock) -> None:
    mail, stop = Sent(), False
    sign = Signs(mail, lambda: stop, 1.0)
    for _ in range(99):
        clock.now += 0.05
        sign.beat()
    assert len(mail.messages) == 4
    sign.doing = "learning"
    sign.beat(now=True)
    sign.beat()
    assert [message.text() for message in mail.messages[3:]] == ["starting", "learning"]
    assert {(message.kind, message.flags) for message in mail.messages} == {(Kind.ALIVE, 0)}
    stop = True
    sign.beat()  # at once
    sign.beat()
    assert [message.flags for message in mail.messages[5:]] == [STOP]
    clock.now += 1.0
    sign.beat()
    assert [message.flags for message in mail.messages[6:]] == [STOP]


@pytest.mark.parametrize("lease, silence, wanted", [(60, 600, 1), (2, 600, 0.4), (60, 1, 0.2)])
def test_beats_come_well_before_silence_matters(lease: float, silence: float, wanted: float) -> None:
    assert beat_seconds(PsOptions(lease_seconds=lease, silence_seconds=silence)) == pytest.approx(wanted)


def test_trace(tmp_path) -> None:
    trace = Trace(tmp_path / "trace.npy")
    trace.add(PULLED, 2, 5, 0, 4, 100)
    trace.add(PUSHED, 3, 2**40, 1, 5, 7)
    trace.save()
    trace.save()  # with every checkpoint anew
    saved = np.load(trace.path)
    assert saved.tolist() == [(0, 2, 5, 0, 4, 100), (1, 3, 2**40, 1, 5, 7)]
    assert saved.dtype.names == ("kind", "worker", "clock", "share", "complete", "keys")
