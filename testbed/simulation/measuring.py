"""Measuring the links and planning anew in the simulated world: the agents' own objects under the virtual clock.

Each site has its `SiteNetwork`, the coordinator its `Replanner`. Chunks are timed where they arrive, probes cross
the fluid links, reports and detours take the management network. Planning takes no virtual time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from agents.declared_network import DeclaredNetwork
from agents.job import JobDescription
from agents.options import AuxiliaryOptions, AwarenessOptions
from agents.planning.base import NetworkView, Plan
from agents.replanning import Replanner
from agents.site_network import SiteNetwork
from agents.timers import Timer, Timers
from agents.views import network_view
from agents.wire import Header, Stamp, pack_body
from testbed.simulation.clock import SECOND, VirtualClock
from testbed.simulation.fluid import Message
from testbed.simulation.lanes import Lanes
from topologies.errors import StormbedError


class VirtualTimer:
    """A call that is due on the virtual clock."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        if self._callback is not None:
            self._callback()


class VirtualTimers:
    """The virtual clock with the words of an asyncio loop."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def time(self) -> float:
        return self._clock.now_ns / SECOND

    def call_soon(self, callback: Callable[[], object], /) -> VirtualTimer:
        return self.call_later(0.0, callback)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> VirtualTimer:
        timer = VirtualTimer(callback)
        self._clock.after(round(delay * SECOND), timer.fire)
        return timer


class _Host:
    """What a site's `SiteNetwork` needs of its agent."""

    def __init__(self, site: int, measuring: Measuring) -> None:
        self._site = site
        self._measuring = measuring

    @property
    def config(self) -> DeclaredNetwork:
        return self._measuring.network

    def send_probe(self, peer: int, path: int, header: Header, payload: bytes, owner: str) -> None:
        self._measuring.probe(self._site, peer, path, len(payload))

    def tell_coordinator(self, kind: str, body: dict[str, Any]) -> int:
        return self._measuring.report(self._site, body["ways"])

    def sent_bytes(self, peer: int, path: int) -> int:
        return self._measuring.lanes.sent_bytes(self._site, peer, path)

    def queue_length(self, first_hop: int) -> int:
        return self._measuring.lanes.waiting(self._site, first_hop)


class Measuring:
    """What the sites and the coordinator know of the links, segment by segment.

    network           as declared, with all its paths
    lanes             what the sites send over
    control_delay_ns  one way between a site and the coordinator
    """

    def __init__(
        self, job: str, network: DeclaredNetwork, lanes: Lanes, clock: VirtualClock, control_delay_ns: int
    ) -> None:
        names = network.topology.site_names
        self.network = network
        self.lanes = lanes
        self._clock = clock
        self._control_delay_ns = control_delay_ns
        self._timers: Timers = VirtualTimers(clock)
        self._members = tuple(range(len(names)))
        description = JobDescription(job, job, self._members, names, (1,) * len(names), 0.0)
        self.sites = [
            SiteNetwork(description, k, _Host(k, self), self._timers) for k in range(len(names))
        ]
        self._replanner: Replanner | None = None
        self._report_bytes = 0
        self._check_due: Timer = self._timers.call_soon(lambda: None)
        self._before: Counter[str] = Counter()
        self._awareness, self._auxiliary = AwarenessOptions(), AuxiliaryOptions()

    # ---- a segment

    def begin(
        self,
        awareness: AwarenessOptions,
        auxiliary: AuxiliaryOptions,
        plan: Callable[[NetworkView], Plan],
        use_plan: Callable[[Plan], None],
    ) -> Plan:
        """A segment begins: its first plan, which is used, and the sites are told its options."""
        self._awareness, self._auxiliary = awareness, auxiliary
        declared = {link: float(bps) for link, bps in self.network.topology.rates().items()}
        replanner = Replanner(
            awareness,
            auxiliary,
            network=self.network,
            members=self._members,
            declared=declared,
            view=lambda rates: network_view(self.network, rates, self._members),
        )
        self._replanner, self._report_bytes = replanner, 0
        self._before = self._counted()
        look = replanner.begin(self._timers.time())
        first = plan(look.view)
        replanner.plan = first
        use_plan(first)
        for site in self.sites:
            site.configure(awareness, auxiliary)
        self._offer(replanner, replanner.rates(self._timers.time()))
        if awareness.on:
            self._check_later(replanner, plan, use_plan)
        return first

    def end(self) -> dict[str, Any]:
        """The segment is over: what the coordinator and the sites have counted."""
        replanner, self._replanner = self._replanner, None
        assert replanner is not None, "begin comes first"
        self._check_due.cancel()
        for site in self.sites:
            site.close()
        counted = self._counted()
        counted.subtract(self._before)
        return {**replanner.status(self._timers.time()), "report_bytes": self._report_bytes, **counted}

    def _counted(self) -> Counter[str]:
        """What all sites together have done up to now."""
        return Counter(
            probes=sum(site.probes for site in self.sites),
            probe_bytes=sum(site.probe_bytes for site in self.sites),
            chunks=sum(n for site in self.sites for n in site.chunks.values()),
            auxiliary_chunks=sum(n for site in self.sites for way, n in site.chunks.items() if way[2]),
        )

    def _check_later(
        self, replanner: Replanner, plan: Callable[[NetworkView], Plan], use_plan: Callable[[Plan], None]
    ) -> None:
        def check() -> None:
            look = replanner.look(self._timers.time())
            if look is not None:
                try:
                    _, better = replanner.judge(look, plan(look.view))
                    if better is not None:
                        use_plan(better)
                    self._offer(replanner, look.rates)
                except StormbedError:
                    pass  # no plan for such rates: the old one holds, as in the emulated world
            self._check_later(replanner, plan, use_plan)

        self._check_due = self._timers.call_later(self._awareness.check_period_s, check)

    def _offer(self, replanner: Replanner, rates: Any) -> None:
        detours = replanner.detours(rates)
        if detours is None:
            return

        def told() -> None:
            for site in self.sites:
                site.allow(detours)

        self._clock.after(self._control_delay_ns, told)

    # ---- what the sites do

    def choose(self, site: int, peer: int, own: int) -> int:
        """The path of the next chunk."""
        return self.sites[site].choose(peer, own)

    def arrived(self, site: int, peer: int, path: int, message: Message, nbytes: int) -> None:
        """A chunk or a probe from `peer` has arrived at `site`."""
        self.sites[site].measure(peer, path, Stamp(message.left_ns, message.follows), nbytes)

    def probe(self, site: int, peer: int, path: int, nbytes: int) -> None:
        """Send a probe."""
        message = self.lanes.send(
            self.lanes.lane(site, peer, path), nbytes, lambda: self.arrived(peer, site, path, message, nbytes)
        )

    def report(self, site: int, ways: list[Any]) -> int:
        """A site's estimates are on their way to the coordinator; their bytes."""
        packed = len(pack_body(ways))

        def arrive() -> None:
            if self._replanner is not None:
                self._replanner.reported(site, ways, self._timers.time())
                self._report_bytes += packed

        self._clock.after(self._control_delay_ns, arrive)
        return packed
