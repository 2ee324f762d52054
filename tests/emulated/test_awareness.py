"""Measuring links while training on a real testbed, and new plans when they change."""

from __future__ import annotations

import statistics
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agents.control import CoordinatorClient
from testbed.api import Testbed
from testbed.dashboard.live import LiveSource
from testbed.emulation.waiting import wait_for
from topologies import addressing

pytestmark = pytest.mark.emulated

RATE = 40e6
NETWORK = {
    "name": "three",
    "defaults": {"rate": "40mbit", "delay": "2ms"},
    "sites": {"dc1": {}, "dc2": {}, "dc3": {}},
    "links": [
        {"endpoints": ["dc1", "dc2"]},
        {"endpoints": ["dc2", "dc3"]},
        {"endpoints": ["dc1", "dc3"]},
    ],
}


class Training:
    """Numpy workers, one a site, that compare every sum; use as a context manager.

    Args:
        standing: the testbed.
        out: where the workers write.
    """

    def __init__(self, standing: Any, out: Path, **job: Any) -> None:
        self.standing = standing
        self.names = list(standing.info.sites)
        self.client = CoordinatorClient(*standing.info.coordinator)
        self.pids: dict[str, int] = {}
        try:
            self._begin(out, job)
        except BaseException:
            self.client.close()  # without its runner the job ends, and its workers with it
            raise
        self._pool = ThreadPoolExecutor(1)

    def _begin(self, out: Path, job: dict[str, Any]) -> None:
        standing = self.standing
        self.client.open_job(
            {"job": "j", "sites": dict.fromkeys(self.names, 1), "chunk_elements": 25_000, **job}
        )
        for rank, site in enumerate(self.names):
            folder = out / site
            folder.mkdir(parents=True)
            environment = {
                "STORMBED_RUN_DIR": str(standing.info.run_dir),
                "STORMBED_SITE": site,
                "STORMBED_JOB": "j",
                "STORMBED_WORKER": "0",
                "STORMBED_OUT": str(folder),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(self.names)),
                "OMP_NUM_THREADS": "1",
            }
            started = standing.client.call(
                "spawn",
                site=site,
                argv=[sys.executable, "-m", "agents.numpy_worker"],
                env=environment,
                log=str(folder / "worker.log"),
            )
            self.pids[site] = started["pid"]

    def start(self, **segment: Any) -> Future[dict[str, Any]]:
        """Begin a segment; its end gives the runner's answer, or why a sum was wrong."""
        fields = {"scheduler": "netstorm", "elements": 1_000_000, **segment}
        return self._pool.submit(self.client.run_segment, "j", fields, timeout=90)

    def status(self) -> dict[str, Any]:
        (job,) = self.client.status()["jobs"]
        return job

    def until(self, condition: Callable[[dict[str, Any]], Any], what: str, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            status = self.status()
            if condition(status):
                return status
            assert status["failure"] is None
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}: {status}"
            time.sleep(0.1)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.client.close_job("j")
            wait_for(lambda: None not in self._ends().values(), "the workers to end", 30)
        else:
            self.client.abort("j", "the test has failed")
        self._pool.shutdown()
        self.client.close()

    def _ends(self) -> dict[str, int | None]:
        """Of the workers' processes, by site; None for one that runs."""
        found = {}
        for site, pid in self.pids.items():
            (row,) = [p for p in self.standing.client.call("processes", site=site) if p["pid"] == pid]
            found[site] = row["status"]
        return found


@pytest.fixture(scope="module")
def testbed(bring: Any) -> Any:
    return bring(NETWORK)


