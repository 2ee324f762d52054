"""The WAN's links as they are now, and their changes while traffic flows.

A direction without impairment is carried by the kernel: an ingress filter passes every frame from one
device of the link to the other, where it is shaped. A direction with delay, jitter, loss or a blackhole is
carried by the delay line. Both may change at any time; a direction that moves from one carrier to the other
loses nothing, at the price that frames of the few milliseconds in between may arrive twice.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from testbed.emulation import capacity, shaping
from testbed.emulation.impairment import Impairment
from testbed.emulation.rundir import connect_unix
from testbed.emulation.waiting import wait_for
from testbed.runner import batch, run
from topologies.addressing import delay_intf, wan_intf
from topologies.errors import StormbedError
from topologies.model import DirectedLink, Topology

LEAST_HOLD_BYTES: Final = 16 * 2**20
MOST_HOLD_BYTES: Final = 512 * 2**20
HOLD_BPS: Final = 10 * 10**9
"""The delay line holds what arrives at this rate within the delay; hosts may send faster than the link."""


def impairment(link: DirectedLink, blackhole: bool = False) -> Impairment:
    """What the delay line is to do to a direction."""
    return Impairment(link.delay.ns, link.jitter.ns, link.loss.ratio, blackhole, link.loss.burst or 0.0)


def compensated(how: Impairment, switches_ns: int) -> Impairment:
    """What is left for the delay line to do when the switches by themselves take so long."""
    return replace(how, delay_ns=max(0, how.delay_ns - switches_ns))


def hold_bytes(link: DirectedLink) -> int:
    """How much of a direction the delay line may hold."""
    wanted = (link.delay.ns + link.jitter.ns) * HOLD_BPS // (8 * 10**9)
    return min(MOST_HOLD_BYTES, max(LEAST_HOLD_BYTES, wanted))


def redirect_line(verb: str, link: DirectedLink) -> str:
    """A line for `tc -batch` that adds ("add") or removes ("del") the kernel's carrying of a direction."""
    place = f"filter {verb} dev {shaping.ingress_device(link)} parent ffff: protocol all prio 1"
    if verb == "del":
        return place
    return f"{place} u32 match u32 0 0 action mirred egress redirect dev {shaping.egress_device(link)}"


def start_lines(links: Sequence[DirectedLink]) -> list[str]:
    """Lines for `tc -batch` that shape every direction and have the kernel carry those without impairment."""
    lines = []
    for link, shape in zip(links, shaping.shapes(links), strict=True):
        lines += shaping.add_lines(shape)
        lines.append(f"qdisc add dev {shaping.ingress_device(link)} ingress")
        if impairment(link).is_none:
            lines.append(redirect_line("add", link))
    return lines


class DelayLineClient:
    """The delay line process, over its control socket. Safe to share between threads."""

    def __init__(self, path: Path, timeout: float = 10) -> None:
        self._lock = threading.Lock()
        self._socket = connect_unix(path, timeout)
        self._lines = self._socket.makefile("rwb")

    def call(self, op: str, **arguments: Any) -> Any:
        """Have an operation done (see `DelayLine`) and return its result."""
        with self._lock:
            try:
                self._lines.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
                self._lines.flush()
                line = self._lines.readline()
            except OSError as error:
                raise StormbedError(f"the delay line does not answer: {error}") from None
        if not line:
            raise StormbedError("the delay line has ended", hint="see delay_line.log of the testbed")
        answer = json.loads(line)
        if not answer["ok"]:
            raise StormbedError(f"the delay line refused {op!r}: {answer['error']}")
        return answer["result"]

    def counters(self) -> dict[str, Any]:
        """What each direction counted, by its index; nothing when the process has ended. Whoever looks at a
        broken testbed is to see what still stands, and the ended process is named by its health.
        """
        try:
            return dict(self.call("counters"))
        except StormbedError:
            return {}

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@dataclass(frozen=True, slots=True)
class LinkState:
    """A direction as it is now. `down` belongs to the whole link, `blackhole` to the direction."""

    link: DirectedLink
    down: bool = False
    blackhole: bool = False

    @property
    def carrier(self) -> str:
        """Who carries it: "kernel" or "delay-line"."""
        return "kernel" if impairment(self.link, self.blackhole).is_none else "delay-line"

    @property
    def condition(self) -> str:
        """ "up", "down" or "blackhole"."""
        return "down" if self.down else "blackhole" if self.blackhole else "up"

    def describe(self) -> dict[str, Any]:
        """What a change of links came to, as events and `changes.csv` have it."""
        return {
            "src": self.link.src_name,
            "dst": self.link.dst_name,
            "rate_bps": self.link.rate.bps,
            "delay_s": self.link.delay.seconds,
            "loss_ratio": self.link.loss.ratio,
            "loss_burst": self.link.loss.burst,
            "state": self.condition,
        }


