"""Prometheus in a real testbed: everything is scraped, nothing of it crosses the WAN, and a run can be
exported.
"""

from __future__ import annotations

import csv
import json
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path

import pytest

from testbed import Testbed
from testbed.status import Snapshot, StatusReader
from testbed.telemetry import prometheus
from testbed.telemetry.export import export_window, open_packed

pytestmark = pytest.mark.emulated

TARGETS_UP_S = 10.0


@pytest.fixture(scope="module")
def testbed(unique_name: Callable[[], str]) -> Iterator[Testbed]:
    with Testbed.up("pair", name=unique_name(), calibrate=False) as testbed:
        testbed.prometheus.wait_all_up(len(targets(testbed)), TARGETS_UP_S)
        yield testbed


def targets(testbed: Testbed) -> tuple[prometheus.Target, ...]:
    return prometheus.targets_of(testbed.topology, testbed.info.management)


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def scrapes(testbed: Testbed, since: float) -> list[float]:
    """When the links' target was scraped since a unix time."""
    found = testbed.prometheus.raw('up{job="links"}', since, time.time())
    return [t for t, _ in found[0].samples] if found else []


def test_every_target_is_up_within_ten_seconds_of_up(testbed: Testbed) -> None:
    # The fixture has waited so long and no longer. Since then a busy machine may have missed one for a second.
    wanted = {(t.job, t.instance): True for t in targets(testbed)}
    assert eventually(lambda: testbed.prometheus.targets_up() == wanted)
    jobs = {job for job, _ in testbed.prometheus.targets_up()}
    assert jobs == {"agent", "coordinator", "controller", "delay-line", "links", "prometheus"}


def test_it_is_scraped_once_a_second(testbed: Testbed) -> None:
    now = time.time()
    assert eventually(lambda: len(scrapes(testbed, now)) >= 6)
    # The usual distance: a machine that stalls for a second leaves one out.
    gaps = [b - a for a, b in pairwise(scrapes(testbed, now))]
    assert statistics.median(gaps) == pytest.approx(1.0, abs=0.3)


def test_prometheus_is_reached_over_the_management_network_and_nowhere_else(testbed: Testbed) -> None:
    site = testbed.sites["dc1"]
    listening = testbed.call("processes")
    assert any("prometheus" in process["argv"][0] for process in listening)
    # From a site: its management address answers, the WAN has no such address.
    url = testbed.info.prometheus_url
    fetch = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + '/-/ready', timeout=5).read()"
    assert site.run(["python", "-c", fetch, url]).ok
    sockets = site.run(["ss", "-Hltn", "sport", "=", ":9090"]).stdout
    assert sockets == ""


def test_link_metrics_follow_the_traffic_and_the_configuration(testbed: Testbed) -> None:
    before = {
        s.labels["src"]: s.last for s in testbed.prometheus.instant("stormbed_link_transmit_bytes_total")
    }
    assert set(before) == {"dc1", "dc2"}
    ping = ["ping", "-q", "-c", "50", "-i", "0.01", "-s", "1400", testbed.sites["dc2"].wan_ip]
    testbed.sites["dc1"].run(ping)
    expected = before["dc1"] + 50 * 1400

    def sent() -> float:
        query = 'stormbed_link_transmit_bytes_total{src="dc1",dst="dc2"}'
        return testbed.prometheus.instant(query)[0].last

    assert eventually(lambda: sent() >= expected)
    assert sent() < expected * 1.2 + 10_000

    configured = "stormbed_link_configured_bytes_per_second"
    wanted = {"dc1": 5e6, "dc2": 12.5e6}
    testbed.link("dc1", "dc2").set(rate="40mbit", one_way=True)
    try:
        assert eventually(
            lambda: {s.labels["src"]: s.last for s in testbed.prometheus.instant(configured)} == wanted
        )
    finally:
        testbed.link("dc1", "dc2").reset()


def test_scrapes_take_no_byte_of_the_wan(testbed: Testbed) -> None:
    def carried() -> int:
        return sum(link["counters"]["bytes"] for link in testbed.links())

    scraped = time.time()
    before = carried()
    assert eventually(lambda: len(scrapes(testbed, scraped)) >= 3)
    assert carried() - before < 3000  # neighbour discovery at most; three scrapes are tens of kilobytes


