"""One turn of searches in the emulated world: all tuners at once under one policy."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.control import CoordinatorClient
from agents.search.base import StagePlan, TrialRun, Tuner
from testbed.experiments.on_testbed import POLL_S
from testbed.experiments.schema import Experiment
from testbed.experiments.search_check import names_of
from testbed.experiments.spec import Segment
from testbed.experiments.told import compute_message
from testbed.searches.coflows import Coflows
from testbed.searches.plan import (
    SearchPlan,
    TrialJob,
    ahead_of,
    alone_s,
    layers_of,
    make_search,
    needs_of,
    settings_of,
    trial_seed,
    tuner_seed,
)
from testbed.searches.records import SearchRecords, StageRow, TrialRow
from topologies.errors import RunFailedError, StormbedError

CHECKPOINTS = "checkpoints"
TAIL_BYTES = 16_384


@dataclass(frozen=True)
class TurnSetting:
    """What a turn is given.

    coordinator  of the jobs
    job_name     a trial's job as the coordinators know it
    trace        of rank 0 of a trial
    checkpoints  where states are kept that other trials go on from
    """

    segment: Segment
    spec: Experiment
    data: str
    coordinator: tuple[str, int]
    job_name: Callable[[TrialJob], str]
    trace: Callable[[TrialJob], Path]
    checkpoints: Path
    records: SearchRecords
    say: Callable[[str], None]


class Turn:
    """All tuners at once under one policy.

    Attributes:
        isolation: seconds that a trial's latest synchronisation needs alone, by the job's name.
    """

    def __init__(self, setting: TurnSetting, plan: SearchPlan, coflows: Coflows) -> None:
        self._set = setting
        self._plan = plan
        self._coflows = coflows
        self.isolation: dict[str, float] = {}
        self._failed = threading.Event()
        self._clients = threading.local()
        self._open: list[CoordinatorClient] = []
        self._lock = threading.Lock()

    def run(self, check: Callable[[], None]) -> None:
        """Until every search is done. RunFailedError with the first cause."""
        spec = self._set.spec
        with ThreadPoolExecutor(len(self._plan.jobs), thread_name_prefix="trial") as trials:
            tuners = ThreadPoolExecutor(len(spec.tuners), thread_name_prefix="tuner")
            running = [
                tuners.submit(self._search, number, name, trials) for number, name in enumerate(names_of(spec))
            ]
            pause = threading.Event()
            try:
                while not all(future.done() for future in running):
                    if self._failed.is_set():
                        break
                    check()
                    pause.wait(POLL_S)
            except BaseException as error:
                self._stop(str(error) or type(error).__name__)
                raise
            finally:
                tuners.shutdown()
                for client in self._open:
                    client.close()
            for future in running:
                future.result()

    def _search(self, number: int, name: str, trials: ThreadPoolExecutor) -> None:
        """One tuner from its first stage to its last."""
        try:
            entry = self._set.spec.tuners[number]
            seed = tuner_seed(self._set.segment, entry, number)
            search = make_search(entry, seed)
            reports: queue.Queue[tuple[StagePlan, TrialRow | BaseException]] = queue.Queue()
            stages: dict[int, _Stage] = {}

            def launch(stage: StagePlan) -> None:
                stages[stage.id] = self._begin_stage(name, search, stage)
                for run in stage.runs:
                    trials.submit(self._try, name, stage, run, seed, reports)

            for stage in search.start().stages:
                launch(stage)
            while not search.done:
                stage, row = reports.get()
                if isinstance(row, BaseException):
                    raise row
                self._set.records.add([row])
                begun = stages[stage.id]
                begun.end_s = max(begun.end_s, row.end_s)
                step = search.report(stage.id, row.trial, row.score)
                for ended in step.ended:
                    self._set.records.add([stages.pop(ended).row()])
                for following in step.stages:
                    launch(following)
            best = search.best
            if best is not None:
                self._set.say(f"{self._set.segment.label}: {name}: best loss {best.score:.4f}, trial {best.trial}")
        except BaseException as error:
            self._stop(str(error))
            raise

    def _begin_stage(self, tuner: str, search: Tuner, stage: StagePlan) -> _Stage:
        setting = self._set
        needs = []
        for run in stage.runs:
            job = self._plan.jobs[tuner, run.trial]
            needs.append(needs_of(job, setting.spec, run, setting.job_name(job)))
            self.isolation[job.name] = max(needs[-1].loads.values(), default=0.0)
        begun = _Stage(setting.segment.label, tuner, stage, time.monotonic(), alone_s(needs))
        self._coflows.stage(f"{tuner}/{stage.id}", needs, *ahead_of(needs, search, stage.id))
        return begun

    def _try(
        self,
        tuner: str,
        stage: StagePlan,
        run: TrialRun,
        seed: int,
        reports: queue.Queue[tuple[StagePlan, TrialRow | BaseException]],
    ) -> None:
        try:
            reports.put((stage, self._train(tuner, stage, run, seed)))
        except BaseException as error:
            reports.put((stage, error))

    def _train(self, tuner: str, stage: StagePlan, run: TrialRun, seed: int) -> TrialRow:
        """One trial to its boundary, and its score."""
        setting = self._set
        job = self._plan.jobs[tuner, run.trial]
        label = f"{setting.segment.label}/{tuner}/{stage.id}/{run.trial}"
        start = time.monotonic()
        self._client().run_segment(setting.job_name(job), self._message(tuner, stage, run, seed, label))
        self._coflows.job_ended(setting.job_name(job))
        record = last_record(setting.trace(job), label)
        score = record.get("score")
        return TrialRow.of(
            setting.segment.label,
            tuner,
            stage,
            run,
            sites=self._plan.sites(job),
            start_s=start,
            end_s=time.monotonic(),
            score=None if score is None else float(score),
        )

    def _message(self, tuner: str, stage: StagePlan, run: TrialRun, seed: int, label: str) -> dict[str, Any]:
        training = self._set.spec.training
        settings = settings_of(self._set.spec, run.parameters)
        return {
            "label": label,
            "scheduler": self._set.spec.schedulers[0].scheduler,
            "iterations": run.iterations,
            "start": run.start,
            "layers": layers_of(settings),
            **settings,
            "data": self._set.data,
            "seed": trial_seed(seed, run.trial),
            "fresh": run.source is None,
            "load": None if run.source in (None, run.trial) else str(self._state(tuner, run.source, run.start)),
            "save": str(self._state(tuner, run.trial, run.end)) if self._copies(tuner) else None,
            "compute": compute_message(training.compute),
            "timeout_s": training.deadline_s,
        }

    def _copies(self, tuner: str) -> bool:
        """Whether trials go on from others' states."""
        return bool(self._set.spec.tuners[names_of(self._set.spec).index(tuner)].kind == "pbt")

    def _state(self, tuner: str, trial: int, iteration: int) -> Path:
        self._set.checkpoints.mkdir(exist_ok=True)
        label = self._set.segment.label.replace("#", "-")
        return self._set.checkpoints / f"{label}-{tuner}-{trial}-{iteration}.npz"

    def _client(self) -> CoordinatorClient:
        """A connection of this thread's own, because a segment holds it until it ends."""
        client: CoordinatorClient | None = getattr(self._clients, "client", None)
        if client is None:
            client = self._clients.client = CoordinatorClient(*self._set.coordinator)
            with self._lock:
                self._open.append(client)
        return client

    def _stop(self, why: str) -> None:
        """End all trials; the first cause is told."""
        with self._lock:
            if self._failed.is_set():
                return
            self._failed.set()
        try:
            with CoordinatorClient(*self._set.coordinator) as client:
                names = {self._set.job_name(job) for job in self._plan.jobs.values()}
                for job in client.status()["jobs"]:
                    if job["job"] in names and job["failure"] is None:
                        client.abort(job["job"], why)
        except StormbedError:
            pass  # without the coordinator they end too


class _Stage:
    """A stage under way."""

    def __init__(self, segment: str, tuner: str, plan: StagePlan, start_s: float, alone: float) -> None:
        self._segment, self._tuner, self._plan = segment, tuner, plan
        self._start_s, self._alone_s = start_s, alone
        self.end_s = start_s

    def row(self) -> StageRow:
        return StageRow.of(
            self._segment, self._tuner, self._plan, self._start_s, self.end_s, self._alone_s
        )


def last_record(trace: Path, label: str) -> dict[str, Any]:
    """The last record of a segment in a worker's trace, which is written before the segment ends."""
    try:
        with trace.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError as error:
        raise RunFailedError(f"the trace of {label} cannot be read: {error}") from error
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("segment") == label:
            return record
    raise RunFailedError(f"{label} has left no record in {trace}")
