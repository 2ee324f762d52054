"""The data transport on loopback: order, marking, losses, refusals, back-pressure."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from agents import lane_socket, lanes, transport, wire
from agents.lanes import LaneId
from agents.transport import Transport
from topologies import dscp
from topologies.errors import UsageError

_NUMBERS = itertools.count(1)


class Sink:
    """Keeps what arrives."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, dict[str, Any], bytes]] = []
        self.losses: list[tuple[int, int, str]] = []
        self.changed = asyncio.Event()

    def place(self, peer: int, header: wire.Header, nbytes: int) -> memoryview:
        if header.get("refuse"):
            raise wire.ProtocolError("not wanted here")
        return wire.fresh_buffer(header, nbytes)

    def arrived(self, peer: int, path: int, frame: wire.Frame) -> None:
        self.frames.append((peer, path, frame.header, bytes(frame.payload)))
        self.changed.set()

    def lost(self, peer: int, path: int, reason: str) -> None:
        self.losses.append((peer, path, reason))
        self.changed.set()

    async def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Pair:
    """Two transports."""

    def __init__(self, first_hops: dict[tuple[int, int], int] | None = None) -> None:
        block = f"127.{1 + os.getpid() % 250}.{250 + next(_NUMBERS) % 5}."
        self.addresses = {k: (f"{block}{k + 1}", 7100 + next(_NUMBERS)) for k in range(2)}
        self.sinks = [Sink(), Sink()]
        self.ends = [Transport(k, self.addresses, self.sinks[k], first_hops=first_hops) for k in range(2)]

    async def __aenter__(self) -> Pair:
        for end in self.ends:
            await end.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for end in self.ends:
            await end.close()

    def socket(self, path: int = 0, cls: int = 0) -> socket.socket:
        sock = self.ends[0]._lane(LaneId(1, path, cls))._socket
        assert sock is not None
        return sock


