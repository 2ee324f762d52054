"""Searches in the emulated world: real trials over a standing testbed, a coflow coordinator beside them.

Every site has one process that holds the workers of all its trials (`agents.trials`); a trial is a job, opened
once and used in every turn. In a turn all tuners run at once: a stage is registered with the coflow coordinator,
its trials run as segments of their jobs, and their scores decide the next stage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agents.coflow_control import CoflowProcess
from agents.control import CoordinatorClient
from agents.trials import DATA_VARIABLE, JOBS_VARIABLE
from testbed.emulation.rundir import TestbedInfo
from testbed.experiments.manifest import TRACE, WorkerRow
from testbed.experiments.on_testbed import RunOnTestbed, Say, Windows
from testbed.experiments.rundir import RunDirectory
from testbed.experiments.spec import LoadedExperiment, Segment
from testbed.experiments.told import job_message, worker_environment
from testbed.searches.coflows import Coflows
from testbed.searches.plan import SearchPlan, TrialJob, ordering_of, plan_searches
from testbed.searches.records import CoflowRow, SearchRecords
from testbed.searches.turn import CHECKPOINTS, Turn, TurnSetting

CLOSE_AT_ONCE = 16


class EmulatedSearch(RunOnTestbed):
    """Runs the searches of one experiment; see `RunOnTestbed` for the arguments and what is left behind.

    Of what each job shows only its level is kept: histograms of dozens of jobs would be most of the run directory,
    and `coflows.csv` has every synchronisation.
    """

    _metric_selectors = ('{__name__=~"stormbed_.+",run=""}', "stormbed_agent_coflow_level", "up")

    def __init__(
        self, experiment: LoadedExperiment, testbed: TestbedInfo, run: RunDirectory, say: Say
    ) -> None:
        super().__init__(experiment, testbed, run, say)
        self._syncs: Windows = []

    def _conduct(self, coordinator: CoordinatorClient) -> None:
        self._plan: SearchPlan = plan_searches(self._experiment)
        self._records = SearchRecords(self._run.path)
        self._run.update(workers=self._plan.workers(self._run.manifest.workers))
        self._open_jobs(coordinator)
        trials, sites = len(self._plan.jobs), len(self._run.manifest.workers)
        module = "agents.worker.trials" if self._experiment.spec.trainer == "torch" else "agents.numpy_trainer"
        self._start_workers(module, f"the workers of {trials} trials at {sites} sites", self._environment)
        names = [self._job_name(job) for job in self._plan.jobs.values()]
        wanted = sum(len(job.members) for job in self._plan.jobs.values())
        self._await_workers(coordinator, names, wanted, " of trials")
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
        for job in self._plan.jobs.values():
            sites = dict.fromkeys(self._plan.sites(job), 1)
            coordinator.open_job(job_message(self._job_name(job), sites, self._experiment.spec.training))

    def _environment(self, row: WorkerRow) -> Mapping[str, str]:
        site = self._experiment.topology.index(row.site)
        jobs = [
            (self._job_name(job), 0, str(self._folder(row) / job.name))
            for job in self._plan.jobs.values()
            if site in job.members
        ]
        return {
            **worker_environment(self._testbed, row),
            JOBS_VARIABLE: json.dumps(jobs),
            DATA_VARIABLE: self._experiment.data,
            "OPENBLAS_NUM_THREADS": "1",
        }

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
        with self._during(segment.label):
            turn = Turn(self._setting_of(segment), self._plan, coflows)
            turn.run(self._check_alive)
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

    def _synchronisations(self) -> Windows:
        return sorted(self._syncs)