def agent_metric(testbed: Any, site: str, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """The samples of one metric of a site's agent, by their labels."""
    address = f"{testbed.info.sites[site].mgmt_ip}:{addressing.AGENT_METRICS_PORT}"
    # Whatever proxies the machine uses are not for this network.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


def assert_sums_were_right(training: Training, out: Path) -> None:
    """The workers compare every sum: one that is wrong ends its segment with the place."""
    assert set(training._ends().values()) == {0}
    for site in training.names:
        assert (out / site / "worker.log").read_text() == ""


def carried_bytes(testbed: Any, src: str, dst: str) -> int:
    (row,) = [row for row in testbed.client.call("links") if (row["src"], row["dst"]) == (src, dst)]
    return int(row["counters"]["bytes"])


def test_chunks_take_the_network_s_other_path_when_their_own_is_busy(testbed: Any, tmp_path: Path) -> None:
    before = carried_bytes(testbed, "dc2", "dc3")
    with Training(testbed, tmp_path) as training:
        star = {"name": "star", "options": {"server": "dc1"}}
        page = LiveSource(Testbed(testbed.info))
        turn = training.start(
            label="detours", scheduler=star, iterations=20, elements=500_000, auxiliary="threshold"
        )
        seen = [page.read()]
        while not wait([turn], timeout=0.5).done:
            seen.append(page.read())
        turn.result(60)
        page.close()
        sent = agent_metric(testbed, "dc2", "stormbed_agent_path_chunks_total")
        detours = {dict(labels)["peer"]: n for labels, n in sent.items() if dict(labels)["auxiliary"] == "1"}
        assert detours.get("dc1", 0) >= 5, sent
        received = agent_metric(testbed, "dc1", "stormbed_agent_auxiliary_received_chunks_total")
        assert sum(received.values()) >= detours["dc1"]
    # The page of the testbed showed it meanwhile, by the sites that the chunks visit, and the plan in use.
    flows = [flow for update in seen for record in update["auxiliary"] for flow in record["flows"]]
    dc1, dc2, dc3 = range(3)
    assert flows and all(flow["sites"] in ([dc2, dc3, dc1], [dc3, dc2, dc1]) for flow in flows)
    assert all(flow["chunks_per_s"] > 0 for flow in flows)
    plans = [plan for update in seen for plan in update["plans"] if plan["roots"]]
    assert plans and all([root["site"] for root in plan["roots"]] == ["dc1"] for plan in plans)
    # A coordinator that takes more than a second to answer is asked again; until then the page plans by itself.
    assert any("as the coordinator issued it" in plan["source"] for plan in plans)
    # A star at dc1 has no hop between dc2 and dc3: what this link carried are detours, which no site relays.
    assert carried_bytes(testbed, "dc2", "dc3") - before > 0.8 * detours["dc1"] * 4 * 25_000
    assert_sums_were_right(training, tmp_path)


def test_a_link_that_slows_down_to_a_quarter_is_noticed_and_planned_around(
    testbed: Any, tmp_path: Path
) -> None:
    awareness = {"estimator": "unbiased", "check_period_s": 0.5, "probe_idle_s": 2.0}
    with Training(testbed, tmp_path) as training:
        segment = training.start(label="change", iterations=60, elements=500_000, awareness=awareness)

        def measured(status: dict[str, Any], link: str) -> float | None:
            found = (status["network"] or {"measured": {}})["measured"].get(link)
            return None if found is None else found["rate_bps"]

        training.until(
            lambda s: all(measured(s, link) for link in ("dc1>dc2", "dc2>dc1", "dc2>dc3")), "estimates", 40
        )
        # One estimate is of four messages in about 80 ms: it is wrong by as much as a busy machine noticed the
        # last of one stretch late. What must be right is the middle of several.
        both = ("dc1>dc2", "dc2>dc1")
        seen: dict[str, set[float]] = {link: set() for link in both}

        def several(status: dict[str, Any]) -> bool:
            for link in both:
                seen[link].add(measured(status, link) or 0.0)
            return all(len(estimates) >= 5 for estimates in seen.values())

        training.until(several, "several estimates", 30)
        for link in both:
            assert 0.6 * RATE < statistics.median(seen[link]) < 1.1 * RATE
        changed_ns = time.monotonic_ns()
        testbed.client.call("link_set", src="dc1", dst="dc2", both=True, rate="10mbit")
        training.until(
            lambda s: any(entry["monotonic_ns"] > changed_ns for entry in s["policies"]), "a new policy", 30
        )

        def both_are_noticed(status: dict[str, Any]) -> bool:
            return all((measured(status, link) or RATE) < 0.5 * RATE for link in both)

        # A plan may be made for one of the directions before the other one has carried enough to be judged.
        after = training.until(both_are_noticed, "both directions to be known as slow", 30)
        assert after["network"]["replans"] >= 1
        done = segment.result(90)
        in_force = min(e["monotonic_ns"] for e in done["policies"] if e["monotonic_ns"] > changed_ns)
        # By the agents' own clock. A check every half second and estimates over a few messages make it about three
        # seconds on a machine with time to spare.
        assert (in_force - changed_ns) / 1e9 < 15
        assert 0 < done["network"]["report_bytes"] < 100_000
    assert_sums_were_right(training, tmp_path)
