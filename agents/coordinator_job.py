"""One job at the coordinator: who takes part, what the workers run, why it stopped."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from agents.decision_file import DecisionFile
from agents.faults import PATIENCE_SECONDS, Fault, cause_of
from agents.job import CAUSE, WAITS_FOR_RELEASE, JobDescription
from agents.job_spec import Options
from agents.network_watch import NetworkWatch
from agents.options import AuxiliaryOptions, AwarenessOptions, Failures, PolicyOptions
from agents.planning.base import Plan
from agents.ready_times import ReadyTimes
from agents.sync.actions import CoordinatorAction
from agents.sync.coordinator_machine import CoordinatorMachine
from agents.sync.history import PolicyHistory
from agents.sync.messages import Ready, ToCoordinator, ToSite, control_from_dict, control_to_dict
from topologies.errors import DeadlineError, RunFailedError, StormbedError, UsageError

MAX_POLICIES: Final = 1000

Worker = tuple[int, int]  # (place of its site in the job, index there)


class CoordinatedJob:
    """See the module's text. All methods run on the coordinator's loop.

    Args:
        description: the job.
        chunk_elements: largest chunk, unless a segment says otherwise.
        hop_paths: which network path each hop takes.
        send: sends a frame to the agent of a site (its place in the job).
        decisions: keeps what is decided per transfer.
    """

    def __init__(
        self,
        description: JobDescription,
        chunk_elements: int,
        hop_paths: dict[tuple[int, int], int],
        send: Callable[[int, str, dict[str, Any]], None],
        decisions: DecisionFile | None = None,
    ) -> None:
        self.description = description
        self.name = description.name
        self.machine = CoordinatorMachine(description.name, description.site_names, clock=time.monotonic)
        self.decisions = decisions
        if decisions is not None:
            self.machine.on_decision = decisions.write
        self.pids: dict[Worker, int] = {}
        self.asking: set[Worker] = set()
        self.left: set[Worker] = set()
        self.opened: set[int] = set()
        self.segment: str | None = None
        self.watch: NetworkWatch | None = None
        self.options: Options = (AwarenessOptions(), AuxiliaryOptions(), PolicyOptions())
        self.failures: Failures = "replan"
        self.scheduler_spec: str | Mapping[str, Any] = ""
        self.policies: deque[dict[str, Any]] = deque(maxlen=MAX_POLICIES)  # those that have come into force
        self._history = PolicyHistory()
        self._why: dict[str, Any] = {}
        self._within = False  # new plans hold for the collective under way as well
        self.ready_times = ReadyTimes(len(description.members))
        self._every = 0  # plan anew after so many collectives
        self._planned_at = 0
        self._chunk_elements = self._elements = chunk_elements
        self._hop_paths = hop_paths
        self._send = send
        self._changed = asyncio.Event()
        self._running = False
        self._scheduler = ""
        self._faults: list[Fault] = []
        self._timer: asyncio.TimerHandle | None = None
        self._lease: asyncio.TimerHandle | None = None  # the machine is called for transfers that are late
        self._lease_at = 0.0
        self._everyone = frozenset(
            (site, index) for site, count in enumerate(description.workers) for index in range(count)
        )

    @property
    def failure(self) -> str | None:
        """Why the job has stopped, or None."""
        return self.machine.aborted

    # ---- what the runner asks for

    async def open(self, timeout: float) -> None:
        """Make the job known at all its sites, then let workers join."""
        self.broadcast("open", self.description.to_dict())
        sites = range(len(self.description.members))
        await self._until(
            lambda: len(self.opened) == len(sites),
            timeout,
            lambda: f"{self._sites(k for k in sites if k not in self.opened)} to open job {self.name}",
        )
        self.broadcast("go", {})

    async def run_segment(
        self,
        fields: dict[str, Any],
        plan: Plan | None,
        *,
        start_timeout: float,
        timeout: float | None,
        watch: NetworkWatch | None = None,
        policy: PolicyOptions | None = None,
    ) -> None:
        """Give the next segment to all workers, and wait until all have finished it.

        `watch` follows the network meanwhile; `policy` replaces the job's options.
        """
        if self._running:
            raise UsageError(f"job {self.name} is running segment {self.segment} already")
        self._running = True
        try:
            await self._until(self._all_ask, start_timeout, self._who_does_not_ask)
            self._elements = fields.get("chunk_elements", self._chunk_elements)
            how = policy or self.options[2]
            self.failures = how.failures
            self._every, self._planned_at = how.every, self.machine.next_seq
            self._within = False  # what the segment begins with is no change
            self.run(self.machine.settle_anew())
            if self.decisions is not None:
                self.decisions.begin(str(fields.get("label", "")))
            if plan is not None:
                self.set_plan(plan)
            self.run(self.machine.announce_ahead(how.announced))
            self._within = how.switch == "within"
            self.segment = str(fields.get("label", ""))
            self.asking.clear()
            options = {} if watch is None else watch.options()
            self.broadcast("segment", {"fields": fields, "scheduler": self._scheduler, "options": options})
            self.watch = watch
            if watch is not None:
                watch.start()
            await self._until(self._all_ask, timeout, self._who_does_not_ask)
        except DeadlineError as error:
            self.abort(f"segment {fields.get('label')}: {error}")
            raise
        finally:
            self._running = False
            if self.decisions is not None:
                self.decisions.flush()
            if watch is not None:
                watch.stop()

    async def close(self, timeout: float) -> None:
        """Tell the workers that there is nothing more to run, and wait until they have left."""
        if self.failure is None:
            self.broadcast("end", {})
            try:
                await self._until(
                    lambda: self.left >= set(self.pids),
                    timeout,
                    lambda: f"{self._workers(set(self.pids) - self.left)} to leave job {self.name}",
                )
            except DeadlineError as error:
                self.abort(str(error))
                raise

    def set_plan(self, plan: Plan, why: Mapping[str, Any] = MappingProxyType({"reason": "start"})) -> None:
        """Use a plan from the next collective on, or from the next one that is not settled; with `policy: within`
        for the rest of the latest one too.
        """
        self._scheduler = plan.scheduler
        self._why = dict(why)
        if self._within:
            latest = self.machine.next_seq - 1
            self.run(self.machine.replan_within(latest, plan, self._elements, self._hop_paths))
        else:
            self.run(self.machine.set_plan(plan, self._elements, self._hop_paths))

    def links_changed(self, down: Iterable[int]) -> None:
        """Links have failed or returned; the plan does without those that are down, unless it is to be kept."""
        if self.watch is not None:
            self.watch.links_changed(down, replan=self._running and self.failures == "replan")

    def abort(self, cause: str) -> None:
        """Stop the job at all sites."""
        self.run(self.machine.abort(cause))

    # ---- what the agents say

    def agent_said(self, site: int, kind: str, body: dict[str, Any]) -> None:
        """A frame about this job; `site` is the sender's place in the job."""
        if kind == "machine":
            message = control_from_dict(body["message"])
            if not isinstance(message, ToCoordinator):
                raise StormbedError("a site cannot release")
            self._machine_said(message)
        elif kind == "fault":
            self._fault(
                Fault(site, body["cause"], body["telling"], frozenset(body.get("sites", ()))),
                body.get("seq"),
            )
        elif kind == "estimates":
            if self.watch is not None:
                self.watch.reported(self.description.members[site], body["ways"], body["probe_bytes"])
            return
        elif kind == "opened":
            self.opened.add(site)
        elif kind == "joined":
            self.pids[site, body["worker"]] = body["pid"]
        elif kind == "asks":
            self.asking.add((site, body["worker"]))
        elif kind == "left":
            self._left((site, body["worker"]))
        else:
            raise StormbedError(f"unknown frame {kind!r}")
        self._notify()

    def site_lost(self, site: int, why: str) -> None:
        """The agent of a site is gone."""
        self.run(self.machine.site_lost(site, why))

    def _machine_said(self, message: ToCoordinator) -> None:
        try:
            self.run(self.machine.on_message(message))
        except StormbedError as error:
            self.abort(f"coordinator: {error}")
            return
        if isinstance(message, Ready) and self.failure is None:
            self.ready_times.heard(message, time.monotonic())
            self._plan_in_turn()
            if self.left:
                self._check_left(message.seq)

    def _plan_in_turn(self) -> None:
        if self._every and self._running and self.machine.next_seq >= self._planned_at + self._every:
            self._planned_at = self.machine.next_seq
            if self.watch is not None:
                self.watch.plan_again("every")

    def _left(self, worker: Worker) -> None:
        self.left.add(worker)
        self.asking.discard(worker)
        if self._running and self.segment is not None and self.failure is None:
            self.abort(
                f"{self._workers([worker])} left job {self.name} in the middle of segment {self.segment}"
            )

    def _check_left(self, seq: int) -> None:
        """Some site is ready for `seq`; a site that still has to call it must not have lost a worker."""
        if seq < self.machine.next_seq:
            return
        late = set(self.machine.waiting_for(seq).sites)
        gone = [worker for worker in self.left if worker[0] in late]
        if gone:
            self.abort(f"{self._workers(gone)} left job {self.name} before collective {seq}")

    def _fault(self, fault: Fault, seq: int | None) -> None:
        if self.failure is not None:
            return
        if fault.telling == CAUSE:
            self.abort(fault.cause)
            return
        if fault.telling == WAITS_FOR_RELEASE and seq is not None:
            cause = f"waited {self.description.deadline_s:g} s for {self.machine.waiting_for(seq)}"
            fault = Fault(fault.site, cause, fault.telling, fault.waits_for)
        self._faults.append(fault)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._decide)

    def _decide(self) -> None:
        """Nothing more telling came: stop the job for what was reported."""
        self.abort(cause_of(self._faults))

    # ---- helpers

    def run(self, actions: list[CoordinatorAction]) -> None:
        """Execute what the machine asks for."""
        self.policies += self._history.note(self.machine, time.monotonic_ns(), self._why)
        for action in actions:
            self._send_message(action.dst, action.message)
        if self.failure is not None and self._timer is not None:
            self._timer.cancel()
        self._watch_leases()
        self._notify()

    def _watch_leases(self) -> None:
        """Be there when a transfer that was decided by itself is late."""
        deadline = self.machine.next_deadline
        if self._lease is not None:
            if deadline is not None and self._lease_at <= deadline:
                return  # comes in time, and looks again
            self._lease.cancel()
            self._lease = None
        if deadline is not None:
            self._lease_at = deadline
            wait = max(0.0, deadline - time.monotonic())
            self._lease = asyncio.get_running_loop().call_later(wait, self._leases_end)

    def _leases_end(self) -> None:
        self._lease = None
        try:
            self.run(self.machine.on_time())
        except StormbedError as error:
            self.abort(f"coordinator: {error}")

    def broadcast(self, kind: str, body: dict[str, Any]) -> None:
        """A frame to all sites of the job."""
        for site in range(len(self.description.members)):
            self._send(site, kind, {**body, "job": self.description.wire} if kind != "open" else body)

    def _send_message(self, site: int, message: ToSite) -> None:
        self._send(site, "machine", {"job": self.description.wire, "message": control_to_dict(message)})

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(
        self, condition: Callable[[], bool], timeout: float | None, what: Callable[[], str]
    ) -> None:
        """Wait for a condition. RunFailedError when the job stops first, DeadlineError when time runs out."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if self.failure is not None:
                        raise RunFailedError(self.failure)
                    if condition():
                        return
                    await self._changed.wait()
        except TimeoutError:
            raise DeadlineError(what(), timeout or 0.0) from None

    def _all_ask(self) -> bool:
        if self.left:
            raise RunFailedError(f"{self._workers(self.left)} left job {self.name} before its next segment")
        return self.asking == self._everyone

    def _who_does_not_ask(self) -> str:
        absent = self._everyone - set(self.pids)
        if absent:
            return f"{self._workers(absent)} to join job {self.name}"
        task = f"finish segment {self.segment}" if self.segment else "ask for a segment"
        return f"{self._workers(self._everyone - self.asking)} to {task}"

    def _workers(self, workers: Iterable[Worker]) -> str:
        names = self.description.site_names
        listed = []
        for worker in sorted(workers):
            pid = f" (pid {self.pids[worker]})" if worker in self.pids else ""
            listed.append(f"worker {worker[1]} of {names[worker[0]]}{pid}")
        return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")

    def _sites(self, sites: Iterable[int]) -> str:
        return ", ".join(self.description.site_names[site] for site in sites)

    def status(self) -> dict[str, Any]:
        """Plain values for `status`."""
        return {
            "job": self.name,
            "failure": self.failure,
            "segment": self.segment,
            "running": self._running,
            "policy_version": self.machine.version,
            "collectives": self.machine.next_seq,
            "workers": len(self._everyone),
            "joined": len(self.pids),
            "left": len(self.left),
            "policies": list(self.policies),
            "network": None if self.watch is None else self.watch.status(),
        }
