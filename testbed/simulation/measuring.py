"""Following the network and planning anew in the simulated world: the agents' own objects under the virtual clock.

Each site has its `SiteNetwork`, the coordinator its `Replanner`. Chunks are timed where they arrive, probes cross
the fluid links; reports, detours and the word of links that failed or returned take the management network. Planning
takes no virtual time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agents.declared_network import DeclaredNetwork
from agents.job import JobDescription
from agents.link_state import NetworkNow
from agents.options import AuxiliaryOptions, AwarenessOptions, Failures
from agents.planning.base import NetworkView, Plan
from agents.rate_matrix import Rates
from agents.replanning import Replanner
from agents.site_network import SiteNetwork
from agents.timers import Timer, Timers
from agents.views import network_view
from agents.wire import Header, Stamp, pack_body
from testbed.simulation.clock import SECOND, VirtualClock
from testbed.simulation.fluid import Message
from testbed.simulation.lanes import Lanes
from topologies.errors import StormbedError

UsePlan = Callable[[Plan, dict[str, Any]], None]
"""Makes a plan the one of the next collective; told why as well."""


@dataclass(frozen=True)
class _Segment:
    """What the coordinator follows the network with during one segment."""

    replanner: Replanner
    make_plan: Callable[[NetworkView], Plan]
    use_plan: UsePlan
    failures: Failures


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


class _Agent:
    """What a site's agent does for its `SiteNetwork`, and tells it."""

    def __init__(self, site: int, job: JobDescription, measuring: Measuring, timers: Timers) -> None:
        self._site = site
        self._measuring = measuring
        self.now = NetworkNow(measuring.network)
        self.network = SiteNetwork(job, site, self, timers)

    def links_changed(self, down: Iterable[int]) -> None:
        """The coordinator's word: these links are down now, by index."""
        self.now.change(down)
        self._measuring.lanes.lead(self._site, self.now.first_hops(self._site))
        self.network.links_changed(down)

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

    network     as declared, with all its paths
    lanes       what the sites send over
    control_ns  one way between each site and the coordinator
    foreseen    adds to a view what is known of the job
    now         the network without the links that are down, as the coordinator knows it
    """

    def __init__(
        self,
        job: str,
        network: DeclaredNetwork,
        lanes: Lanes,
        clock: VirtualClock,
        control_ns: Sequence[int],
        foreseen: Callable[[NetworkView], NetworkView],
    ) -> None:
        names = network.topology.site_names
        self.network = network
        self.lanes = lanes
        self._clock = clock
        self._control_ns = control_ns
        self._foreseen = foreseen
        self.now = NetworkNow(network)
        self._timers: Timers = VirtualTimers(clock)
        self._members = tuple(range(len(names)))
        description = JobDescription(job, job, self._members, names, (1,) * len(names), 0.0)
        self._agents = [_Agent(k, description, self, self._timers) for k in range(len(names))]
        self.sites = [agent.network for agent in self._agents]
        self._segment: _Segment | None = None
        self._report_bytes = 0
        self._check_due: Timer = self._timers.call_soon(lambda: None)
        self._before: Counter[str] = Counter()

    # ---- a segment

    def begin(
        self,
        awareness: AwarenessOptions,
        auxiliary: AuxiliaryOptions,
        plan: Callable[[NetworkView], Plan],
        use_plan: UsePlan,
        failures: Failures = "replan",
    ) -> Plan:
        """A segment begins: its first plan, which is used, and the sites are told its options.

        `use_plan` is given every plan and why it was made; `failures` says whether links that fail or return are a
        reason for one.
        """
        declared = {link: float(bps) for link, bps in self.network.topology.rates().items()}
        replanner = Replanner(
            awareness,
            auxiliary,
            network=self.network,
            members=self._members,
            declared=declared,
            view=self._view,
        )
        replanner.links_changed(self.now.down)
        segment = self._segment = _Segment(replanner, plan, use_plan, failures)
        self._report_bytes = 0
        self._before = self._counted()
        look = replanner.begin(self._timers.time())
        first = plan(look.view)
        replanner.plan = first
        use_plan(first, {"reason": "start"})
        for site in self.sites:
            site.configure(awareness, auxiliary)
        self._offer(replanner, replanner.rates(self._timers.time()))
        if awareness.on:
            self._check_later(segment)
        return first

    def end(self) -> dict[str, Any]:
        """The segment is over: what the coordinator and the sites have counted."""
        segment, self._segment = self._segment, None
        assert segment is not None, "begin comes first"
        self._check_due.cancel()
        for site in self.sites:
            site.close()
        counted = self._counted()
        counted.subtract(self._before)
        return {**segment.replanner.status(self._timers.time()), "report_bytes": self._report_bytes, **counted}

    def _counted(self) -> Counter[str]:
        """What all sites together have done up to now."""
        return Counter(
            probes=sum(site.probes for site in self.sites),
            probe_bytes=sum(site.probe_bytes for site in self.sites),
            chunks=sum(n for site in self.sites for n in site.chunks.values()),
            auxiliary_chunks=sum(n for site in self.sites for way, n in site.chunks.items() if way[2]),
        )

    def all_know(self, down: frozenset[int]) -> bool:
        """Whether the coordinator and every site have heard that these links are down, and no others."""
        return all(now.down == down for now in (self.now, *(agent.now for agent in self._agents)))

    def _view(self, rates: Rates) -> NetworkView:
        return self._foreseen(network_view(self.network, rates, self._members, self.now))

    def links_changed(self, down: Iterable[int]) -> None:
        """The coordinator has the controller's word: these links are down now, by index."""
        down = frozenset(down)
        self.now.change(down)
        for agent, delay_ns in zip(self._agents, self._control_ns, strict=True):
            self._clock.after(delay_ns, partial(agent.links_changed, down))
        if self._segment is not None:
            self._segment.replanner.links_changed(down)
            if self._segment.failures == "replan":
                self.plan_again("links")

    def plan_again(self, reason: str) -> None:
        """Make a new plan whatever the rates; where it is the old one again, nothing changes."""
        segment = self._segment
        assert segment is not None, "begin comes first"
        replanner = segment.replanner
        look = replanner.look_again(self._timers.time())
        if look is None:
            return
        try:
            plan = replanner.adopt(look, segment.make_plan(look.view))
        except StormbedError:
            return  # no plan for such a network: the old one holds, as in the emulated world
        if plan is not None:
            segment.use_plan(plan, replanner.why(reason))
        self._offer(replanner, look.rates)

    def _check_later(self, segment: _Segment) -> None:
        replanner = segment.replanner

        def check() -> None:
            look = replanner.look(self._timers.time())
            if look is not None:
                try:
                    _, better = replanner.judge(look, segment.make_plan(look.view))
                    if better is not None:
                        segment.use_plan(better, replanner.why("rates"))
                    self._offer(replanner, look.rates)
                except StormbedError:
                    pass  # no plan for such rates: the old one holds, as in the emulated world
            self._check_later(segment)

        self._check_due = self._timers.call_later(replanner.awareness.check_period_s, check)

    def _offer(self, replanner: Replanner, rates: Rates) -> None:
        detours = replanner.detours(rates)
        if detours is None:
            return

        for site, delay_ns in zip(self.sites, self._control_ns, strict=True):
            self._clock.after(delay_ns, partial(site.allow, detours))

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
            if self._segment is not None:
                self._segment.replanner.reported(site, ways, self._timers.time())
                self._report_bytes += packed

        self._clock.after(self._control_ns[site], arrive)
        return packed