def run(work: Callable[[Pair], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def all_of_it() -> None:
        async with Pair(**options) as pair:
            await work(pair)

    asyncio.run(all_of_it())


def test_frames_arrive_whole_and_in_order_in_both_directions() -> None:
    chunk = np.arange(100_000, dtype=np.float32)

    async def work(pair: Pair) -> None:
        for number in range(50):
            pair.ends[0].send(1, 0, {"n": number}, chunk if number % 2 else b"")
            pair.ends[1].send(0, 0, {"n": number}, b"x" * number)
        await pair.sinks[1].until(lambda: len(pair.sinks[1].frames) == 50)
        await pair.sinks[0].until(lambda: len(pair.sinks[0].frames) == 50)
        assert [frame[2]["n"] for frame in pair.sinks[1].frames] == list(range(50))
        assert all(
            frame[3] == (chunk.tobytes() if k % 2 else b"") for k, frame in enumerate(pair.sinks[1].frames)
        )
        assert [len(frame[3]) for frame in pair.sinks[0].frames] == list(range(50))
        counters = next(iter(pair.ends[0].lanes())).counters
        assert counters.frames == 50 and counters.connects == 1
        received = pair.ends[1].received[0, 0]
        assert received.bytes == counters.bytes > 25 * chunk.nbytes

    run(work)


def test_each_path_and_class_has_its_own_marked_connection_from_the_sites_address() -> None:
    async def work(pair: Pair) -> None:
        wanted = [(0, 0), (1, 0), (3, 5)]
        for path, cls in wanted:
            pair.ends[0].send(1, path, {"path": path}, cls=cls)
        await pair.sinks[1].until(lambda: len(pair.sinks[1].frames) == 3)
        ports = set()
        for path, cls in wanted:
            sock = pair.socket(path, cls)
            assert sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == dscp.encode(path, cls)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert sock.getsockname()[0] == pair.addresses[0][0]
            ports.add(sock.getsockname()[1])
        assert len(ports) == 3
        assert sorted(frame[1] for frame in pair.sinks[1].frames) == [0, 1, 3]

    run(work)


def test_the_backlog_stays_in_the_queue_where_the_lowest_order_goes_first() -> None:
    block = np.zeros(4_000_000, np.uint8)

    async def work(pair: Pair) -> None:
        sender, sink = pair.ends[0], pair.sinks[1]
        sender.send(1, 0, {"n": "opens"})
        await sink.until(lambda: len(sink.frames) == 1)
        pair.ends[1].hold(True)
        for number in range(40):
            sender.send(1, 0, {"n": f"bulk {number}"}, block, order=(5.0,))
        await until(lambda: sender._lane(LaneId(1, 0, 0))._armed)
        waiting = sender.queue_length(1)
        assert 20 <= waiting <= 39  # what the kernel's buffers do not hold
        sender.send(1, 0, {"n": "late but urgent"}, order=(1.0,))
        sender.send(1, 0, {"n": "later, equally urgent"}, order=(1.0,))
        assert sender.queue_length(1) == waiting + 2
        pair.ends[1].hold(False)
        await sink.until(lambda: len(sink.frames) == 43, 30.0)
        names = [frame[2]["n"] for frame in sink.frames]
        urgent = names.index("late but urgent")
        assert urgent == 41 - waiting and names[urgent + 1] == "later, equally urgent"
        assert [n for n in names if n.startswith("bulk")] == [f"bulk {k}" for k in range(40)]
        assert sender.queue_length(1) == 0

    run(work)


def test_a_fixed_send_buffer_replaces_the_limit_on_unsent_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def options(pair: Pair) -> tuple[int, int]:
        pair.ends[0].send(1, 0, {"n": "opens"})
        await pair.sinks[1].until(lambda: len(pair.sinks[1].frames) == 1)
        sock = pair.socket()
        unsent = sock.getsockopt(socket.IPPROTO_TCP, lane_socket.TCP_NOTSENT_LOWAT)
        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF), unsent

    async def usual(pair: Pair) -> None:
        assert (await options(pair))[1] == lanes.NOTSENT_LOWAT

    async def fixed(pair: Pair) -> None:
        size, unsent = await options(pair)
        assert size == 2 * 150_000  # the kernel counts its own overhead in
        assert unsent != lanes.NOTSENT_LOWAT

    run(usual)
    monkeypatch.setenv(lane_socket.SEND_BUFFER, "150000")
    run(fixed)
    monkeypatch.setenv(lane_socket.SEND_BUFFER, "4M")
    with pytest.raises(UsageError, match="STORMBED_SEND_BUFFER_BYTES cannot be '4M'"):
        Pair()


def test_a_holding_receiver_reads_nothing_until_it_resumes() -> None:
    async def work(pair: Pair) -> None:
        pair.ends[1].hold(True)
        pair.ends[0].send(1, 0, {"n": 1}, b"abc")
        await until(lambda: next(iter(pair.ends[0].lanes())).counters.frames == 1)
        await asyncio.sleep(0.1)
        assert not pair.sinks[1].frames
        pair.ends[1].hold(False)
        await pair.sinks[1].until(lambda: len(pair.sinks[1].frames) == 1)

    run(work)


def test_sent_is_called_when_the_kernel_has_the_payload() -> None:
    async def work(pair: Pair) -> None:
        done: list[int] = []
        for number in range(3):
            pair.ends[0].send(1, 0, {}, bytes(100_000), sent=lambda number=number: done.append(number))
        assert not done
        await pair.sinks[1].until(lambda: len(pair.sinks[1].frames) == 3)
        assert done == [0, 1, 2]

    run(work)


def test_dropping_an_owner_forgets_only_its_waiting_frames() -> None:
    async def work(pair: Pair) -> None:
        sent: list[str] = []
        for owner in ("a", "b", "a"):
            pair.ends[0].send(1, 0, {"n": owner}, owner=owner, sent=lambda owner=owner: sent.append(owner))
        pair.ends[0].drop("a")
        await pair.sinks[1].until(lambda: len(pair.sinks[1].frames) == 1)
        assert pair.sinks[1].frames[0][2]["n"] == "b" and sent == ["b"]

    run(work)


def test_queues_are_counted_by_the_neighbour_where_the_path_begins() -> None:
    async def work(pair: Pair) -> None:
        sender = pair.ends[0]
        for path in (0, 1, 1, 2):
            sender.send(1, path, {})
        # Path 2 does not exist: the network sends it along the primary, which begins at 4.
        assert sender.queue_length(4) == 2 and sender.queue_length(6) == 2 and sender.queue_length(1) == 0
        assert sender.queue_lengths() == {4: 2, 6: 2}

    run(work, first_hops={(1, 0): 4, (1, 1): 6})


def test_a_dead_peer_is_reported_on_both_sides_and_the_next_frame_reconnects() -> None:
    async def work(pair: Pair) -> None:
        sender, sink = pair.ends[0], pair.sinks[1]
        sender.send(1, 2, {"n": 1})
        await sink.until(lambda: len(sink.frames) == 1)
        for inlet in tuple(pair.ends[1].inlets):
            inlet.close()
        await pair.sinks[0].until(lambda: bool(pair.sinks[0].losses))
        peer, path, reason = pair.sinks[0].losses[0]
        assert (peer, path) == (1, 2)
        assert "reset" in reason or "closed" in reason
        sender.send(1, 2, {"n": 2})
        await sink.until(lambda: len(sink.frames) == 2)
        assert next(iter(sender.lanes())).counters.connects == 2

        pair.socket(2).close()  # as the kernel does for a process that dies
        await sink.until(lambda: bool(sink.losses))
        assert sink.losses == [(0, 2, "the peer closed the connection")]

    run(work)


def test_connecting_waits_for_a_peer_that_starts_later() -> None:
    async def work(pair: Pair) -> None:
        late = Transport(1, pair.addresses, pair.sinks[1])
        await pair.ends[1].close()
        pair.ends[0].send(1, 0, {"n": 1})
        await asyncio.sleep(0.3)
        await late.start()
        await pair.sinks[1].until(lambda: len(pair.sinks[1].frames) == 1)
        await late.close()

    run(work)


def test_connecting_gives_up_at_its_deadline_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "CONNECT_SECONDS", 1.0)  # time enough to be refused once

    async def work(pair: Pair) -> None:
        await pair.ends[1].close()
        pair.ends[0].send(1, 0, {"n": 1})
        await pair.sinks[0].until(lambda: bool(pair.sinks[0].losses))
        host, port = pair.addresses[1]
        assert (
            f"no connection to {host}:{port} within 1 s: connection refused" in pair.sinks[0].losses[0][2]
        )
        assert pair.ends[0].queue_length(1) == 0

    run(work)


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        wire.encode_bytes({"kind": "chunk", "job": "x"}),
        wire.encode_bytes({"kind": "hello", "site": 77, "path": 0}),
        wire.encode_bytes({"kind": "hello", "site": 1, "path": 0}),
        wire.encode_bytes({"kind": "hello", "site": True}),
        wire.encode_bytes({"kind": "hello", "site": 0, "path": 0}, b"payload"),
    ],
)
def test_whoever_does_not_greet_as_another_site_is_refused(opening: bytes) -> None:
    async def work(pair: Pair) -> None:
        reader, writer = await asyncio.open_connection(*pair.addresses[1])
        writer.write(opening)
        async with asyncio.timeout(20.0):
            try:
                assert await reader.read() == b""
            except ConnectionResetError:
                pass
        writer.close()
        assert pair.ends[1].refused == 1 and not pair.sinks[1].frames and not pair.sinks[1].losses

    run(work)


