"""Running something on a standing testbed: workers over SSH, jobs at the coordinator, links watched.

The frame that runs of segments (`emulated`) and runs of searches (`testbed.searches.emulated`) share.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from agents.control import CoordinatorClient
from testbed.client import SupervisorClient
from testbed.emulation.rundir import TestbedInfo
from testbed.events import read_events
from testbed.experiments.causes import cause_of
from testbed.experiments.interference import changes_by_others, interference
from testbed.experiments.joining import await_joined
from testbed.experiments.kept import keep_decisions, keep_logs, keep_metrics, keep_network
from testbed.experiments.manifest import FidelityRow, WorkerRow
from testbed.experiments.recorder import LinkRecorder
from testbed.experiments.rundir import RunDirectory
from testbed.experiments.spec import LoadedExperiment
from testbed.experiments.workers import Workers, describe_end
from testbed.telemetry.export import DEFAULT_SELECTORS
from topologies.errors import RunFailedError, StormbedError

POLL_S = 0.1
"""How often somebody looks whether all still goes well."""
END_GRACE_S = 20.0

Say = Callable[[str], None]
Windows = list[tuple[int, int]]
"""When gradients were under way: from and to, on the monotonic clock in nanoseconds, in order."""


class RunOnTestbed(ABC):
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

    @abstractmethod
    def _conduct(self, coordinator: CoordinatorClient) -> None:
        """From the first job to the end of the last worker."""

    @abstractmethod
    def _synchronisations(self) -> Windows:
        """When gradients were under way."""

    def execute(self) -> None:
        """Run it. However it ends, nothing is left running and the run directory tells it.

        Raises:
            RunFailedError: a worker, an agent or the testbed failed; the message names which and why.
            KeyboardInterrupt: passed on once the workers have ended.
        """
        failure: BaseException | None = None
        try:
            with CoordinatorClient(*self._testbed.coordinator) as coordinator, self._links:
                keep_network(self._run, self._testbed, self._client)
                self._conduct(coordinator)
        except BaseException as error:
            failure = cause_of(error, self._workers, self._testbed.name)
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
            self._say("keeping logs and metrics")
            keep_logs(self._run, self._testbed)
            keep_decisions(self._run, self._testbed)
            keep_metrics(self._run, self._testbed, self._metric_selectors)
            fidelity = self._fidelity()
        except StormbedError as error:
            failure = failure or error
        self._run.finish(failure, fidelity)
        return failure

    # ---- workers

    def _start_workers(
        self, module: str, what: str, environment: Callable[[WorkerRow], Mapping[str, str]]
    ) -> None:
        """Start those of the manifest over SSH; `what` they are, for who looks on."""
        self._say(f"starting {what} ({module}) over SSH")
        self._workers.start(self._run.manifest.workers, module, environment, self._folder)
        self._run.events.write(
            "workers-started",
            module=module,
            workers=[{"worker": worker.name, "pid": worker.process.pid} for worker in self._workers.running],
        )

    def _folder(self, row: WorkerRow) -> Path:
        return self._run.worker(row.site, row.worker)

    def _await_workers(
        self, coordinator: CoordinatorClient, jobs: Collection[str], wanted: int, of: str = ""
    ) -> None:
        await_joined(coordinator, jobs, wanted, check=self._check_alive, say=self._say, of=of)
        self._run.events.write("workers-joined")

    def _check_alive(self) -> None:
        """Raise RunFailedError when a worker has ended, or the testbed answers no more."""
        ended = self._workers.ended()
        if ended:
            raise RunFailedError(describe_end(ended[0], self._workers.exit_code(ended[0])))
        if self._links.failure is not None:
            raise self._links.failure
        problem = self._links.problem
        if problem is not None:
            raise RunFailedError(f"the testbed {self._testbed.name} no longer answers: {problem}")

    def _end_workers(self) -> None:
        """Wait for the end of workers whose jobs are over."""
        for worker in self._workers.wait(END_GRACE_S):
            raise RunFailedError(
                f"worker {worker.name} did not end within {END_GRACE_S:g} s of the last segment"
            )
        if failures := self._workers.failures():
            raise RunFailedError(failures[0])
        self._run.events.write("workers-ended")

    # ---- segments

    @contextmanager
    def _during(self, label: str) -> Iterator[None]:
        """The block is the segment of this label: what links carry counts to it, and the run tells how it ended."""
        self._links.begin(label)
        self._run.begin_segment(label, time.monotonic_ns())
        try:
            yield
        except BaseException:
            self._links.begin("")
            self._run.end_segment(label, time.monotonic_ns(), "failed")
            raise
        self._links.begin("")
        self._run.end_segment(label, time.monotonic_ns(), "completed")

    # ---- the verdict

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
