"""What goes wrong in a simulated job: found by the sites, judged at the coordinator as in the emulated world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from agents.faults import PATIENCE_SECONDS, Fault, cause_of
from agents.job import CONSEQUENCE, WAITS_FOR_RELEASE
from agents.sync.actions import CoordinatorAction
from agents.sync.coordinator_machine import CoordinatorMachine
from agents.sync.site_machine import SiteMachine
from testbed.simulation.clock import SECOND, VirtualClock


class Faults:
    """Deadlines and lost connections of one job.

    control_ns  one way between each site and the coordinator
    deadline_s  the longest that a collective may take at a site; None: for ever
    execute     does what the coordinator asks for
    """

    def __init__(
        self,
        clock: VirtualClock,
        coordinator: CoordinatorMachine,
        sites: list[SiteMachine],
        *,
        control_ns: Sequence[int],
        deadline_s: float | None,
        execute: Callable[[list[CoordinatorAction]], None],
    ) -> None:
        self._clock = clock
        self._coordinator = coordinator
        self._sites = sites
        self._control_ns = control_ns
        self._deadline_s = deadline_s
        self._execute = execute
        self._faults: list[Fault] = []

    def begun(self, site: int, seq: int) -> None:
        """A site has begun a collective: its time runs."""
        if self._deadline_s is not None:
            self._clock.after(round(self._deadline_s * SECOND), lambda: self._overdue(site, seq))

    def connection_lost(self, src: int, dst: int, reason: str) -> None:
        """A site has lost its connection to another."""
        machine = self._sites[src]
        if machine.in_flight:
            names = machine.site_names
            cause = f"the connection between {names[src]} and {names[dst]} was lost: {reason}"
            self._tell(Fault(src, cause, CONSEQUENCE), None)

    def _overdue(self, site: int, seq: int) -> None:
        machine = self._sites[site]
        if seq not in machine.in_flight:
            return
        waiting = machine.waiting_for(seq)
        telling = CONSEQUENCE if waiting.sites else WAITS_FOR_RELEASE
        cause = f"waited {self._deadline_s:g} s for {waiting}"
        self._tell(Fault(site, cause, telling, frozenset(waiting.sites)), seq)

    def _tell(self, fault: Fault, seq: int | None) -> None:
        self._clock.after(self._control_ns[fault.site], lambda: self._heard(fault, seq))

    def _heard(self, fault: Fault, seq: int | None) -> None:
        if self._coordinator.aborted is not None:
            return
        if fault.telling == WAITS_FOR_RELEASE and seq is not None:
            cause = f"waited {self._deadline_s:g} s for {self._coordinator.waiting_for(seq)}"
            fault = replace(fault, cause=cause)
        self._faults.append(fault)
        if len(self._faults) == 1:
            self._clock.after(round(PATIENCE_SECONDS * SECOND), self._decide)

    def _decide(self) -> None:
        self._execute(self._coordinator.abort(cause_of(self._faults)))
