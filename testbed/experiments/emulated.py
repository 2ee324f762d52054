"""One experiment in the emulated world: workers over SSH, segments through the coordinator, links watched."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agents.control import CoordinatorClient
from agents.decision_file import decision_path
from testbed.client import SupervisorClient
from testbed.emulation.rundir import TestbedInfo
from testbed.events import read_events
from testbed.experiments.changes import LinkChanges
from testbed.experiments.interference import changes_by_others, interference
from testbed.experiments.manifest import DECISIONS, FidelityRow, LinkRow, WorkerRow
from testbed.experiments.progress import TraceFollower
from testbed.experiments.readiness import ended, has_ended
from testbed.experiments.recorder import LinkRecorder
from testbed.experiments.rundir import RunDirectory
from testbed.experiments.schema import Compute
from testbed.experiments.spec import LoadedExperiment, Segment
from testbed.experiments.workers import Workers, cpu_padding, describe_end
from testbed.meeting import choose_port, meeting
from testbed.report.measurements import read_run
from testbed.runner import run as run_command
from testbed.telemetry.export import DEFAULT_SELECTORS, export_window
from testbed.telemetry.query import PrometheusClient
from topologies.errors import DeadlineError, RunFailedError, StormbedError

POLL_S = 0.1
JOIN_POLL_S = 0.25
# Loading torch costs each worker a few seconds of a core that it shares with all others.
JOIN_DEADLINE_S = 180.0
END_GRACE_S = 20.0
CAUSE_GRACE_S = 2.0
ABORT_GRACE_S = 5.0
MIB = 1024 * 1024
LOG_BYTES = 1_000_000

Say = Callable[[str], None]


class EmulatedRun:
    """Runs one experiment on a standing testbed whose topology is the experiment's.

    Args:
        experiment: what to run.
        testbed: the testbed.
        run: where everything is written.
        say: told what is being done.
    """

    _metric_selectors: Sequence[str] = DEFAULT_SELECTORS

    def __init__(
        self, experiment: LoadedExperiment, testbed: TestbedInfo, run: RunDirectory, say: Say
    ) -> None:
        self._experiment = experiment
        self._testbed = testbed
        self._run = run
        self._say = say
        self._job = run.manifest.id
        self._workers = Workers(testbed.run_dir / "ssh_config")
        self._client = SupervisorClient(testbed.name)
        self._links = LinkRecorder(self._client, run)
        self._changes = LinkChanges(experiment, self._client, run)
        self._port = choose_port()

    def execute(self) -> None:
        """Run all segments. However it ends, nothing is left running and the run directory tells it.

        Raises:
            RunFailedError: a worker, an agent or the testbed failed; the message names which and why.
            KeyboardInterrupt: passed on once the workers have ended.
        """
        failure: BaseException | None = None
        try:
            with CoordinatorClient(*self._testbed.coordinator) as coordinator, self._links:
                self._conduct(coordinator)
        except BaseException as error:
            failure = self._explain(error)
            if failure is error:
                raise
            raise failure from error
        finally:
            ended = self._conclude(failure)
        if ended is not None:
            raise ended

    def _conclude(self, failure: BaseException | None) -> BaseException | None:
        """End the workers, keep what can be kept, and write how it ended.

        Returns why it failed, which is the run directory when nothing else has and it takes no more.
        """
        problems = self._workers.end()
        fidelity: FidelityRow | None = None
        try:
            for problem in problems:
                self._run.note(problem)
            self._keep_logs()
            self._keep_decisions()
            self._keep_metrics()
            fidelity = self._fidelity()
        except StormbedError as error:
            failure = failure or error
        self._run.finish(failure, fidelity)
        return failure

    def _record_network(self) -> None:
        """Keep what the links are now, which may not be what the file declares, and what carries them."""
        rows = self._client.call("links")
        links = tuple(LinkRow(**{key: row[key] for key in LinkRow.model_fields}) for row in rows)
        changed = [
            f"{link.src}>{link.dst}"
            for link, declared in zip(links, self._run.manifest.links, strict=True)
            if link != declared
        ]
        version = run_command(["ovs-vsctl", "--version"], timeout=10).stdout.splitlines()[0].split()[-1]
        self._run.update(links=links, versions=self._run.manifest.versions | {"openvswitch": version})
        for limit in self._testbed.limits:
            self._run.note(limit)
        for part in ended(self._testbed.name):
            self._run.note(f"{part} of the testbed had ended before the run")
        if changed:
            self._run.note(f"not as the topology declares, changed since bring-up: {', '.join(changed)}")

    def _conduct(self, coordinator: CoordinatorClient) -> None:
        self._record_network()
        training = self._experiment.spec.training
        coordinator.open_job(
            {
                "job": self._job,
                "sites": {name: site.workers for name, site in self._experiment.topology.sites.items()},
                "chunk_elements": training.chunk_elements,
                "deadline_s": training.deadline_s,
            }
        )
        self._start_workers()
        self._await_workers(coordinator)
        self._changes.began_ns = self._links.began_ns
        with self._changes.over("run", "", self._experiment.spec.seed):
            for segment in self._experiment.turns:
                self._conduct_segment(coordinator, segment)
        self._changes.note_lateness()
        self._say("ending the workers")
        coordinator.close_job(self._job)
        self._run.events.write("job-closed")
        self._end_workers()

    def _end_workers(self) -> None:
        """Wait for the end of workers whose job is over."""
        for worker in self._workers.wait(END_GRACE_S):
            raise RunFailedError(
                f"worker {worker.name} did not end within {END_GRACE_S:g} s of the last segment"
            )
        if failures := self._workers.failures():
            raise RunFailedError(failures[0])
        self._run.events.write("workers-ended")

    def _start_workers(self) -> None:
        rows = self._run.manifest.workers
        module = worker_module(self._experiment)
        self._say(f"starting {len(rows)} workers ({module}) over SSH")
        self._workers.start(rows, module, self._environment, self._folder)
        self._run.events.write(
            "workers-started",
            module=module,
            workers=[{"worker": worker.name, "pid": worker.process.pid} for worker in self._workers.running],
        )

    def _await_workers(self, coordinator: CoordinatorClient) -> None:
        """Wait until all workers have loaded what they need and joined: no segment counts that time."""
        deadline = time.monotonic() + JOIN_DEADLINE_S
        pause = threading.Event()
        told = -1
        while True:
            self._check_alive()
            jobs = {job["job"]: job for job in coordinator.status()["jobs"]}
            job = jobs.get(self._job)
            if job is None or job["failure"] is not None:
                raise RunFailedError(f"the job stopped before it began: {job and job['failure']}")
            joined, workers = int(job["joined"]), int(job["workers"])
            if joined != told:
                told = joined
                self._say(f"{joined} of {workers} workers have joined")
            if joined == workers:
                self._run.events.write("workers-joined")
                return
            if time.monotonic() > deadline:
                raise DeadlineError(f"{workers - joined} of {workers} workers to join", JOIN_DEADLINE_S)
            pause.wait(JOIN_POLL_S)

    def _folder(self, row: WorkerRow) -> Path:
        return self._run.worker(row.site, row.worker)

    def _environment(self, row: WorkerRow) -> Mapping[str, str]:
        site = self._experiment.topology.index(row.site)
        where = meeting(site, self._port) if self._experiment.libraries else {}
        return {
            **where,
            **cpu_padding(self._testbed, row.site),
            "STORMBED_RUN_DIR": str(self._testbed.run_dir),
            "STORMBED_SITE": row.site,
            "STORMBED_JOB": self._job,
            "STORMBED_WORKER": str(row.worker),
            "STORMBED_OUT": str(self._folder(row)),
            "RANK": str(row.rank),
            "WORLD_SIZE": str(len(self._run.manifest.workers)),
            # Workers of many sites share few cores: more threads only fight for them.
            "OMP_NUM_THREADS": "1",
        }

    def _conduct_segment(self, coordinator: CoordinatorClient, segment: Segment) -> None:
        self._say(f"{segment.label}: {segment.iterations} iterations")
        self._links.begin(segment.label)
        self._run.begin_segment(segment.label, time.monotonic_ns())
        try:
            with self._changes.over("segment", segment.label, segment.seed):
                self._watch(coordinator, segment)
                self._links.read()
                self._run.events.write("segment-cost", segment=segment.label, cpu_s=self._links.cpu_s())
        except BaseException:
            self._links.begin("")
            self._run.end_segment(segment.label, time.monotonic_ns(), "failed")
            raise
        self._links.begin("")
        self._run.end_segment(segment.label, time.monotonic_ns(), "completed")
        self._changes.await_return(lambda: coordinator.status()["links_down"])

    def _segment_message(self, segment: Segment) -> dict[str, Any]:
        training = self._experiment.spec.training
        return {
            "label": segment.label,
            "scheduler": segment.scheduler,
            "iterations": segment.iterations,
            "model": training.model,
            "elements": segment.elements,
            "data": self._experiment.data,
            "batch": training.batch,
            "batches": segment.batches,
            "lr": training.lr,
            "optimizer": training.optimizer,
            "momentum": training.momentum,
            "compute": compute_message(training.compute),
            "seed": segment.seed,
            "eval_every": training.eval_every,
            "save_parameters": training.save_parameters,
            "timeout_s": training.deadline_s,
            "overlap": segment.overlap,
            "bucket_cap_mb": training.bucket_bytes / MIB if segment.overlap else None,
            "awareness": segment.awareness.model_dump(),
            "auxiliary": segment.auxiliary.model_dump(),
            "policy": segment.policy.model_dump(),
        }

    def _watch(self, coordinator: CoordinatorClient, segment: Segment) -> None:
        """Wait for the segment's end, a worker's death or an interrupt, whichever comes first."""
        follower = TraceFollower(self._folder(self._run.manifest.workers[0]) / "trace.jsonl", segment.label)
        with ThreadPoolExecutor(1, thread_name_prefix="segment") as pool:
            future = pool.submit(coordinator.run_segment, self._job, self._segment_message(segment))
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

    def _check_alive(self) -> None:
        ended = self._workers.ended()
        if ended:
            raise RunFailedError(describe_end(ended[0], self._workers.exit_code(ended[0])))
        if self._links.failure is not None:
            raise self._links.failure
        problem = self._links.problem
        if problem is not None:
            raise RunFailedError(f"the testbed {self._testbed.name} no longer answers: {problem}")

    def _abort(self, coordinator: CoordinatorClient, why: str) -> None:
        try:
            coordinator.abort(self._job, why)
        except StormbedError as error:
            # Whatever made the run fail is told already; without the coordinator the segment ends too.
            self._run.events.write("problem", text=f"the job could not be aborted: {error}")

    def _explain(self, error: BaseException) -> BaseException:
        """The error, or one that names the testbed or the worker whose end was behind it."""
        # Whatever was asked of it when it was gone fails in its own way, with "no testbed is up" for one.
        if isinstance(error, StormbedError) and has_ended(self._testbed.name):
            return self._testbed_ended()
        if not isinstance(error, RunFailedError | DeadlineError):
            return error
        pause = threading.Event()
        deadline = time.monotonic() + CAUSE_GRACE_S
        # The others end as soon as they hear of it, often before the end of the first one is seen here.
        while not self._workers.all_ended and time.monotonic() < deadline:
            pause.wait(POLL_S)
        # One that was being taken down may still have answered before.
        if self._workers.all_ended and has_ended(self._testbed.name):
            return self._testbed_ended()
        # Asked once: others may end while their exit codes are fetched.
        over = self._workers.ended()
        codes = {worker.name: self._workers.exit_code(worker) for worker in over}
        killed = [worker for worker in over if (codes[worker.name] or 0) > 128]
        named = [worker for worker in over if worker.name in error.message]
        culprits = killed or named or over[:1]
        words = [describe_end(worker, codes.get(worker.name)) for worker in culprits]
        told = [text for text in words if text not in error.message]
        if not told and isinstance(error, RunFailedError):
            return error
        return RunFailedError("; ".join([error.message, *told]), hint=error.hint)

    def _testbed_ended(self) -> RunFailedError:
        return RunFailedError(
            f"the testbed {self._testbed.name} ended during the run, with everything in it",
            hint="`testbed down` or a killed supervisor does that; bring it up again",
        )

    def _fidelity(self) -> FidelityRow:
        """The verdict on the network, and a note of what others did to it meanwhile."""
        interfered: tuple[str, ...] = ()
        if self._links.began_ns:
            events = list(read_events(self._testbed.run_dir / "events.jsonl"))
            began_ns, ended_ns, own = self._links.began_ns, self._links.ended_ns, self._experiment.changes
            interfered = interference(events, began_ns, ended_ns, own_changes=own)
            changes = changes_by_others(events, began_ns, ended_ns, own_changes=own)
            self._run.update(changed_by_hand=len(changes))
            self._run.merge_changes(
                [((at_ns - began_ns) / 1e9, self._segment_at(at_ns), links) for at_ns, links in changes]
            )
        for what in interfered:
            self._run.note(what)
        found = self._links.fidelity(self._testbed.fidelity, self._synchronisations(), interfered)
        return found.model_copy(update={"limits": self._testbed.limits})

    def _segment_at(self, at_ns: int) -> str:
        """The label of the segment that went on then; empty between two."""
        for segment in self._run.manifest.segments:
            began_ns, ended_ns = segment.started_ns, segment.finished_ns
            if began_ns is not None and began_ns <= at_ns and (ended_ns is None or at_ns <= ended_ns):
                return segment.label
        return ""

    def _synchronisations(self) -> list[tuple[int, int]]:
        """When gradients were under way, as the workers' traces tell."""
        found = read_run(self._run.path).iterations.values()
        return sorted((i.ready_ns, i.done_ns) for iterations in found for i in iterations if i.complete)

    def _keep_logs(self) -> None:
        """Copy the last part of every log of the testbed beside the run's own files."""
        source = self._testbed.run_dir
        for log in sorted([*source.glob("*.log"), *source.glob("sites/*/*.log"), source / "events.jsonl"]):
            name = "-".join(log.relative_to(source).parts).removeprefix("sites-")
            try:
                with log.open("rb") as file:
                    file.seek(max(0, log.stat().st_size - LOG_BYTES))
                    (self._run.logs / name).write_bytes(file.read())
            except OSError as error:
                self._run.note(f"{log} could not be kept: {error}")

    def _keep_decisions(self) -> None:
        """Take what the coordinator wrote of transfers that were decided one by one."""
        written = decision_path(self._testbed.run_dir, self._job)
        try:
            if written.exists():
                shutil.move(written, self._run.path / DECISIONS)
        except OSError as error:
            self._run.note(f"{written} could not be kept: {error}")

    def _keep_metrics(self) -> None:
        """Write what Prometheus has seen of this run into its directory."""
        try:
            with PrometheusClient(self._testbed.prometheus_url) as client:
                export_window(
                    client, self._run.manifest.started_s, time.time(), self._run.path, self._metric_selectors
                )
        except (StormbedError, OSError) as error:
            self._run.note(f"the metrics could not be kept: {error}")


def worker_module(experiment: LoadedExperiment) -> str:
    """The program of the workers: with torch where a model is trained, or where a library of torch's has a turn."""
    if not experiment.spec.training.numpy_only:
        return "agents.worker.train"
    return "agents.worker.tensors" if experiment.libraries else "agents.numpy_worker"


def compute_message(compute: Compute) -> str | dict[str, Any]:
    """A declared compute time as the workers read it: seconds, every site's own mean spelt out."""
    if compute.mean is None:
        return "real"
    sites = {site: {"mean_s": mean.seconds, "cv": compute.cv} for site, mean in compute.sites.items()}
    return {"mean_s": compute.mean.seconds, "cv": compute.cv, "sites": sites}


def _is_done(future: Future[Any], seconds: float) -> bool:
    try:
        future.exception(seconds)
    except TimeoutError:
        return False
    return True
