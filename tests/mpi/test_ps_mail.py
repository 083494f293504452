"""Messages between ranks that nobody waits for: whole, once, in order, and nothing left behind."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from lightctr_mpi import comm as wire
from lightctr_mpi.errors import UserError
from lightctr_mpi.ps import mail as mail_module
from lightctr_mpi.ps.mail import SMALL_BYTES, TAG, Mail
from lightctr_mpi.ps.protocol import HEADER_BYTES, Kind, Message, ProtocolError, compose
from lightctr_mpi.ps.roles import split

pytestmark = pytest.mark.mpi

PATIENCE = 60.0  # seconds until something that never comes counts as lost
# A send that waits for its receiver takes as long as that one is busy; a machine that is busy, far less.
BUSY, AT_ONCE = 1.5, 1.0


@pytest.fixture
def place(world):
    """A communicator of its own for each test, which all enter and leave together."""
    comm = world.comm.Dup()
    yield comm
    comm.Barrier()
    comm.Free()


@pytest.fixture
def box(world, place):
    mail = Mail(place, world.status)
    yield mail
    mail.close()


def letter(source: int, dest: int, number: int, body_bytes: int) -> np.ndarray:
    """A message with who, where to, which one, and a body that nobody else would send."""
    data = compose(Kind.PUSH, body_bytes, lease=number, clock=source, share=dest)
    data[HEADER_BYTES:] = body(source, dest, number, body_bytes)
    return data


def body(source: int, dest: int, number: int, body_bytes: int) -> np.ndarray:
    return np.random.default_rng([source, dest, number]).integers(0, 256, body_bytes, np.uint8)


class Pile:
    """What a rank has received, checked one by one: who sent it, whether it is whole and the next in turn."""

    def __init__(self, mail: Mail):
        self.mail, self.rank = mail, mail.rank
        self.counts = [0] * mail.comm.size
        self.nbytes = 0

    def take(self) -> list[Message]:
        messages = self.mail.receive()
        for message in messages:
            source, number = message.source, self.counts[message.source]
            assert (message.clock, message.share, message.lease) == (source, self.rank, number)
            wanted = body(source, self.rank, number, len(message.data) - HEADER_BYTES)
            np.testing.assert_array_equal(message.data[HEADER_BYTES:], wanted)
            self.counts[source] += 1
            self.nbytes += len(message.data)
        if not messages:
            self.mail.rest()
        return messages

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            self.take()
            assert time.monotonic() < end, f"received only {self.counts}"

    def sent_all(self) -> bool:
        return not self.mail.moving()


def silence(mail: Mail, seconds: float = 0.2) -> None:
    """Nothing more comes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert mail.receive() == []
        mail.rest()


def sizes(seed: int, n: int) -> np.ndarray:
    """Sizes of bodies from 0 to some MB, of all orders of magnitude, and those where MPI changes its ways."""
    rng = np.random.default_rng(seed)
    edges = [0, 1, SMALL_BYTES - HEADER_BYTES, SMALL_BYTES - HEADER_BYTES + 1, 3968, 3969, 2**16]
    chosen = (2.0 ** rng.uniform(0, 21.5, n)).astype(int)
    chosen[rng.random(n) < 0.3] = 0
    odd = rng.random(n) < 0.2
    chosen[odd] = rng.choice(edges, n)[odd]
    return chosen


# --- whole, once, in order ---


