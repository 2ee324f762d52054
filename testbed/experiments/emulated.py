"""One experiment in the emulated world: its segments, one after the other, through the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from agents.control import CoordinatorClient
from testbed.emulation.rundir import TestbedInfo
from testbed.experiments.changes import LinkChanges
from testbed.experiments.manifest import TRACE, WorkerRow
from testbed.experiments.on_testbed import POLL_S, RunOnTestbed, Say, Windows
from testbed.experiments.progress import TraceFollower
from testbed.experiments.rundir import RunDirectory
from testbed.experiments.spec import LoadedExperiment, Segment
from testbed.experiments.told import job_message, segment_message, worker_environment, worker_module
from testbed.meeting import choose_port, meeting
from testbed.report.measurements import read_run
from topologies.errors import StormbedError


class EmulatedRun(RunOnTestbed):
    """The segments of one experiment; see `RunOnTestbed` for the arguments and what is left behind."""

    def __init__(
        self, experiment: LoadedExperiment, testbed: TestbedInfo, run: RunDirectory, say: Say
    ) -> None:
        super().__init__(experiment, testbed, run, say)
        self._changes = LinkChanges(experiment, self._client, run)
        self._port = choose_port()

    def _conduct(self, coordinator: CoordinatorClient) -> None:
        training, rows = self._experiment.spec.training, self._run.manifest.workers
        sites = {name: site.workers for name, site in self._experiment.topology.sites.items()}
        coordinator.open_job(job_message(self._job, sites, training))
        self._start_workers(worker_module(self._experiment), f"{len(rows)} workers", self._environment)
        self._await_workers(coordinator, [self._job], len(rows))
        self._changes.began_ns = self._links.began_ns
        with self._changes.over("run", "", self._experiment.spec.seed):
            for segment in self._experiment.turns:
                self._conduct_segment(coordinator, segment)
        self._changes.note_lateness()
        self._say("ending the workers")
        coordinator.close_job(self._job)
        self._run.events.write("job-closed")
        self._end_workers()

    def _environment(self, row: WorkerRow) -> Mapping[str, str]:
        site = self._experiment.topology.index(row.site)
        where = meeting(site, self._port) if self._experiment.libraries else {}
        return {
            **where,
            **worker_environment(self._testbed, row),
            "STORMBED_JOB": self._job,
            "STORMBED_WORKER": str(row.worker),
            "STORMBED_OUT": str(self._folder(row)),
            "RANK": str(row.rank),
            "WORLD_SIZE": str(len(self._run.manifest.workers)),
        }

    def _conduct_segment(self, coordinator: CoordinatorClient, segment: Segment) -> None:
        self._say(f"{segment.label}: {segment.iterations} iterations")
        with self._during(segment.label), self._changes.over("segment", segment.label, segment.seed):
            self._watch(coordinator, segment)
            self._links.read()
            self._run.events.write("segment-cost", segment=segment.label, cpu_s=self._links.cpu_s())
        self._changes.await_return(lambda: coordinator.status()["links_down"])

    def _watch(self, coordinator: CoordinatorClient, segment: Segment) -> None:
        """Wait for the segment's end, a worker's death or an interrupt, whichever comes first."""
        follower = TraceFollower(self._folder(self._run.manifest.workers[0]) / TRACE, segment.label)
        message = segment_message(self._experiment, segment)
        with ThreadPoolExecutor(1, thread_name_prefix="segment") as pool:
            future = pool.submit(coordinator.run_segment, self._job, message)
            try:
                while not _is_done(future, POLL_S):
                    self._check_alive()
                    self._tell(segment, follower)
                self._tell(segment, follower)
                result = future.result()
                self._run.set_plan(segment.label, result["plan"])
                followed = {key: result[key] for key in ("policies", "network", "control")}
                self._run.events.write("network-followed", segment=segment.label, **followed)
            except BaseException as error:
                if not future.done():
                    self._abort(coordinator, str(error) or type(error).__name__)
                raise

    def _tell(self, segment: Segment, follower: TraceFollower) -> None:
        for line in follower.news():
            self._say(f"{segment.label}: {line} of {segment.iterations}")

    def _abort(self, coordinator: CoordinatorClient, why: str) -> None:
        try:
            coordinator.abort(self._job, why)
        except StormbedError as error:
            # Whatever made the run fail is told already; without the coordinator the segment ends too.
            self._run.events.write("problem", text=f"the job could not be aborted: {error}")

    def _synchronisations(self) -> Windows:
        """As the workers' traces tell."""
        found = read_run(self._run.path).iterations.values()
        return sorted((i.ready_ns, i.done_ns) for iterations in found for i in iterations if i.complete)


def _is_done(future: Future[Any], seconds: float) -> bool:
    try:
        future.exception(seconds)
    except TimeoutError:
        return False
    return True