def test_silence_instead_of_a_greeting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HELLO_SECONDS", 0.1)

    async def work(pair: Pair) -> None:
        await asyncio.open_connection(*pair.addresses[1])
        await until(lambda: pair.ends[1].refused == 1)

    run(work)


def test_a_refused_frame_ends_its_connection_with_the_reason() -> None:
    async def work(pair: Pair) -> None:
        pair.ends[0].send(1, 0, {"refuse": True}, b"abc")
        await pair.sinks[1].until(lambda: bool(pair.sinks[1].losses))
        assert pair.sinks[1].losses == [(0, 0, "not wanted here")]
        await pair.sinks[0].until(lambda: bool(pair.sinks[0].losses))

    run(work)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_stamp_is_the_time_of_departure_not_of_queueing() -> None:
    async def work(pair: Pair) -> None:
        begun = time.monotonic_ns()
        for number in range(3):
            pair.ends[0].send(1, 0, {"n": number}, b"x" * 10, stamp=True)
        pair.ends[0].send(1, 0, {"n": 3}, b"x" * 10)
        queued = time.monotonic_ns()  # nothing leaves before the loop has its turn
        await pair.sinks[1].until(lambda: len(pair.sinks[1].frames) == 4)
        stamps = [wire.stamp_of(header) for _, _, header, _ in pair.sinks[1].frames]
        assert stamps.pop() is None
        times = [begun, queued, *(stamp.left_ns for stamp in stamps), time.monotonic_ns()]
        assert times == sorted(times)
        assert [stamp.follows for stamp in stamps[1:]] == [True, True]  # directly after the one before

        async def acknowledged() -> None:
            while lane_socket.unacknowledged(pair.socket()):
                await asyncio.sleep(0.01)

        await asyncio.wait_for(acknowledged(), 20)
        pair.ends[0].send(1, 0, {"n": 4}, b"x", stamp=True)
        await pair.sinks[1].until(lambda: len(pair.sinks[1].frames) == 5)
        assert wire.stamp_of(pair.sinks[1].frames[4][2]).follows is False

    run(work)
