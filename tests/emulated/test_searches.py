"""Searches on a real WAN: classes on the wire, a whole experiment, a coflow coordinator that dies."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.coflow.coordinator import JobNeeds
from agents.coflow_control import CoflowClient, CoflowProcess
from agents.control import CoordinatorClient
from agents.local import LocalClient
from testbed.emulation.waiting import wait_for
from testbed.events import read_events
from testbed.experiments.manifest import read_manifest
from testbed.experiments.run import run_experiment
from testbed.experiments.spec import open_experiment
from testbed.report.measurements import read_run
from testbed.report.searches import read_searches
from testbed.report.summary import summarise_run
from testbed.telemetry.export import CSV_FILE, open_packed
from tests.emulated.conftest import Bring, Standing
from topologies.addressing import AGENT_METRICS_PORT
from topologies.errors import RunFailedError, StormbedError
from topologies.load import load_topology

pytestmark = pytest.mark.emulated


@pytest.fixture(scope="module")
def standing(bring: Bring) -> Standing:
    """Three sites, links of 10 Mbit/s, 10 ms one way: the network of the shipped experiment."""
    return bring(load_topology("triangle").scaled(0.1))


def metric(standing: Standing, site: str, name: str) -> dict[str, float]:
    """A metric of a site's agent, by its only label."""
    found = re.findall(rf'^{name}\{{\w+="([^"]*)"\}} (\S+)$', scrape(standing, site), re.M)
    return {label: float(value) for label, value in found}


def scrape(standing: Standing, site: str) -> str:
    """All metrics of a site's agent."""
    url = f"http://{standing.info.sites[site].mgmt_ip}:{AGENT_METRICS_PORT}/metrics"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=30) as answer:
        return str(answer.read().decode())


class Rivals:
    """Two jobs between dc1 and dc2 that always have more to send than the link carries."""

    ELEMENTS = 1_500_000

    def __init__(self, standing: Standing, log: Path) -> None:
        self.standing = standing
        gateway = standing.info.management.gateway
        self.process = CoflowProcess(gateway, len(standing.info.sites), log)
        self.coflows: CoflowClient = self.process.client()
        self.runner = CoordinatorClient(*standing.info.coordinator)
        self.runner.follow_coflow(self.process.address)
        self.threads: list[threading.Thread] = []

    def start(self, enforcement: str) -> None:
        self.coflows.policy("beamer", enforcement)  # type: ignore[arg-type]
        self.stage("first", 5)
        self.stage("second", 50)
        for job in ("first", "second"):
            spec = {"job": job, "sites": {"dc1": 1, "dc2": 1}, "scheduler": "star", "chunk_elements": 4000}
            self.runner.open_job(spec)
            for site in ("dc1", "dc2"):
                thread = threading.Thread(target=self.synchronise, args=(job, site), daemon=True)
                thread.start()
                self.threads.append(thread)

    def stage(self, job: str, load: float) -> None:
        """The whole of a job's work, as seconds on the link: the least goes first."""
        needs = JobNeeds(job, 1000, {0: load / 1000, 1: load / 1000}, 2 * 4 * self.ELEMENTS, 2)
        self.coflows.stage(f"{job} {load}", [needs])

    def synchronise(self, job: str, site: str) -> None:
        try:
            with LocalClient.connect(self.standing.info.run_dir, site, job, 0) as client:
                values = client.empty(self.ELEMENTS)
                while True:
                    values[:] = 1
                    client.allreduce(values).wait()
        except StormbedError:
            pass  # that is how it ends

    def results(self) -> dict[str, float]:
        """Bytes of results that have reached dc2, by job."""
        return metric(self.standing, "dc2", "stormbed_agent_result_bytes_total")

    def share(self, job: str, seconds: float) -> float:
        """A job's part of what arrives within so many seconds; 0 where the link was not full, so that it says
        nothing."""
        before = self.results()
        time.sleep(seconds)  # the window that is measured
        gained = {name: value - before.get(name, 0.0) for name, value in self.results().items()}
        full = sum(gained.values()) > 0.5 * 10e6 / 8 * seconds
        return gained[job] / sum(gained.values()) if full else 0.0

    def class_7_bytes(self) -> int:
        links = {(e["src"], e["dst"]): e for e in self.standing.client.call("sample")["links"]}
        return int(links["dc1", "dc2"]["class_bytes"][7])

    def end(self) -> None:
        for job in ("first", "second"):
            try:
                self.runner.abort(job, "the test is over")
            except StormbedError:
                pass  # it was killed already
        self.runner.close()
        for thread in self.threads:
            thread.join(10)
        self.coflows.close()
        self.process.end()


@pytest.fixture
def rivals(standing: Standing, tmp_path: Path) -> Iterator[Rivals]:
    made = Rivals(standing, tmp_path / "coflow.log")
    yield made
    made.end()


@pytest.mark.parametrize("enforcement", ["gate", "dscp"])
def test_the_first_in_line_gets_the_link_and_a_raised_one_takes_over_within_a_second(
    rivals: Rivals, enforcement: str
) -> None:
    before = rivals.class_7_bytes()
    rivals.start(enforcement)
    # Both have results, so both have synchronisations under way.
    wait_for(lambda: rivals.results().get("first", 0) > 1e6, "the first job to synchronise", 20)
    # Of several windows: in one in which the first has just ended a synchronisation, and a busy machine takes its
    # time to begin the next one, the other has the link to itself.
    wait_for(lambda: rivals.share("first", 1.5) >= 0.95, "the first job to have the link", 15)
    if enforcement == "dscp":
        assert rivals.class_7_bytes() - before > 1e6, "level 7 is class 7 on the wire"
    rivals.coflows.job_ended("first")
    rivals.stage("first", 500)
    # Within a second, and the window that shows it; a busy machine may need another one.
    wait_for(lambda: rivals.share("second", 1.5) >= 0.9, "the raised job to take over", 3.5)


