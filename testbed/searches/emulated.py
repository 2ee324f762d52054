"""Searches in the emulated world: real trials over a standing testbed, a coflow coordinator beside them.

Every site has one process that holds the workers of all its trials (`agents.trials`); a trial is a job, opened
once and used in every turn. In a turn all tuners run at once: a stage is registered with the coflow coordinator,
its trials run as segments of their jobs, and their scores decide the next stage.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agents.coflow_control import CoflowProcess
from agents.control import CoordinatorClient
from agents.trials import DATA_VARIABLE, JOBS_VARIABLE
from testbed.experiments.emulated import JOIN_DEADLINE_S, JOIN_POLL_S, EmulatedRun
from testbed.experiments.manifest import TRACE, WorkerRow
from testbed.experiments.spec import Segment
from testbed.experiments.workers import cpu_padding
from testbed.searches.coflows import Coflows
from testbed.searches.plan import (
    SearchPlan,
    TrialJob,
    ordering_of,
    plan_searches,
)
from testbed.searches.records import CoflowRow, SearchRecords
from testbed.searches.turn import Turn, TurnSetting
from topologies.errors import DeadlineError, RunFailedError

CHECKPOINTS = "checkpoints"
CLOSE_AT_ONCE = 16
TAIL_BYTES = 16_384


class EmulatedSearch(EmulatedRun):
    """Runs the searches of one experiment; see `EmulatedRun` for the arguments and what is left behind.

    Of what each job shows only its level is kept: histograms of dozens of jobs would be most of the run directory,
    and `coflows.csv` has every synchronisation.
    """

    _metric_selectors = ('{__name__=~"stormbed_.+",run=""}', "stormbed_agent_coflow_level", "up")

    def _conduct(self, coordinator: CoordinatorClient) -> None:
        self._plan: SearchPlan = plan_searches(self._experiment)
        self._records = SearchRecords(self._run.path)
        self._syncs: list[tuple[int, int]] = []
        self._run.update(workers=self._plan.workers(self._run.manifest.workers))
        self._record_network()
        self._open_jobs(coordinator)
        self._start_trial_workers()
        self._await_trials(coordinator)
        with Coflows(self._start_coflow_process, coordinator.follow_coflow, self._run.note) as coflows:
            for segment in self._experiment.turns:
                self._conduct_turn(segment, coflows)
        self._say("ending the workers")
        self._close_jobs()
        self._end_workers()

    def _start_coflow_process(self) -> CoflowProcess:
        sites = len(self._experiment.topology.site_names)
        log = self._run.logs / "coflow-coordinator.log"
        process = CoflowProcess(self._testbed.management.gateway, sites, log)
        self._run.events.write("coflow-coordinator-started", pid=process.pid)
        return process

    def _job_name(self, job: TrialJob) -> str:
        return f"{self._job}/{job.name}"

    # ---- jobs and workers

    def _open_jobs(self, coordinator: CoordinatorClient) -> None:
        training, names = self._experiment.spec.training, self._experiment.topology.site_names
        for job in self._plan.jobs.values():
            coordinator.open_job(
                {
                    "job": self._job_name(job),
                    "sites": {names[site]: 1 for site in job.members},
                    "chunk_elements": training.chunk_elements,
                    "deadline_s": training.deadline_s,
                }
            )

    def _start_trial_workers(self) -> None:
        rows = self._run.manifest.workers
        torch = self._experiment.spec.trainer == "torch"
        module = "agents.worker.trials" if torch else "agents.numpy_trainer"
        self._say(f"starting the workers of {len(self._plan.jobs)} trials at {len(rows)} sites ({module}) over SSH")
        self._workers.start(rows, module, self._trial_environment, self._folder)
        self._run.events.write(
            "workers-started",
            module=module,
            workers=[{"worker": worker.name, "pid": worker.process.pid} for worker in self._workers.running],
        )

    def _trial_environment(self, row: WorkerRow) -> Mapping[str, str]:
        site = self._experiment.topology.index(row.site)
        jobs = [
            (self._job_name(job), 0, str(self._folder(row) / job.name))
            for job in self._plan.jobs.values()
            if site in job.members
        ]
        return {
            "STORMBED_RUN_DIR": str(self._testbed.run_dir),
            "STORMBED_SITE": row.site,
            JOBS_VARIABLE: json.dumps(jobs),
            DATA_VARIABLE: self._experiment.data,
            **cpu_padding(self._testbed, row.site),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def _await_trials(self, coordinator: CoordinatorClient) -> None:
        """Wait until every worker of every trial has joined."""
        deadline, pause = time.monotonic() + JOIN_DEADLINE_S, threading.Event()
        wanted = sum(len(job.members) for job in self._plan.jobs.values())
        told = -1
        while True:
            self._check_alive()
            own = [job for job in coordinator.status()["jobs"] if job["job"].startswith(f"{self._job}/")]
            stopped = next((job for job in own if job["failure"] is not None), None)
            if stopped is not None:
                raise RunFailedError(f"a trial stopped before it began: {stopped['failure']}")
            joined = sum(int(job["joined"]) for job in own)
            if joined != told:
                told = joined
                self._say(f"{joined} of {wanted} workers of trials have joined")
            if joined == wanted:
                self._run.events.write("workers-joined")
                return
            if time.monotonic() > deadline:
                raise DeadlineError(f"{wanted - joined} of {wanted} workers to join", JOIN_DEADLINE_S)
            pause.wait(JOIN_POLL_S)

    def _close_jobs(self) -> None:
        """Several at once: each waits for its workers to leave."""

        def close(job: TrialJob) -> None:
            with CoordinatorClient(*self._testbed.coordinator) as client:
                client.close_job(self._job_name(job))

        with ThreadPoolExecutor(CLOSE_AT_ONCE, thread_name_prefix="close") as pool:
            for done in [pool.submit(close, job) for job in self._plan.jobs.values()]:
                done.result()
        self._run.events.write("jobs-closed")

    # ---- a turn

    def _conduct_turn(self, segment: Segment, coflows: Coflows) -> None:
        spec = self._experiment.spec
        self._say(f"{segment.label}: {len(spec.tuners)} tuners")
        coflows.policy(segment.label, ordering_of(self._plan, spec, segment.shown), spec.enforcement)
        self._links.begin(segment.label)
        self._run.begin_segment(segment.label, time.monotonic_ns())
        try:
            turn = Turn(self._setting_of(segment), self._plan, coflows)
            turn.run(self._check_alive)
        except BaseException:
            self._links.begin("")
            self._run.end_segment(segment.label, time.monotonic_ns(), "failed")
            raise
        self._links.begin("")
        self._run.end_segment(segment.label, time.monotonic_ns(), "completed")
        self._keep_coflows(segment, coflows, turn)

    def _setting_of(self, segment: Segment) -> TurnSetting:
        folders = {job.name: self._folder_of(job) for job in self._plan.jobs.values()}
        return TurnSetting(
            segment=segment,
            spec=self._experiment.spec,
            data=self._experiment.data,
            coordinator=self._testbed.coordinator,
            job_name=self._job_name,
            trace=lambda job: folders[job.name] / TRACE,
            checkpoints=self._run.path / CHECKPOINTS,
            records=self._records,
            say=self._say,
        )

    def _folder_of(self, job: TrialJob) -> Path:
        """Where rank 0 of a trial writes: the worker at its first site."""
        name = self._experiment.topology.site_names[job.members[0]]
        return self._run.path / next(r for r in self._run.manifest.workers if r.site == name).directory / job.name

    def _keep_coflows(self, segment: Segment, coflows: Coflows, turn: Turn) -> None:
        rows = []
        for coflow in coflows.coflows():
            job = coflow.job.removeprefix(f"{self._job}/")
            rows.append(
                CoflowRow(
                    segment.label,
                    job,
                    coflow.seq,
                    coflow.arrival,
                    coflow.finish,
                    turn.isolation.get(job, 0.0),
                    coflow.gate_wait_s / coflow.chunks if coflow.chunks else 0.0,
                    coflow.chunks,
                )
            )
            self._syncs.append((round(coflow.arrival * 1e9), round(coflow.finish * 1e9)))
        self._records.add(rows)

    def _synchronisations(self) -> list[tuple[int, int]]:
        return sorted(self._syncs)
