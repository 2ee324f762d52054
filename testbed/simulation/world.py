"""The simulated world: the agents' own state machines, driven over fluid links by a virtual clock.

Nothing of the protocol is written again here. Each site is a `SiteMachine`, the coordinator is a
`CoordinatorMachine`, and this module executes the actions they return, as the agents' runtime does over TCP:
a chunk goes out on the lane of (peer, path, class), lanes follow the network's path sets hop by hop, control
messages take the management network. Payloads are ghosts; every delivered result is checked to hold each
contributor exactly once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from types import MappingProxyType
from typing import Any

from agents.declared_network import DeclaredNetwork
from agents.planning.base import NetworkView, Plan
from agents.planning.registry import SchedulerSpec, get_scheduler, library_of
from agents.ready_times import ReadyTimes
from agents.sync.actions import Complete, CoordinatorAction, Deliver, Failed, Send, SendControl, SiteAction
from agents.sync.coordinator_machine import CoordinatorMachine
from agents.sync.history import PolicyHistory
from agents.sync.messages import Ready, ToCoordinator, ToSite
from agents.sync.payload import GhostPayload
from agents.sync.site_machine import SiteMachine
from agents.sync.spec import CollectiveSpec, item_size, site_mask
from testbed.simulation.clock import SECOND, VirtualClock
from testbed.simulation.faults import Faults
from testbed.simulation.fluid import FluidLink, FluidNetwork
from testbed.simulation.lanes import Lane, Lanes
from testbed.simulation.measuring import Measuring
from testbed.simulation.options import IDEAL, REALISTIC, WorldOptions
from testbed.simulation.record import CollectiveRecord
from testbed.simulation.rerouting import Rerouting
from testbed.simulation.underlay import Underlay, WholeUnderlay, control_delays
from topologies.dynamics import Changes
from topologies.errors import RunFailedError, UsageError
from topologies.model import Topology

__all__ = ["IDEAL", "REALISTIC", "SECOND", "CollectiveRecord", "World", "WorldOptions"]


START: Mapping[str, Any] = MappingProxyType({"reason": "start"})
RATES: Mapping[str, Any] = MappingProxyType({"reason": "rates"})


class World:
    """One job on one topology.

    `routes` has the same sites and links at other rates: those for which the ways between sites were found, where
    these are older than the rates of now. `whole` has all paths of every pair at hand, numbered as in the emulated
    network: needed to measure links, to take detours, and for links that are cut.

    records      of every collective begun, by sequence number
    oldest_open  the first that is not complete at every site
    failures     (site, sequence number, cause) of every failed collective
    policies     version, first collective and times of every policy that came into force, and why
    measuring    what times chunks and plans anew, where that is asked for
    ready_times  when sites had their gradients, as the coordinator has heard
    on_complete  called with (site, sequence number) when a collective is complete at a site
    on_ready     called when the coordinator has heard of one more collective for which all sites are ready
    """

    def __init__(
        self,
        topology: Topology,
        *,
        job: str = "simulated",
        options: WorldOptions = IDEAL,
        routes: Topology | None = None,
        whole: bool = False,
        coordinator: str | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.topology = topology
        self.clock = VirtualClock()
        self.options = options
        self.n = len(topology.site_names)
        self.declared = DeclaredNetwork(topology if routes is None else routes)
        self.underlay = WholeUnderlay(self.declared) if whole else Underlay(self.declared.topology)
        self._view = self.underlay.view if routes is None else self._over_older_routes()
        self.network = FluidNetwork(
            self.clock,
            [FluidLink(link.rate.bps, link.delay.ns) for link in topology.directed],
            efficiency=options.efficiency,
            per_message_bytes=options.per_message_bytes,
        )
        self.coordinator = CoordinatorMachine(job, topology.site_names, clock=lambda: self.clock.now_ns / SECOND)
        self._lease_ns: int | None = None  # when the coordinator is called for the leases of transfers
        self.sites = [SiteMachine(job, k, topology.site_names) for k in range(self.n)]
        self.ready_times = ReadyTimes(self.n)
        self._control_ns = control_delays(topology, self.underlay, options.control_delay_ns, coordinator)
        self.records: list[CollectiveRecord] = []
        self.oldest_open = 0
        self.failures: list[tuple[int, int, str]] = []
        self.on_complete: Callable[[int, int], None] | None = None
        self.on_ready: Callable[[], None] | None = None
        self.policies: list[dict[str, Any]] = []
        self._why: Mapping[str, Any] = START
        self._history = PolicyHistory()
        self.measuring: Measuring | None = None
        self._down: frozenset[int] = frozenset()  # the links that are down, as the coordinator knows
        self._job = job
        self._whole = whole
        self.faults = Faults(
            self.clock,
            self.coordinator,
            self.sites,
            control_ns=self._control_ns,
            deadline_s=deadline_s,
            execute=self._coordinate,
        )
        self.lanes = Lanes(topology, self.underlay, self.network, self.clock, self.faults.connection_lost)
        self._hop_paths = self.underlay.direct_numbers()

    # ---- what a run does

    def view(self) -> NetworkView:
        """The network as a scheduler with perfect knowledge sees it."""
        return self._view

    def foreseen(self, view: NetworkView) -> NetworkView:
        """The same, with when sites had their gradients the last time."""
        return replace(view, ready_s=self.ready_times.seconds)

    def _over_older_routes(self) -> NetworkView:
        pairs = permutations(range(self.n), 2)
        primary = {pair: self.underlay.path(*pair, 0) for pair in pairs}
        return replace(Underlay(self.topology).view, primary=primary)

    def use(self, scheduler: SchedulerSpec, chunk_elements: int) -> Plan:
        """Plan with the declared rates; the plan holds from the next collective on."""
        plan = get_scheduler(scheduler, self.topology.site_names).plan(self.view())
        # Other libraries know no path but the primary.
        self.use_plan(plan, chunk_elements, hop_paths={} if library_of(scheduler) else None)
        return plan

    def settle_anew(self) -> None:
        """Nothing is settled that has not begun, the sites being at rest, and the barrier holds again."""
        self.ready_times.forget()
        for action in self.coordinator.settle_anew():
            # Agents hear of it before their workers begin anything else.
            self._execute(action.dst, self.sites[action.dst].on_message(action.message))

    def announce_ahead(self, ahead: int) -> None:
        """How policies come into force from now on: 0 is the barrier."""
        self._coordinate(self.coordinator.announce_ahead(ahead))

    def use_plan(
        self,
        plan: Plan,
        chunk_elements: int,
        why: Mapping[str, Any] = START,
        *,
        hop_paths: Mapping[tuple[int, int], int] | None = None,
    ) -> None:
        """The plan holds from the next collective on, or from the next one that is not settled.

        `why` is kept with the policy. Hops take the direct links of neighbours, unless `hop_paths` says otherwise.
        """
        self._why = why
        paths = self._hop_paths if hop_paths is None else dict(hop_paths)
        self._coordinate(self.coordinator.set_plan(plan, chunk_elements, paths))

    def measure(self) -> Measuring:
        """From now on chunks are timed and may take detours, as each segment's options ask for."""
        if not self._whole:
            raise UsageError("this world knows only primary paths", hint="make it with whole=True")
        if self.measuring is None:
            self.measuring = Measuring(
                self._job, self.declared, self.lanes, self.clock, self._control_ns, self.foreseen
            )
            if self._down:
                self.measuring.links_changed(self._down)
        return self.measuring

    def cut(self, down: Mapping[int, bool], blackhole: Mapping[int, bool]) -> None:
        """Directed links, by index, that carry nothing from now on (True) or again do (False).

        The controller sees what is `down`, in both directions, moves the traffic and tells the coordinator; see
        `testbed.simulation.rerouting`.
        """
        if not self._whole:
            raise UsageError("this world knows only primary paths", hint="make it with whole=True")
        lanes = self.lanes
        if lanes.rerouting is None:
            lanes.rerouting = Rerouting(
                self.declared, self.clock, self.options.reroute_ns, lanes.look, self._links_changed
            )
        lanes.rerouting.change(down, blackhole)
        lanes.look()

    @property
    def links_settled(self) -> bool:
        """Whether switches, coordinator and sites know of every cable that was cut or mended."""
        down = frozenset[int]() if self.lanes.rerouting is None else self.lanes.rerouting.settled
        return down is not None and (self.measuring is None or self.measuring.all_know(down))

    def _links_changed(self, down: frozenset[int]) -> None:
        """The controller tells the coordinator which links it takes for cut."""

        def told() -> None:
            self._down = down
            if self.measuring is not None:
                self.measuring.links_changed(down)

        self.clock.after(self.options.control_delay_ns, told)

    def follow(self, changes: Iterator[Changes]) -> None:
        """Change links as `Dynamics.changes` says, its times counted from now; loss is not simulated.

        Schedulers still plan with the declared rates. Give `changes` an end (`until_s`): a network that has
        come to rest is only recognised when no change is left to come.
        """
        begun_ns = self.clock.now_ns

        def next_change() -> None:
            upcoming = next(changes, None)
            if upcoming is None:
                return
            seconds, links = upcoming

            def apply() -> None:
                for index, change in sorted(links.items()):
                    if change.rate is not None:
                        self.network.set_rate(index, change.rate.bps)
                    if change.delay is not None:
                        self.network.set_delay(index, change.delay.ns)
                next_change()

            self.clock.at(begun_ns + round(seconds * SECOND), apply)

        next_change()

    def replan_within(
        self, seq: int, plan: Plan, chunk_elements: int, why: Mapping[str, Any] = RATES
    ) -> None:
        """Use the plan for what no site has begun of collective `seq`, and from then on."""
        self._why = why
        self._coordinate(self.coordinator.replan_within(seq, plan, chunk_elements, self._hop_paths))

    def begin(self, site: int, spec: CollectiveSpec) -> int:
        """The workers of `site` submit their next collective now; returns its sequence number."""
        seq = self.sites[site].next_seq
        if seq == len(self.records):
            self.records.append(CollectiveRecord(spec, [-1] * self.n, [-1] * self.n, [0] * self.n, self.n))
        record = self.records[seq]
        record.ready_ns[site] = self.clock.now_ns
        itemsize = item_size(spec.dtype)
        self._execute(
            site,
            self.sites[site].begin(seq, spec, lambda chunk: GhostPayload.of(site, chunk.size * itemsize)),
        )
        self.faults.begun(site, seq)
        return seq

    def run_until_complete(self, seq: int) -> CollectiveRecord:
        """Let time pass until collective `seq` is complete at every site.

        RunFailedError when it fails, or when nothing is left to happen before.
        """
        record = self.records[seq]
        self.clock.run(until=lambda: record.complete or bool(self.failures))
        if self.failures:
            site, failed, cause = self.failures[0]
            raise RunFailedError(f"collective {failed} failed at {self.topology.site_names[site]}: {cause}")
        if not record.complete:
            waiting = next(k for k in range(self.n) if record.done_ns[k] < 0)
            missing = self.sites[waiting].waiting_for(seq)
            raise RunFailedError(
                f"the simulated network came to rest while it waited for {missing}",
                hint="a link without rate stops everything that crosses it",
            )
        return record

    def lane(self, src: int, dst: int, path: int, cls: int = 0) -> Lane:
        """The connection from a site to a peer over one of the paths; an absent one is the primary."""
        return self.lanes.lane(src, dst, path, cls)

    # ---- executing actions

    def _execute(self, site: int, actions: Sequence[SiteAction]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._send(site, action)
                case SendControl(control):
                    self._to_coordinator(control)
                case Deliver(seq, chunk, payload):
                    self._check_result(site, seq, chunk.part, payload)
                    self.records[seq].delivered[site] += chunk.size
                case Complete(seq):
                    self.records[seq].done_ns[site] = self.clock.now_ns
                    self.records[seq].left -= 1
                    while self.oldest_open < len(self.records) and self.records[self.oldest_open].complete:
                        self.oldest_open += 1
                    if self.on_complete is not None:
                        self.on_complete(site, seq)
                case Failed(seq, cause):
                    self.failures.append((site, seq, cause))

    def _send(self, site: int, action: Send) -> None:
        dst, message, nbytes = action.dst, action.message, action.message.payload.nbytes

        def arrived() -> None:
            self._execute(dst, self.sites[dst].on_message(message))

        if self.options.relay == "queue":
            self._relay(site, action, arrived)
        elif self.measuring is None:
            lane = self.lanes.lane(site, dst, action.path, action.cls)
            self.lanes.send(lane, nbytes, arrived, action.priority)
        else:
            self._send_measured(self.measuring, site, action, arrived)

    def _send_measured(
        self, measuring: Measuring, site: int, action: Send, arrived: Callable[[], None]
    ) -> None:
        dst, nbytes = action.dst, action.message.payload.nbytes
        path = measuring.choose(site, dst, action.path)

        def timed() -> None:
            measuring.arrived(dst, site, path, sent, nbytes)
            arrived()

        sent = self.lanes.send(self.lanes.lane(site, dst, path, action.cls), nbytes, timed, action.priority)

    def _relay(self, site: int, action: Send, arrived: Callable[[], None]) -> None:
        """Whole chunks from link to link."""
        nbytes = action.message.payload.nbytes
        hops = list(pairwise(self.underlay.path(site, action.dst, action.path)))

        def forward(k: int) -> None:
            then = arrived if k + 1 == len(hops) else lambda: forward(k + 1)
            # A neighbour's direct path is its own lane, so the link has one queue whoever relays over it.
            lane = self.lanes.lane(*hops[k], self._hop_paths.get(hops[k], 0))
            self.lanes.send(lane, nbytes, then, action.priority)

        forward(0)

    def _check_result(self, site: int, seq: int, part: int, payload: object) -> None:
        assert isinstance(payload, GhostPayload)
        wanted = site_mask(self.records[seq].spec.parts[part].contributors, self.n)
        if payload.once != wanted or payload.again:
            payload.assert_exact([k for k in range(self.n) if wanted >> k & 1])

    def _to_coordinator(self, message: ToCoordinator) -> None:
        def arrive() -> None:
            before = self.coordinator.next_seq
            self._coordinate(self.coordinator.on_message(message))
            if isinstance(message, Ready):
                self.ready_times.heard(message, self.clock.now_ns / SECOND)
            if self.on_ready is not None and self.coordinator.next_seq > before:
                self.on_ready()

        self.clock.after(self._control_ns[message.site or 0], arrive)

    def _coordinate(self, actions: Sequence[CoordinatorAction]) -> None:
        """Do what the coordinator asks for."""
        self.policies += self._history.note(self.coordinator, self.clock.now_ns, self._why)
        for action in actions:
            self._to_site(action.dst, action.message)
        self._watch_leases()

    def _watch_leases(self) -> None:
        deadline = self.coordinator.next_deadline
        if deadline is None:
            return
        time_ns = math.ceil(deadline * SECOND)
        if self._lease_ns is not None and self._lease_ns <= time_ns:
            return
        self._lease_ns = time_ns

        def look() -> None:
            if self._lease_ns != time_ns:
                return
            self._lease_ns = None
            self._coordinate(self.coordinator.on_time())

        self.clock.at(time_ns, look)

    def _to_site(self, site: int, message: ToSite) -> None:
        self.clock.after(
            self._control_ns[site], lambda: self._execute(site, self.sites[site].on_message(message))
        )
