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
        self.client.open_job(
            {"job": "j", "sites": dict.fromkeys(self.names, 1), "chunk_elements": 25_000, **job}
        )
        self.pids: dict[str, int] = {}
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
        self._pool = ThreadPoolExecutor(1)

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
        else:
            self.client.abort("j", "the test has failed")
        self._pool.shutdown()
        self.client.close()


@pytest.fixture(scope="module")
def testbed(bring: Any) -> Any:
    return bring(NETWORK)


def agent_metric(testbed: Any, site: str, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """The samples of one metric of a site's agent, by their labels."""
    address = f"{testbed.info.sites[site].mgmt_ip}:{addressing.AGENT_METRICS_PORT}"
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


def assert_sums_were_right(training: Training, out: Path) -> None:
    """The workers compare every sum: one that is wrong ends its segment with the place."""
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
    plan = next(plan for update in seen for plan in update["plans"] if plan["roots"])
    assert [root["site"] for root in plan["roots"]] == ["dc1"]
    assert "as the coordinator issued it" in plan["source"]
    # A star at dc1 has no hop between dc2 and dc3: what this link carried are detours, which no site relays.
    assert carried_bytes(testbed, "dc2", "dc3") - before > 0.8 * detours["dc1"] * 4 * 25_000
    assert_sums_were_right(training, tmp_path)


def test_a_link_that_slows_down_to_a_quarter_is_noticed_and_planned_around(
    testbed: Any, tmp_path: Path
) -> None:
    awareness = {"estimator": "unbiased", "check_period_s": 0.5, "probe_idle_s": 2.0}
    with Training(testbed, tmp_path) as training:
        segment = training.start(label="change", iterations=50, elements=500_000, awareness=awareness)

        def measured(status: dict[str, Any], link: str) -> float | None:
            found = (status["network"] or {"measured": {}})["measured"].get(link)
            return None if found is None else found["rate_bps"]

        training.until(
            lambda s: all(measured(s, link) for link in ("dc1>dc2", "dc2>dc1", "dc2>dc3")), "estimates", 40
        )
        # One estimate is of four messages in about 80 ms: it is wrong by as much as a busy machine noticed the
        # last of one stretch late. What must be right is the middle of several.
        seen: list[dict[str, Any]] = []
        training.until(lambda s: seen.append(s) or len(seen) >= 15, "several estimates", 30)
        for link in ("dc1>dc2", "dc2>dc1"):
            assert 0.6 * RATE < statistics.median(measured(status, link) for status in seen) < 1.1 * RATE
        changed_ns = time.monotonic_ns()
        testbed.client.call("link_set", src="dc1", dst="dc2", both=True, rate="10mbit")
        training.until(
            lambda s: any(entry["monotonic_ns"] > changed_ns for entry in s["policies"]), "a new policy", 30
        )
        after = training.status()
        assert after["network"]["replans"] >= 1
        for link in ("dc1>dc2", "dc2>dc1"):
            assert measured(after, link) < 0.5 * RATE
        done = segment.result(90)
        in_force = min(e["monotonic_ns"] for e in done["policies"] if e["monotonic_ns"] > changed_ns)
        seconds = (in_force - changed_ns) / 1e9
        assert seconds < 15
        assert 0 < done["network"]["report_bytes"] < 100_000
    assert_sums_were_right(training, tmp_path)