EXPERIMENT = """
name: watched
topology: pair
training: {model: tensor-500k, iterations: 60, chunk_elements: 50000}
schedulers: [netstorm]
"""


def test_the_status_shows_the_run_that_goes_on(testbed: Testbed, tmp_path: Path) -> None:
    file = tmp_path / "watched.yaml"
    file.write_text(EXPERIMENT)
    reader = StatusReader(testbed)
    seen: list[Snapshot] = []
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(testbed.run, file, out=tmp_path / "runs")
        while not run.done():
            seen.append(reader.read())
            wait([run], timeout=0.5)
        directory = run.result()
    reader.close()

    jobs = [job for snapshot in seen for job in snapshot.jobs]
    assert {job.job for job in jobs} == {directory.name}
    assert "netstorm" in {job.scheduler for job in jobs}
    assert max(job.iteration for job in jobs) > 5
    # 4 MB to and fro over 100 Mbit/s
    assert any(job.synchronisation_s is not None and 0.1 < job.synchronisation_s < 2 for job in jobs)
    assert max(link.utilisation_ratio or 0 for snapshot in seen for link in snapshot.links) > 0.3
    assert max(site.workers for snapshot in seen for site in snapshot.sites) == 1
    assert all(snapshot.healthy for snapshot in seen)
    # Prometheus gets 0.8 s for each of five answers, which it needs milliseconds for; a busy machine may take more.
    assert sum(snapshot.prometheus_up for snapshot in seen) > len(seen) / 2


def test_a_target_that_dies_is_down_within_a_few_seconds(testbed: Testbed) -> None:
    # The agent of dc2, as the machine itself sees it.
    pids = [
        process["pid"]
        for process in testbed.sites["dc2"].processes()
        if process["argv"][1:3] == ["-m", "agents"]
    ]
    assert len(pids) == 1
    testbed.call("kill", site="dc2", pid=pids[0], signal_name="SIGKILL")
    # One scrape a second, and what a busy machine adds.
    assert eventually(lambda: testbed.prometheus.targets_up()["agent", "dc2"] is False, seconds=10)
    assert eventually(lambda: testbed.prometheus.targets_up()["agent", "dc1"] is True)


def test_a_window_is_exported_as_files(testbed: Testbed, tmp_path: Path) -> None:
    start = time.time()
    assert eventually(lambda: len(scrapes(testbed, start)) >= 3)
    end = time.time()
    as_json, as_csv = export_window(testbed.prometheus, start, end, tmp_path)
    document = json.load(open_packed(as_json, "rt"))
    names = {series["labels"]["__name__"] for series in document["series"]}
    assert {"up", "stormbed_link_transmit_bytes_total", "stormbed_link_up"} <= names
    for series in document["series"]:
        assert all(start <= t <= end for t, _ in series["samples"])
    rows = list(csv.DictReader(open_packed(as_csv, "rt")))
    assert len(rows) == sum(len(series["samples"]) for series in document["series"])
    links = {(row["src"], row["dst"]) for row in rows if row["metric"] == "stormbed_link_up"}
    assert links == {("dc1", "dc2"), ("dc2", "dc1")}


def test_the_samples_are_in_the_run_directory_and_nowhere_else(testbed: Testbed) -> None:
    directory = testbed.run_dir / "prometheus"
    assert (directory / "data" / "wal").is_dir()
    outside = [process for process in testbed.call("processes") if "prometheus" in process["argv"][0]]
    for process in outside:
        assert f"--storage.tsdb.path={directory / 'data'}" in process["argv"]


def test_a_dead_prometheus_does_not_silence_the_status(testbed: Testbed) -> None:
    (pid,) = [p["pid"] for p in testbed.call("processes") if "prometheus" in p["argv"][0]]
    testbed.call("kill", pid=pid, signal_name=signal.Signals(signal.SIGKILL).name)
    reader = StatusReader(testbed)
    try:
        assert eventually(lambda: "prometheus" in reader.read().ended_processes)
        shown = reader.read()
    finally:
        reader.close()
    assert not shown.prometheus_up and not shown.healthy
    assert shown.sites[0].agent_up is None
    assert [link.configured_bps for link in shown.links] == [100e6, 100e6]
    assert Path(shown.ssh_config).exists()
