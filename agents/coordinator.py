"""The coordinator: it plans, issues policies, opens the barrier of every collective, and serves runners.

By default a daemon on the management network (`python -m agents.coordinator`), as in NetStorm's own set-up;
the class can as well run inside an agent.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from agents.coflow_following import CoflowFollowing
from agents.config import Config
from agents.control_classes import ControlTotals
from agents.control_server import ControlServer, Verb
from agents.coordinator_job import CoordinatedJob
from agents.daemon import run_daemon
from agents.decision_file import DecisionFile, decision_path
from agents.job import JobDescription
from agents.job_spec import NETWORK_OPTIONS, JobSpec, Options, segment_options
from agents.link_state import LinkFollower, NetworkNow, link_names
from agents.metrics.coordinator import CoordinatorCollector
from agents.metrics.server import Server as MetricsServer
from agents.network_watch import NetworkWatch
from agents.planning.base import NetworkView, Plan
from agents.planning.registry import get_scheduler, library_of
from agents.streams import FrameStream
from agents.views import network_view
from topologies.errors import DeadlineError, StormbedError, UsageError

log = logging.getLogger(__name__)

OPEN_SECONDS: Final = 30.0
START_SECONDS: Final = 120.0
CLOSE_SECONDS: Final = 30.0


class Coordinator:
    """Create and use it on a running asyncio loop.

    Attributes:
        agents: the connected agents, by index of their site.
        jobs: the open jobs, by their name on the wire.
        rates: bit/s of every directed link, as far as known; the declared ones until told otherwise.
        now: the network without the links that are down.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        verbs: dict[str, Verb] = {
            "open_job": self._open_job,
            "run_segment": self._run_segment,
            "close_job": self._close_job,
            "abort": self._abort,
            "rates": self._set_rates,
            "coflow": self._set_coflow,
            "status": self._status,
            "plan": self._plan_in_use,
        }
        self._door = ControlServer(self, "coordinator", len(config.topology.site_names), verbs)
        self.agents: Mapping[int, FrameStream] = self._door.agents
        self.jobs: dict[str, CoordinatedJob] = {}
        self.rates: dict[tuple[int, int], float] = dict(config.topology.rates())
        self.now = NetworkNow(self.config)
        self.aborted_jobs = 0
        self._control = ControlTotals()
        controller = config.addresses.controller
        self._follower = controller and LinkFollower(controller, link_names(config), self._links_changed)
        self._pids: dict[int, int] = {}
        self._owners: dict[FrameStream, set[str]] = {}  # what each runner opened, by the runner's name for it
        self._coflow = CoflowFollowing(self.agents)
        self._metrics = MetricsServer(CoordinatorCollector(self))

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be used."""
        addresses = self.config.addresses
        hosts = sorted({addresses.coordinator[0], addresses.for_runners[0]})
        await self._door.start(hosts, addresses.coordinator[1])
        if self._follower is not None:
            self._follower.start()
        endpoint = self.config.addresses.coordinator_metrics
        if endpoint is not None:
            try:
                await self._metrics.start(endpoint)
            except OSError:
                await self.close()
                raise

    async def close(self) -> None:
        """End all connections; agents stop their jobs when they see it."""
        if self._follower is not None:
            await self._follower.close()
        await self._door.close()
        await self._metrics.close()

    # ---- agents and runners come and go (control_server.Owner)

    def refuses(self, site: int, body: Mapping[str, Any]) -> str | None:
        if site not in self.agents:
            return None
        return f"{self.config.topology.site_names[site]} has an agent already (pid {self._pids[site]})"

    def agent_came(self, site: int, stream: FrameStream, body: Mapping[str, Any]) -> None:
        self._pids[site] = int(body.get("pid", 0))
        self._control.add(stream)
        if self.now.down:
            stream.send("routes", {"down": sorted(self.now.down)})
        self._coflow.greet(stream)

    def agent_gone(self, site: int, stream: FrameStream, reason: str) -> None:
        self._control.ended(stream)
        log.warning("lost the agent of %s: %s", self.config.topology.site_names[site], reason)
        for job in self.jobs.values():
            if site in job.description.members:
                place = job.description.members.index(site)
                job.site_lost(place, f"its agent (pid {self._pids[site]}) is gone: {reason}")

    def agent_said(self, site: int, kind: str, body: dict[str, Any]) -> None:
        job = self.jobs.get(body.get("job", ""))
        if job is not None:  # else it was closed meanwhile
            job.agent_said(job.description.members.index(site), kind, body)

    def runner_gone(self, stream: FrameStream, reason: str) -> None:
        self._coflow.runner_ended(stream)
        for name in self._owners.pop(stream, ()):
            for job in [job for job in self.jobs.values() if job.name == name]:
                job.abort(f"the runner that opened job {name} is gone: {reason}")
                self._drop(job)

    def _send_to_agent(self, site: int, kind: str, body: dict[str, Any]) -> None:
        stream = self.agents.get(site)
        if stream is not None:
            stream.send(kind, body)

    def _links_changed(self, down: frozenset[int]) -> None:
        """The controller's word: these links are down now."""
        self.now.change(down)
        names = [link.endpoints for k, link in enumerate(self.config.topology.links) if k in down]
        log.info("links down: %s", ", ".join("-".join(ends) for ends in names) or "none")
        for stream in self.agents.values():
            stream.send("routes", {"down": sorted(down)})
        for job in self.jobs.values():
            job.links_changed(down)

    # ---- runners

    async def _open_job(self, stream: FrameStream, spec: dict[str, Any]) -> dict[str, Any]:
        wanted = JobSpec.read(spec)
        topology = self.config.topology
        if any(job.name == wanted.job for job in self.jobs.values()):
            raise UsageError(f"there is a job {wanted.job} already", hint="close it or use another name")
        members = tuple(sorted(topology.index(name) for name in wanted.sites))
        names = tuple(topology.site_names[site] for site in members)
        workers = tuple(wanted.sites[name] for name in names)
        if wanted.scheduler is not None and (library := library_of(wanted.scheduler)):
            raise UsageError(
                f"job {wanted.job}: {library} is no scheduler of the agents",
                hint=f"the workers use it themselves, as init_process_group({library!r})",
            )
        if min(workers) < 1:
            raise UsageError(f"{names[workers.index(min(workers))]} has no worker in job {wanted.job}")
        await self._agents_of(members)
        description = JobDescription(
            wanted.job, f"{wanted.job}#{secrets.token_hex(4)}", members, names, workers, wanted.deadline_s
        )
        job = CoordinatedJob(
            description,
            wanted.chunk_elements,
            self.config.hop_paths(members),
            lambda place, kind, body: self._send_to_agent(members[place], kind, body),
            DecisionFile(decision_path(self.config.run_dir, wanted.job)),
        )
        job.options = wanted.awareness, wanted.auxiliary, wanted.policy
        plan = None
        if wanted.scheduler is not None:
            job.scheduler_spec = wanted.scheduler
            plan = await self._plan(job, wanted.scheduler, self._view(job, self.rates))
        self.jobs[description.wire] = job
        self._owners.setdefault(stream, set()).add(wanted.job)
        try:
            await job.open(OPEN_SECONDS)
        except StormbedError as error:
            job.abort(str(error))
            self._drop(job)
            raise
        # Announcements do not wait for releases, so the sites have to know the job before.
        job.run(job.machine.announce_ahead(wanted.policy.announced))
        if plan is not None:
            job.set_plan(plan)
        return {"job": wanted.job, "world_size": sum(workers)}

    async def _run_segment(
        self,
        stream: FrameStream,
        job: str,
        segment: dict[str, Any],
        start_timeout: float = START_SECONDS,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        found = self._job(job)
        options = segment_options(segment, found.options)
        scheduler = segment.get("scheduler")
        if scheduler is None and found.machine.policy is None:
            raise UsageError(f"segment {segment.get('label')} of job {job} names no scheduler, and none is in use")
        watch = self._watch(found, options)
        found.ready_times.forget()
        before, spent = found.machine.version, self._control.read()
        plan = None
        if scheduler is not None:
            found.scheduler_spec = scheduler
            plan = await watch.first_plan()
        else:
            watch.keep_plan(found.machine.policy)
        await found.run_segment(
            {key: value for key, value in segment.items() if key not in NETWORK_OPTIONS},
            plan,
            start_timeout=start_timeout,
            timeout=timeout,
            watch=watch,
            policy=options[2],
        )
        names = found.description.site_names
        return {
            "segment": segment.get("label"),
            "policy_version": found.machine.version,
            "collectives": found.machine.next_seq,
            "plan": None if plan is None else plan.to_dict(names),
            "policies": [entry for entry in found.policies if entry["version"] > before],
            "network": watch.status(),
            "control": self._control.since(spent),
        }

    def _watch(self, job: CoordinatedJob, options: Options) -> NetworkWatch:
        """What follows the network during a segment."""
        watch = NetworkWatch(
            options[0],
            options[1],
            config=self.config,
            members=job.description.members,
            declared=dict(self.rates),
            view=lambda rates: self._view(job, rates),
            make_plan=lambda view: self._plan(job, job.scheduler_spec, view),
            use_plan=job.set_plan,
            broadcast=job.broadcast,
        )
        watch.links_changed(self.now.down, replan=False)
        return watch

    async def _close_job(self, stream: FrameStream, job: str, timeout: float = CLOSE_SECONDS) -> None:
        found = self._job(job)
        try:
            await found.close(timeout)
        finally:
            self._drop(found)
            self._owners.get(stream, set()).discard(job)

    async def _abort(self, stream: FrameStream, job: str, why: str) -> None:
        self._job(job).abort(why)

    async def _set_rates(self, stream: FrameStream, rates: list[tuple[str, str, float]]) -> None:
        """Plan with these rates from now on; links that are not named keep theirs."""
        topology = self.config.topology
        changed: dict[tuple[int, int], float] = {}
        for src, dst, bps in rates:
            link = topology.index(src), topology.index(dst)
            if link not in self.rates:
                raise UsageError(f"no link leads from {src} to {dst}")
            if not isinstance(bps, int | float) or not bps >= 0:
                raise UsageError(f"{src} -> {dst} cannot have the rate {bps!r}")
            changed[link] = float(bps)
        self.rates.update(changed)

    async def _set_coflow(self, stream: FrameStream, address: list[Any] | None) -> None:
        self._coflow.follow(stream, address)

    async def _status(self, stream: FrameStream) -> dict[str, Any]:
        names = self.config.topology.site_names
        return {
            "schema": 1,
            "agents": {name: site in self.agents for site, name in enumerate(names)},
            "links_down": ["-".join(self.config.topology.links[k].endpoints) for k in sorted(self.now.down)],
            "jobs": [job.status() for job in self.jobs.values()],
        }

    async def _plan_in_use(self, stream: FrameStream, job: str) -> dict[str, Any]:
        """What carries a job's collectives now; no plan where its scheduler decides per transfer."""
        found = self._job(job)
        policy, names = found.machine.policy, found.description.site_names
        plan = None if policy is None else policy.plan.to_dict(names)
        return {"job": job, "policy_version": found.machine.version, "plan": plan}

    # ---- helpers

    def _job(self, name: str) -> CoordinatedJob:
        for job in self.jobs.values():
            if job.name == name:
                return job
        raise UsageError(f"there is no job {name}", hint="open it first")

    def _drop(self, job: CoordinatedJob) -> None:
        """Forget a job, here and at its sites."""
        if self.jobs.pop(job.description.wire, None) is not None:
            self.aborted_jobs += job.failure is not None
            if job.decisions is not None:
                job.decisions.close()
            job.broadcast("close", {})

    def _view(self, job: CoordinatedJob, rates: Mapping[tuple[int, int], float]) -> NetworkView:
        view = network_view(self.config, rates, job.description.members, self.now)
        return replace(view, ready_s=job.ready_times.seconds)

    async def _plan(self, job: CoordinatedJob, scheduler: str | Mapping[str, Any], view: NetworkView) -> Plan:
        """In a thread: planning a large network takes seconds, and the barrier must not wait for it."""
        planner = get_scheduler(scheduler, job.description.site_names)
        return await asyncio.get_running_loop().run_in_executor(None, planner.plan, view)

    async def _agents_of(self, members: tuple[int, ...]) -> None:
        """Wait until the agents of these sites are connected."""
        missing = await self._door.wait_for_agents(members, OPEN_SECONDS)
        if missing:
            names = ", ".join(self.config.topology.site_names[site] for site in missing)
            raise DeadlineError(
                f"the agents of {names} to connect", OPEN_SECONDS, hint="see agent.log of these sites"
            )


def main() -> int:
    """`python -m agents.coordinator --run-dir DIR`"""
    parser = argparse.ArgumentParser(prog="python -m agents.coordinator", description=__doc__.split("\n")[0])
    parser.add_argument("--run-dir", type=Path, required=True, help="directory of the testbed")
    arguments = parser.parse_args()
    return run_daemon(lambda: Coordinator(Config.load(arguments.run_dir)), "coordinator")


if __name__ == "__main__":
    raise SystemExit(main())
