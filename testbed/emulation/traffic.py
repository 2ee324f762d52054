"""Traffic of known shape between sites, to measure the WAN with: one process with a socket in every site.

Run as `python -m testbed.emulation.traffic` inside the testbed, with a request as JSON on standard input;
the answer is JSON on standard output. It enters each site's network namespace only to open sockets there,
and then serves all of them from one loop, which costs less than a sender and a receiver at every site. It
imports little.

Requests (`sites`: [{"pid", "ip"}], `flows`: [{"src", "dst", "tos", ...}] by index of the site):
    {"kind": "probe", "rounds", "gap_s", "wait_s"}
        small datagrams; the answer has every delay, and how many were sent
    {"kind": "load", "warm_s", "seconds_s", "probe_gap_s"?}
        TCP as fast as it goes, all flows at once; with `probe_gap_s` small datagrams pass the busy links too
    {"kind": "flood", "seconds_s", "wait_s"}
        datagrams at flow["send_bps"] of frames, for lossy directions
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

CLONE_NEWNET: Final = 0x40000000
TCP_NOTSENT_LOWAT: Final = 25
CHUNK_BYTES: Final = 1 << 20
PROBE: Final = struct.Struct("=IIq")
PROBE_BYTES: Final = 64
DATAGRAM_BYTES: Final = 1472
FRAME_BYTES: Final = 1514
"""A datagram of DATAGRAM_BYTES with its UDP, IP and Ethernet headers."""
CONNECT_S: Final = 10.0
PRIORITY: Final = 1


class Sites:
    """Opens sockets in the sites' namespaces."""

    def __init__(self, sites: list[dict[str, Any]]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._namespaces = [os.open(f"/proc/{site['pid']}/ns/net", os.O_RDONLY) for site in sites]
        self.addresses = [site["ip"] for site in sites]

    def enter(self, k: int) -> None:
        """Open sockets in site k from now on."""
        if self._libc.setns(self._namespaces[k], CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network of site {k + 1}")

    def open(self, k: int, kind: socket.SocketKind, tos: int = 0) -> socket.socket:
        """A socket of site k, bound to its WAN address and a free port."""
        self.enter(k)
        sock = socket.socket(socket.AF_INET, kind)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        sock.bind((self.addresses[k], 0))
        sock.setblocking(False)
        return sock


class Loop:
    """The least that an event loop can be."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}

    def watch(self, sock: socket.socket, events: int, handler: Callable[[], None]) -> None:
        self._handlers[sock.fileno()] = handler
        self._epoll.register(sock, events)

    def forget(self, sock: socket.socket) -> None:
        self._epoll.unregister(sock)
        del self._handlers[sock.fileno()]

    def run_until(self, moment_ns: int) -> None:
        """Serve the sockets until a moment of CLOCK_MONOTONIC."""
        while True:
            left = (moment_ns - time.monotonic_ns()) / 1e9
            if left <= 0:
                return
            for fd, _ in self._epoll.poll(left):
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler()


class Probes:
    """Small datagrams on every flow. The clock is one for all sites, so each tells its one-way delay by itself."""

    def __init__(self, sites: Sites, loop: Loop, flows: list[dict[str, Any]]) -> None:
        self._loop = loop
        self._senders = []
        self.delays: list[list[float]] = [[] for _ in flows]
        self._next = [0] * len(flows)
        self._gaps = [0] * len(flows)
        self.rounds = 0
        receivers = {k: sites.open(k, socket.SOCK_DGRAM) for k in {flow["dst"] for flow in flows}}
        for receiver in receivers.values():
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK_BYTES)
            loop.watch(receiver, select.EPOLLIN, partial(self._take, receiver))
        for flow in flows:
            sender = sites.open(flow["src"], socket.SOCK_DGRAM, flow["tos"])
            sender.connect(receivers[flow["dst"]].getsockname())
            self._senders.append(sender)

    def send(self, rounds: int, gap_s: float) -> None:
        """So many rounds over all flows, `gap_s` from one to the next."""
        padding = bytes(PROBE_BYTES - PROBE.size)
        gap_ns = int(gap_s * 1e9)
        start = time.monotonic_ns()
        for number in range(rounds):
            for index, sender in enumerate(self._senders):
                # One after the other: sent all at once, they would wait for each other in the switches.
                self._loop.run_until(start + number * gap_ns + index * gap_ns // len(self._senders))
                try:
                    sender.send(PROBE.pack(index, number, time.monotonic_ns()) + padding)
                except BlockingIOError:
                    pass  # counts as lost
        self.rounds += rounds

    def _take(self, receiver: socket.socket) -> None:
        try:
            while True:
                data = receiver.recv(PROBE_BYTES)
                now = time.monotonic_ns()
                index, number, sent_ns = PROBE.unpack_from(data)
                self.delays[index].append((now - sent_ns) / 1e9)
                # No direction reorders, so whatever is skipped is lost.
                self._gaps[index] += number > self._next[index]
                self._next[index] = number + 1
        except BlockingIOError:
            pass

    def results(self) -> list[dict[str, Any]]:
        """For each flow the delays of those that arrived, how many were sent, and in how many runs the others
        were lost."""
        return [
            {"delays_s": delays, "sent": self.rounds, "bursts": gaps + (following < self.rounds)}
            for delays, gaps, following in zip(self.delays, self._gaps, self._next, strict=True)
        ]


def probe(sites: Sites, request: dict[str, Any]) -> dict[str, Any]:
    """Send small datagrams on every flow, round after round.

    The answer is each flow's `Probes.results`.
    """
    loop = Loop()
    probes = Probes(sites, loop, request["flows"])
    probes.send(request["rounds"], request["gap_s"])
    loop.run_until(time.monotonic_ns() + int(request["wait_s"] * 1e9))
    return {"flows": probes.results()}


class Meter:
    """Bytes of one flow inside a window: from the first arrival after it opens to the last before it closes.

    Counting from arrival to arrival keeps large segments on slow links from being counted half.
    """

    __slots__ = ("bytes", "first_bytes", "first_ns", "last_ns")

    def __init__(self) -> None:
        self.bytes = 0
        self.first_bytes = self.first_ns = self.last_ns = 0

    def arrived(self, count: int, now_ns: int, opens_ns: int) -> None:
        self.bytes += count
        if now_ns >= opens_ns:
            if not self.first_ns:
                self.first_ns, self.first_bytes = now_ns, self.bytes
            self.last_ns = now_ns

    def to_dict(self) -> dict[str, Any]:
        span_s = (self.last_ns - self.first_ns) / 1e9
        count = self.bytes - self.first_bytes
        return {"bytes": count, "span_s": span_s, "bps": 8 * count / span_s if span_s > 0 else 0.0}


def load(sites: Sites, request: dict[str, Any]) -> dict[str, Any]:
    """TCP on all flows at once, measured as payload at the receivers after `warm_s` of speeding up.

    With `probe_gap_s` the answer also has each flow's `Probes.results` while all of them are busy.
    """
    loop, flows = Loop(), request["flows"]
    listeners = {}
    for k in {flow["dst"] for flow in flows}:
        # The answer to a connection's first packet is sent before the connection has a socket of its own.
        back = {flow["back_tos"] for flow in flows if flow["dst"] == k}
        listeners[k] = sites.open(k, socket.SOCK_STREAM, back.pop() if len(back) == 1 else 0)
        listeners[k].listen(len(flows))
    source = os.memfd_create("payload")
    os.ftruncate(source, CHUNK_BYTES)
    sink = bytearray(CHUNK_BYTES)
    meters = [Meter() for _ in flows]
    window = [1 << 62]
    accepted: dict[tuple[str, int], socket.socket] = {}
    pairs = []
    for flow, meter in zip(flows, meters, strict=True):
        sender = sites.open(flow["src"], socket.SOCK_STREAM, flow["tos"])
        # Little unsent data in the sender keeps the machine's memory and CPU for what is measured.
        sender.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, 256 * 1024)
        sender.connect_ex(listeners[flow["dst"]].getsockname())
        pairs.append((sender, flow, meter))
    deadline = time.monotonic() + CONNECT_S
    for sender, flow, meter in pairs:
        receiver = _accept_from(listeners[flow["dst"]], sender.getsockname(), accepted, deadline)
        if receiver is None:
            return {"error": f"no TCP connection from site {flow['src'] + 1} to site {flow['dst'] + 1}"}
        receiver.setblocking(False)
        # Acknowledgements take the flow's own path back, in its own class.
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, flow["back_tos"])
        receiver.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVLOWAT, max(1, min(131_072, flow["rate_bps"] // 400))
        )
        loop.watch(sender, select.EPOLLOUT, partial(_feed, sender, source))
        loop.watch(
            receiver,
            select.EPOLLIN,
            partial(_drain, receiver, sink, meter, window),
        )
    gap_s = float(request.get("probe_gap_s", 0))
    probes = Probes(sites, loop, flows) if gap_s else None
    window[0] = time.monotonic_ns() + int(request["warm_s"] * 1e9)
    loop.run_until(window[0])
    before = os.times()
    end = window[0] + int(request["seconds_s"] * 1e9)
    if probes is not None and gap_s is not None:
        probes.send(int(request["seconds_s"] / gap_s), gap_s)
    loop.run_until(end)
    after = os.times()
    cpu = after.user + after.system - before.user - before.system
    found = [meter.to_dict() for meter in meters]
    if probes is not None:
        for flow, probed in zip(found, probes.results(), strict=True):
            flow |= probed
    return {"flows": found, "cpu_s": cpu}


def _accept_from(
    listener: socket.socket,
    peer: tuple[str, int],
    accepted: dict[tuple[str, int], socket.socket],
    deadline: float,
) -> socket.socket | None:
    """The connection that a sender has made; others that come first are kept for their own turn."""
    while peer not in accepted:
        listener.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            connection, address = listener.accept()
        except TimeoutError:
            return None
        accepted[address] = connection
    return accepted[peer]


def _feed(sender: socket.socket, source: int) -> None:
    try:
        os.sendfile(sender.fileno(), source, 0, CHUNK_BYTES)
    except BlockingIOError:
        pass


def _drain(receiver: socket.socket, sink: bytearray, meter: Meter, opens_ns: list[int]) -> None:
    try:
        # MSG_TRUNC has the kernel throw the bytes away instead of copying them.
        count = receiver.recv_into(sink, CHUNK_BYTES, socket.MSG_TRUNC)
    except BlockingIOError:
        return
    meter.arrived(count, time.monotonic_ns(), opens_ns[0])


def flood(sites: Sites, request: dict[str, Any]) -> dict[str, Any]:
    """Datagrams at a fixed rate, whatever is lost: for directions whose loss keeps TCP from filling them."""
    loop, flows = Loop(), request["flows"]
    meters = [Meter() for _ in flows]
    sink = bytearray(DATAGRAM_BYTES)
    paced = []
    begin = time.monotonic_ns()
    for flow, meter in zip(flows, meters, strict=True):
        receiver = sites.open(flow["dst"], socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * CHUNK_BYTES)
        sender = sites.open(flow["src"], socket.SOCK_DGRAM, flow["tos"])
        sender.connect(receiver.getsockname())
        loop.watch(
            receiver,
            select.EPOLLIN,
            partial(_drain_datagrams, receiver, sink, meter, begin),
        )
        paced.append([sender, flow["send_bps"], 0])
    payload = bytes(DATAGRAM_BYTES)
    end = begin + int(request["seconds_s"] * 1e9)
    while (now := time.monotonic_ns()) < end:
        for entry in paced:
            sender, bps, sent = entry
            due = (now - begin) * bps // (8 * FRAME_BYTES * 10**9)
            while sent < due:
                try:
                    sender.send(payload)
                except BlockingIOError:
                    pass
                sent += 1
            entry[2] = sent
        loop.run_until(now + 1_000_000)
    loop.run_until(time.monotonic_ns() + int(request["wait_s"] * 1e9))
    return {
        "flows": [meter.to_dict() | {"sent": entry[2]} for meter, entry in zip(meters, paced, strict=True)]
    }


def _drain_datagrams(receiver: socket.socket, sink: bytearray, meter: Meter, opens_ns: int) -> None:
    try:
        while True:
            receiver.recv_into(sink, DATAGRAM_BYTES, socket.MSG_TRUNC)
            meter.arrived(FRAME_BYTES, time.monotonic_ns(), opens_ns)
    except BlockingIOError:
        pass


KINDS: Final = {"probe": probe, "load": load, "flood": flood}


def be_punctual() -> None:
    """Ask for real-time scheduling, below that of the network: it is the network that is to be measured, and
    not how much of the machine is left for this process."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    except PermissionError:
        pass


def main() -> int:
    be_punctual()
    request = json.load(sys.stdin)
    json.dump(KINDS[request["kind"]](Sites(request["sites"]), request), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