class Wan:
    """All directed links of one testbed. Not thread-safe: the supervisor changes one thing at a time.

    Args:
        topology: as declared; the devices are there and bare.
        delay_line: running.
        seed: of the loss and jitter draws.
        allow_degraded: whether links may become faster than this emulator carries.
    """

    def __init__(
        self, topology: Topology, delay_line: DelayLineClient, seed: int = 1, *, allow_degraded: bool = False
    ) -> None:
        self.topology = topology
        self.delay_line = delay_line
        self._allow_degraded = allow_degraded
        self._seed = seed
        self._states = [LinkState(link) for link in topology.directed]
        self._shapes = list(shaping.shapes(topology.directed))
        self._segments: dict[str, str] = {}
        self._switches_ns = 0

    @property
    def links(self) -> tuple[DirectedLink, ...]:
        """Every direction with its present values, in the order of `Topology.directed`."""
        return tuple(state.link for state in self._states)

    @property
    def states(self) -> tuple[LinkState, ...]:
        return tuple(self._states)

    @property
    def switches_ns(self) -> int:
        """The switches' own time from site to site, by which the delay line's delays are shortened."""
        return self._switches_ns

    def compensate(self, switches_ns: int) -> None:
        """Shorten every delay by the switches' own time, so that the declared delay is the whole one."""
        self._switches_ns = max(0, switches_ns)
        for state in self._states:
            if state.carrier == "delay-line":
                self._set(state)

    def start(self) -> None:
        """Shape all directions and begin to carry them."""
        batch(["tc"], start_lines(self.links))
        for state in self._states:
            if state.carrier == "delay-line":
                self._attach(state)
            self._split_segments(state.link)

    def index(self, src: str, dst: str) -> int:
        """The index of the direction between two neighbours, by their names."""
        return self.topology.between(self.topology.index(src), self.topology.index(dst)).index

    def require(self, links: Iterable[DirectedLink]) -> None:
        """Refuse values that no direction can be given here; the one place, whoever asks for them.

        Raises:
            CannotHonourError: a rate is beyond what a link carries, or a queue too short for TCP.
        """
        links = list(links)
        shaping.gso_max_bytes(links)
        if not self._allow_degraded:
            capacity.require_within(links)

    def change(self, changes: dict[int, DirectedLink]) -> None:
        """Give directions new values, all rates in one `tc -batch`.

        Args:
            changes: index of a direction to its new values; its ends must be the same.

        Raises:
            CannotHonourError: see `require`; then nothing has been changed.
        """
        self.require(changes.values())
        links = list(self.links)
        for index, link in changes.items():
            if (
                replace(
                    links[index],
                    rate=link.rate,
                    delay=link.delay,
                    jitter=link.jitter,
                    loss=link.loss,
                    queue=link.queue,
                )
                != link
            ):
                raise ValueError(f"{link} is not the same direction as {links[index]}")
            links[index] = link
        shapes = shaping.shapes(links)
        lines = [
            line
            for old, new in zip(self._shapes, shapes, strict=True)
            for line in shaping.change_lines(old, new)
        ]
        batch(["tc"], lines)
        self._shapes = list(shapes)
        for index, link in changes.items():
            self._become(index, replace(self._states[index], link=link))

    def set_down(self, src: str, dst: str, down: bool) -> None:
        """Cut a link, or mend it: its devices go down, and both switches see their port go down."""
        index = self.index(src, dst)
        link = index // 2
        word = "down" if down else "up"
        batch(["ip"], [f"link set dev {delay_intf(link, side)} {word}" for side in (0, 1)])
        for i in (2 * link, 2 * link + 1):
            self._states[i] = replace(self._states[i], down=down)

    def set_blackhole(self, src: str, dst: str, blackhole: bool) -> None:
        """Drop everything of one direction without a sign to anyone."""
        index = self.index(src, dst)
        self._become(index, replace(self._states[index], blackhole=blackhole))

    def _become(self, index: int, state: LinkState) -> None:
        """Bring the carrying of a direction in line with its new state."""
        before = self._states[index]
        was, now = before.carrier, state.carrier
        if now == "delay-line":
            self._split_segments(state.link)
            if was == "delay-line":
                if self._asked(before) != self._asked(state):
                    self._set(state)
            else:
                # The delay line first: until the filter is gone, frames arrive twice rather than never.
                self._attach(state)
                batch(["tc"], [redirect_line("del", state.link)])
        elif was == "delay-line":
            self._set(state)
            longest = (before.link.delay.ns + before.link.jitter.ns) / 1e9
            wait_for(
                lambda: self.delay_line.call("held", index=index) == 0,
                f"the delay line to empty {state.link.src_name} -> {state.link.dst_name}",
                longest + 5,
                step=0.002,
            )
            batch(["tc"], [redirect_line("add", state.link)])
            self.delay_line.call("detach", index=index)
            self._split_segments(state.link)
        self._states[index] = state

    def _attach(self, state: LinkState) -> None:
        link = state.link
        self.delay_line.call(
            "attach",
            index=link.index,
            ingress=shaping.ingress_device(link),
            egress=shaping.egress_device(link),
            impairment=self._impairment(state),
            limit_bytes=hold_bytes(link),
            seed=self._seed * 100_003 + link.index,
        )

    def _set(self, state: LinkState) -> None:
        self.delay_line.call(
            "set",
            index=state.link.index,
            impairment=self._impairment(state),
            limit_bytes=hold_bytes(state.link),
        )

    def _asked(self, state: LinkState) -> tuple[dict[str, Any], int]:
        return self._impairment(state), hold_bytes(state.link)

    def _impairment(self, state: LinkState) -> dict[str, Any]:
        return asdict(compensated(impairment(state.link, state.blackhole), self._switches_ns))

    def _split_segments(self, link: DirectedLink) -> None:
        """Where packets are to be lost one by one, have the kernel cut segments before the delay line."""
        whole = "off" if link.loss.ratio else "on"
        device = wan_intf(link.link, link.index % 2)
        if self._segments.get(device, "on") != whole:
            run(["ethtool", "-K", device, "tso", whole, "gso", whole], timeout=10)
            self._segments[device] = whole