def sent_bytes(standing: Standing) -> float:
    """What dc2's agent has handed to the kernel."""
    found = re.findall(r"^stormbed_agent_sent_bytes_total\{.*\} (\S+)$", scrape(standing, "dc2"), re.M)
    return sum(float(value) for value in found)


def test_a_killed_job_leaves_nothing_in_the_queues(rivals: Rivals) -> None:
    rivals.start("both")

    def waiting() -> float:
        return sum(metric(rivals.standing, "dc2", "stormbed_agent_queue_chunks").values())

    chunks = rivals.ELEMENTS / 4000
    wait_for(lambda: waiting() > 1.2 * chunks, "both jobs to have chunks in the queue", 20)
    sent, queued = sent_bytes(rivals.standing), waiting()
    rivals.runner.abort("second", "killed")
    wait_for(lambda: waiting() <= chunks, "the killed job's chunks to be gone", 10)
    # Dropped, not sent: the link is slow, and has taken but a part of them meanwhile.
    assert (sent_bytes(rivals.standing) - sent) / (4 * 4000) < (queued - waiting()) / 2
    wait_for(lambda: rivals.share("first", 1.0) == 1.0, "all that arrives to be of the job that goes on", 10)


def test_the_shipped_searches_run_and_outlive_their_coordinator(standing: Standing, tmp_path: Path) -> None:
    """The coflow coordinator is killed in the first turn: it ends all the same, and the next one has a new one."""
    experiment = open_experiment("searches")
    first, second = (segment.label for segment in experiment.turns)
    directories: list[Path] = []
    killer = threading.Thread(target=_kill_the_coordinator, args=(directories, first), daemon=True)
    killer.start()
    path = run_experiment(experiment, out=tmp_path, testbed=standing.name, on_directory=directories.append)
    killer.join(1)
    manifest = read_manifest(path)
    assert manifest.status == "completed"
    assert any(f"coordinator ended during {first}" in note for note in manifest.notes)
    problems: list[str] = []
    found = read_searches(path, problems)
    assert problems == []
    for segment in (first, second):
        stages = [row for row in found.stages if row.segment == segment]
        assert sorted((row.tuner, row.rung, row.trials) for row in stages) == [
            (tuner, rung, trials) for tuner in ("tuner1", "tuner2") for rung, trials in ((0, 4), (1, 2))
        ]
        assert all(row.sct_s >= 0.9 * row.alone_s for row in stages)
    # 2 tuners, 4 trials of 2 iterations and 2 of 2 more, each a coflow with its chunks timed at the gate.
    coflows = [row for row in found.coflows if row.segment == second]
    assert len(coflows) == 2 * (4 * 2 + 2 * 2) and all(row.chunks > 0 and row.cct_s > 0 for row in coflows)
    result = summarise_run(read_run(path))
    assert [row.policy for row in result.policies] == ["fair", "beamer"]
    assert all(row.busiest is not None and row.stage is not None for row in result.policies)
    kept = open_packed(path / CSV_FILE, "rt").read()
    assert "stormbed_agent_coflow_level" in kept and "stormbed_agent_gate_wait_seconds_total" in kept
    assert "stormbed_agent_synchronisation_seconds" not in kept, "histograms of every trial are not"
    simulated = run_experiment(open_experiment("searches", {"world": "simulated"}), out=tmp_path)
    assert _scores(path) == pytest.approx(_scores(simulated), rel=1e-3), "the same training in both worlds"


def test_a_killed_worker_ends_the_run_by_its_name_and_nothing_hangs(standing: Standing, tmp_path: Path) -> None:
    experiment = open_experiment("searches", {"repeats": 50})
    directories: list[Path] = []

    def kill_a_worker() -> None:
        wait_for(lambda: _event(directories, "segment-start"), "the first turn", 60)
        found = standing.client.call("processes", site="dc2")
        pid = next(p["pid"] for p in found if p["argv"][1:] == ["-u", "-m", "agents.numpy_trainer"])
        standing.client.call("kill", site="dc2", pid=pid, signal_name="SIGKILL")

    killer = threading.Thread(target=kill_a_worker, daemon=True)
    killer.start()
    with pytest.raises(RunFailedError, match="worker dc2-0 was ended by signal 9"):
        run_experiment(experiment, out=tmp_path, testbed=standing.name, on_directory=directories.append)
    killer.join(1)
    assert read_manifest(directories[0]).status == "failed"
    with CoordinatorClient(*standing.info.coordinator) as coordinator:
        wait_for(lambda: not coordinator.status()["jobs"], "the trials' jobs to be gone", 30)


def _event(directories: list[Path], kind: str) -> dict[str, Any] | None:
    events = read_events(directories[0] / "events.jsonl") if directories else ()
    return next((event for event in events if event["kind"] == kind), None)


def _scores(path: Path) -> dict[tuple[str, str, int, int], float]:
    rows = read_searches(path, []).trials
    return {(row.segment, row.tuner, row.stage, row.trial): row.score or np.nan for row in rows}


def _kill_the_coordinator(directories: list[Path], segment: str) -> None:
    def pid() -> int | None:
        events = list(read_events(directories[0] / "events.jsonl")) if directories else []
        if not any(e["kind"] == "segment-start" and e["segment"] == segment for e in events):
            return None
        return next((int(e["pid"]) for e in events if e["kind"] == "coflow-coordinator-started"), None)

    found = wait_for(pid, "the coflow coordinator to start", 60)
    os.kill(found, signal.SIGKILL)