@pytest.mark.parametrize("chunk_bytes", [1 << 30, 100_000, 1000])
def test_storm(place, box, monkeypatch, chunk_bytes):
    """All send to all and to themselves at once, whatever the others are doing."""
    monkeypatch.setattr(wire, "CHUNK_BYTES", chunk_bytes)
    size, each = place.size, max(4, 60 // place.size)
    largest = 1000 * chunk_bytes  # more pieces than that prove nothing
    plan = {
        (a, b): np.minimum(sizes(100 * a + b, each), largest // 4) for a in range(size) for b in range(size)
    }
    rng, pile = np.random.default_rng(place.rank), Pile(box)
    letters = [(b, number) for b in range(size) for number in range(each)]
    place.Barrier()
    turns = rng.permuted([b for b, _ in letters])
    next_of, sent = [0] * size, 0
    for dest in turns:
        number = next_of[dest]
        next_of[dest] += 1
        data = letter(place.rank, int(dest), number, int(plan[place.rank, int(dest)][number]))
        box.send(int(dest), data)
        sent += len(data)
        if rng.random() < 0.3:
            pile.take()
        if rng.random() < 0.02:
            time.sleep(0.02)
    pile.until(lambda: pile.counts == [each] * size and not box.moving())
    assert box.sent == sent
    assert box.received == pile.nbytes
    assert pile.nbytes == sum(HEADER_BYTES * each + plan[a, place.rank].sum() for a in range(size))
    place.Barrier()
    silence(box)


def test_sends_wait_for_nobody(place, box):
    """The last rank is busy; the others send it more than any buffer holds, and go on."""
    last, pile = place.size - 1, Pile(box)
    letters = [letter(place.rank, last, i, n) for i, n in enumerate((0, 3000, 5000, 70_000, 4 << 20, 20))]
    place.Barrier()
    if place.rank == last and place.size > 1:
        time.sleep(BUSY)
    started = time.monotonic()
    for data in letters:
        box.send(last, data)
    assert time.monotonic() - started < AT_ONCE
    if place.rank == last:
        pile.until(lambda: pile.counts == [len(letters)] * place.size)
    pile.until(pile.sent_all)


@pytest.mark.parametrize("nbytes", [1024, 4096])
def test_receiving_waits_for_nobody(place, box, nbytes):
    """A sender is busy once it has let its message go: what is missing of it must not hold others up."""
    busy, pile = place.size - 1, Pile(box)
    letters = [[letter(busy, dest, i, nbytes - 128 * (1 - i)) for i in (0, 1)] for dest in range(place.size)]
    place.Barrier()
    if place.rank == busy:
        for dest, pair in enumerate(letters):
            for data in pair:
                box.send(dest, data)
        if place.size > 1:
            time.sleep(BUSY)
    end = time.monotonic() + BUSY
    while place.rank != busy and pile.counts[busy] < 2 and time.monotonic() < end:
        started = time.monotonic()
        pile.take()
        assert time.monotonic() - started < AT_ONCE
    pile.until(lambda: pile.counts[busy] == 2)


def test_poking_moves_messages_and_keeps_them(place, box):
    """Who computes does not look, but pokes: its messages leave, and what comes in waits for it."""
    right, left = (place.rank + 1) % place.size, (place.rank - 1) % place.size
    for number, nbytes in enumerate((100, 4 << 20, 0)):
        box.send(right, letter(place.rank, right, number, nbytes))
    end = time.monotonic() + PATIENCE
    barrier = None  # with it on the way, messages have moved at all ranks though nobody has received one
    while barrier is None or not barrier.Test():
        box.poke()
        box.rest()
        if barrier is None and not box._sending:
            barrier = place.Ibarrier()
        assert time.monotonic() < end
    pile = Pile(box)
    pile.until(lambda: pile.counts[left] == 3)
    silence(box, 0.02)


# --- long messages ---


@pytest.mark.parametrize("total", [1000, 1001, 2000, 2001, 3000, 10_000, 10_128, 128_000])
def test_long_messages(place, box, monkeypatch, total):
    """Lengths that are a multiple of the piece, just above, and with a last piece as long as a header."""
    monkeypatch.setattr(wire, "CHUNK_BYTES", 1000)
    size, pile = place.size, Pile(box)
    for dest in range(size):
        box.send(dest, letter(place.rank, dest, 0, total - HEADER_BYTES))
        box.send(dest, letter(place.rank, dest, 1, 0))
        box.send(dest, letter(place.rank, dest, 2, total - HEADER_BYTES))
    pile.until(lambda: pile.counts == [3] * size)
    assert pile.nbytes == box.received == box.sent == size * (2 * total + HEADER_BYTES)


def test_pieces_as_long_as_a_header(place, box, monkeypatch):
    """Pieces that could be taken for messages of their own, and even begin as one that announces pieces."""
    monkeypatch.setattr(wire, "CHUNK_BYTES", HEADER_BYTES)
    right, left = (place.rank + 1) % place.size, (place.rank - 1) % place.size
    data = compose(Kind.PUSH, 10 * HEADER_BYTES, lease=7)
    data[HEADER_BYTES:] = np.tile(compose(Kind.LONG, spare=5000), 10)
    box.send(right, data)
    box.send(right, compose(Kind.NEXT, lease=8))
    messages: list[Message] = []
    end = time.monotonic() + PATIENCE
    while len(messages) < 2 and time.monotonic() < end:
        messages += box.receive()
    assert [(m.source, m.kind, m.lease) for m in messages] == [(left, Kind.PUSH, 7), (left, Kind.NEXT, 8)]
    np.testing.assert_array_equal(messages[0].data, data)


def test_pieces_come_in_order_though_the_sender_pauses(place, box, monkeypatch):
    """Everybody has a long message to rank 0 half sent while others' come in whole."""
    monkeypatch.setattr(wire, "CHUNK_BYTES", 50_000)
    size, pile, rank = place.size, Pile(box), place.rank
    data = letter(rank, 0, 0, 420_000)
    pieces = [compose(Kind.LONG, spare=len(data)), *np.split(data, range(50_000, len(data), 50_000))]
    for turn, piece in enumerate(pieces):  # as `send` would, but one at a time
        box._isend(piece, 0)
        if rank % 2 == turn % 2:
            pile.take()
        time.sleep(0.002 * ((rank + turn) % 3))
    box.send(0, letter(rank, 0, 1, 10))
    if rank == 0:
        pile.until(lambda: pile.counts == [2] * size)
    pile.until(pile.sent_all)


# --- what no rank can have sent ---


def refused(box: Mail, wanted: str) -> None:
    end = time.monotonic() + PATIENCE
    with pytest.raises(ProtocolError, match=wanted):
        while time.monotonic() < end:
            box.receive()
            box.rest()


@pytest.mark.parametrize("short", [0, 1, 127, 40_000])
def test_torn_messages(place, box, short):
    """The receiver refuses it, and can still leave together with the others."""
    data = np.zeros(short, np.uint8)
    if short > HEADER_BYTES:
        data[:HEADER_BYTES] = compose(Kind.PUSH, short)[:HEADER_BYTES]
    box._isend(data, (place.rank + 1) % place.size)
    left = (place.rank - 1) % place.size
    what = f"a PUSH from rank {left} is torn" if short > HEADER_BYTES else "are no message"
    refused(box, f"{what}|rank {left}")


@pytest.mark.parametrize(
    "pieces",
    [[999], [1000, 1001], [1000, 1000, 501], [500, 1000, 1000], [0], [70_000], [1000, 1000, 1 << 20]],
)
def test_torn_pieces(place, box, monkeypatch, pieces):
    """2500 bytes are announced; what has another length than its place asks for is not written anywhere."""
    monkeypatch.setattr(wire, "CHUNK_BYTES", 1000)
    right, left = (place.rank + 1) % place.size, (place.rank - 1) % place.size
    box._isend(compose(Kind.LONG, spare=2500), right)
    for nbytes in pieces:
        box._isend(np.zeros(nbytes, np.uint8), right)
    at = next(i for i, n in enumerate(pieces) if n != (1000, 1000, 500)[i])
    refused(box, f"a piece of a message from rank {left} has {pieces[at]} bytes, not {(1000, 1000, 500)[at]}")


@pytest.mark.parametrize("announced", [-1, 0, 128, 1000, -(2**63), 2**63 - 1])
def test_announcements_that_cannot_be(place, box, monkeypatch, announced):
    monkeypatch.setattr(wire, "CHUNK_BYTES", 1000)
    box._isend(compose(Kind.LONG, spare=announced), (place.rank + 1) % place.size)
    refused(box, f"a LONG from rank {(place.rank - 1) % place.size} .*{announced} bytes")


# --- leaving ---


def leave(mail: Mail) -> None:
    started = time.monotonic()
    mail.close()
    assert time.monotonic() - started < PATIENCE / 4
    assert not mail.moving()


@pytest.mark.parametrize("look", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1 << 30, 30_000])
def test_close_with_everything_under_way(world, place, monkeypatch, chunk_bytes, look):
    """Nobody has received all of it; a second Mail in the same place sees nothing of the first."""
    monkeypatch.setattr(wire, "CHUNK_BYTES", chunk_bytes)
    rank, right = place.rank, (place.rank + 1) % place.size
    for turn in range(4):
        mail = Mail(place, world.status)
        rng = np.random.default_rng([rank, turn])
        for number in range(6):
            for dest in rng.permutation(place.size):
                nbytes = int(rng.choice([0, 900, 5000, 300_000]))
                mail.send(int(dest), compose(Kind.PUSH, nbytes, lease=number))
        if look and rank % 2 == turn % 2:
            mail.receive()
        leave(mail)
        pile = Pile(Mail(place, world.status))
        pile.mail.send(right, letter(rank, right, 0, 500))
        hear(pile)
        leave(pile.mail)


def hear(pile: Pile) -> None:
    """The one message from the left, and then nothing."""
    pile.until(lambda: sum(pile.counts) == 1)
    silence(pile.mail, 0.02)


def test_close_leaves_no_small_message(world, place):
    """A small message is gone for its sender long before anybody has it."""
    for turn in range(60):
        mail = Mail(place, world.status)
        for dest in range(place.size):
            for _ in range(turn % 4):
                mail.send(dest, compose(Kind.NEXT))
        mail.close()
        for _ in range(3):
            assert place.Iprobe(tag=TAG) is False
        place.Barrier()  # the next messages come after everybody has looked


def test_close_while_others_are_busy(world, place):
    """Ranks come to leave at different times; nobody leaves before the last."""
    mail = Mail(place, world.status)
    arrival = np.zeros(place.size)
    mail.send((place.rank + 1) % place.size, letter(place.rank, 0, 0, 1 << 20))
    time.sleep(0.05 * place.rank)
    arrival[:] = time.time()
    mail.close()
    left = time.time()
    place.Allgather(np.array([arrival[0]]), arrival)
    assert left >= arrival.max() - 0.05


def test_close_after_a_failure(world, place):
    """One rank refuses what it gets; large messages to it must not keep their senders from leaving."""
    mail = Mail(place, world.status)
    mail._isend(compose(Kind.LONG, spare=2 << 30), 0)
    mail._isend(np.zeros(1 << 20, np.uint8), 0)
    mail.send(0, letter(place.rank, 0, 0, 1 << 20))
    if place.rank == 0:
        refused(mail, "from rank")
    leave(mail)


def test_close_of_a_silent_box(world, place):
    for _ in range(3):
        leave(Mail(place, world.status))


# --- waiting ---


def cost_of(mail: Mail, seconds: float) -> float:
    """Share of a core that looking and resting takes."""
    started, before = time.monotonic(), time.process_time()
    while time.monotonic() - started < seconds:
        assert mail.receive() == []
        mail.rest()
    return (time.process_time() - before) / (time.monotonic() - started)


def test_an_idle_rank_leaves_the_core_to_others(place, box):
    place.Barrier()
    cost = cost_of(box, 1.0)
    costs = place.allgather(cost)
    if place.rank == 0:
        print(f"idle: {max(costs):.1%} of a core at {place.size} ranks")
    assert cost < 0.1


def test_a_rank_that_waits_for_a_busy_one_rests_too(place, box):
    """A long message is under way to a rank that does not look; its sender waits without using the core."""
    last = place.size - 1
    place.Barrier()
    cost = 0.0
    if place.rank < last:
        box.send(last, letter(place.rank, last, 0, 8 << 20))
        cost = cost_of(box, 1.0)
    else:
        time.sleep(1.0 if place.size > 1 else 0)
    pile = Pile(box)
    pile.until(lambda: not box.moving() and (place.rank < last or pile.counts == [1] * last + [0]))
    costs = place.allgather(cost)
    if place.rank == 0:
        print(f"waiting for a busy rank: {max(costs):.1%} of a core at {place.size} ranks")
    assert cost < 0.5


def test_ping_pong(place, box):
    """No time is asked for, but it ends: each waits for the other's answer, hundreds of times."""
    partner = place.rank ^ 1
    if partner >= place.size:
        partner = place.rank
    turns, began = 300, time.perf_counter()
    for turn in range(turns):
        if place.rank <= partner:
            box.send(partner, compose(Kind.NEXT, lease=turn))
        end = time.monotonic() + PATIENCE
        while not (messages := box.receive()):
            box.rest()
            assert time.monotonic() < end
        assert [(message.source, message.lease) for message in messages] == [(partner, turn)]
        if place.rank > partner:
            box.send(partner, compose(Kind.NEXT, lease=turn))
    if place.rank == 0:
        print(f"ping-pong: {(time.perf_counter() - began) / turns * 1e6:.0f} us at {place.size} ranks")


def test_naps_grow_and_end_with_the_first_message(place, box, monkeypatch):
    naps: list[float] = []
    monkeypatch.setattr(mail_module.time, "sleep", naps.append)
    monkeypatch.setattr(mail_module.os, "sched_yield", lambda: naps.append(0.0))
    place.Barrier()
    for _ in range(200):
        box.rest()
    assert naps[: mail_module.YIELDS - 1] == [0.0] * (mail_module.YIELDS - 1)
    assert naps == sorted(naps) and naps[-1] == mail_module.LONGEST_NAP_SECONDS
    place.Barrier()
    box.send(place.rank, compose(Kind.NEXT))
    while not box.receive():
        pass
    naps.clear()
    box.rest()
    assert naps == [0.0]


# --- roles ---


def test_split(comm):
    if comm.size < 3:
        with pytest.raises(UserError, match="needs 3 ranks or more"):
            split(comm, "here", 1)
        return
    for servers in range(1, comm.size - 1):
        roles = split(comm, f"node{comm.rank}", servers)
        assert (roles.rank, roles.size, roles.n_servers) == (comm.rank, comm.size, servers)
        assert roles.hosts == tuple(f"node{r}" for r in range(comm.size))
        assert roles.mail.size == comm.size and roles.mail.rank == comm.rank
        members = [[0], list(roles.servers), list(roles.workers)]
        assert sum(members, []) == list(range(comm.size)) and len(members[2]) == roles.n_workers
        mine = next(group for group in members if comm.rank in group)
        assert roles.team.allgather(comm.rank) == mine
        assert roles.number == roles.team.rank == mine.index(comm.rank)
        roles.mail.Free()
        roles.team.Free()
