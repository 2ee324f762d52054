"""The page in Debian's chromium: a recorded run is replayed as the run directory tells it."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from testbed.api import Testbed
from testbed.dashboard.replay import read_replay
from testbed.emulation.waiting import wait_for
from testbed.events import read_events
from testbed.report.measurements import beginning, read_run
from testbed.telemetry.export import JSON_FILE, open_packed
from topologies.load import load_topology
from topologies.paths import path_sets

pytestmark = pytest.mark.browser

RUN = """
name: recorded
topology: {topology}
world: simulated
training: {{model: tensor-2m, iterations: {iterations}, chunk_elements: 100000}}
schedulers:
  - {{name: star, options: {{server: first}}, iterations: 1}}
  - netstorm
"""
REDRAWN = """
name: redrawn
topology: netstorm-9
world: simulated
dynamics: {kind: netstorm, every: 4s}
training: {model: tensor-2m, iterations: 8, chunk_elements: 100000}
schedulers: [netstorm]
"""

# The Topology Zoo's, as published; it has no rates.
GEANT = "topohub:topozoo/Geant2012?default-rate=100mbit"

Record = Callable[[str], Path]
Serve = Callable[[Path | str], str]
Drive = Callable[..., dict[str, Any]]


def check_clean(seen: dict[str, Any], address: str) -> None:
    """No word on the console, no error, and nothing asked of any other address."""
    assert seen["errors"] == []
    assert seen["console"] == []
    assert seen["failed"] == []
    origin = urlsplit(address).netloc
    strangers = [url for url in seen["requests"] if urlsplit(url).netloc != origin and urlsplit(url).scheme != "data"]
    assert strangers == []
    assert any(url.endswith("/api/document") for url in seen["requests"]), "the page asked for its data"


def plans(run: Path) -> dict[str, list[dict[str, Any]]]:
    manifest = json.loads((run / "manifest.json").read_text())
    return {segment["label"]: segment["plan"]["roots"] for segment in manifest["segments"]}


def edges(root: dict[str, Any]) -> set[str]:
    return {f"{child}>{parent}" for child, parent in root["parents"].items() if parent is not None}


def test_a_recorded_run_of_netstorm_9(record: Record, serve: Serve, drive: Drive, shots: Path) -> None:
    run = record(RUN.format(topology="netstorm-9", iterations=3))
    address = serve(run)
    keys = ["r", "r", "p", "End", "t", "?"]
    seen = drive(url=address, hash="t=9", keys=keys, shots=shots, name="netstorm-9")
    check_clean(seen, address)

    topology = load_topology("netstorm-9")
    first = seen["first"]
    assert first["links"] == [f"{link.src_name}>{link.dst_name}" for link in topology.directed]
    assert len(first["links"]) == 26
    assert first["sites"] == list(topology.site_names)
    assert all(first["charts"]) and len(first["charts"]) == 3
    assert first["verdict"] == "simulated, exact" and first["mode"] == "replay"
    assert [name.rsplit(" ", 2)[0] for name in first["schedulers"]] == ["star-first", "netstorm"]

    # At 9 s netstorm has its turn. All its trees are drawn, then that of the first root, then the second.
    trees = plans(run)["netstorm"]
    assert first["now"][0] == "netstorm"
    assert set(first["edges"]) == set.union(*(edges(root) for root in trees))
    assert first["ringed"] == sorted({root["site"] for root in trees})
    for step, root in zip(seen["steps"], trees, strict=False):
        if step["key"] == "r":
            assert set(step["edges"]) == edges(root)
            assert step["ringed"] == [root["site"]]
            assert step["chosen"][0].startswith(root["site"])
    # With the paths of the results there is one more edge a site but the root.
    assert len(seen["steps"][2]["edges"]) == 2 * (len(topology.site_names) - 1)
    # The end of the run: every synchronisation has been.
    assert seen["steps"][3]["now"][1] == "3 of 3"
    assert {seen["steps"][3]["theme"], seen["steps"][4]["theme"]} == {"light", "dark"}


def test_a_moment_shows_what_the_links_carried_then(record: Record, serve: Serve, drive: Drive) -> None:
    run = record(RUN.format(topology="netstorm-9", iterations=2))
    rows = [line.split(",") for line in (run / "links.csv").read_text().splitlines()[1:]]
    moment = rows[len(rows) // 3][0]
    carried = {(row[3], row[4]): (int(row[5]), int(row[6])) for row in rows if row[0] == moment}
    address = serve(run)
    seen = drive(url=address, hash=f"t={moment}", scheme="dark")
    check_clean(seen, address)
    assert seen["first"]["theme"] == "dark"
    assert len(carried) == len(seen["first"]["rows"]) == 26
    used = []
    for name, achieved, configured, share in seen["first"]["rows"]:
        src, dst = name.split(" → ")
        of, got = carried[src, dst]
        assert float(configured) == pytest.approx(of / 1e6, abs=0.05)
        assert float(achieved) == pytest.approx(got / 1e6, abs=0.5)
        used.append(float(share.removesuffix(" %")))
        assert used[-1] == pytest.approx(100 * got / of, abs=0.51)
    assert used == sorted(used, reverse=True), "the busiest link comes first"


def test_a_redraw_is_an_event_and_changes_the_links(record: Record, serve: Serve, drive: Drive) -> None:
    run = record(REDRAWN)
    address = serve(run)
    seen = drive(url=address, hash="t=0", keys=["End"])
    check_clean(seen, address)
    redraws = [event for event in seen["first"]["events"] if "directions changed" in event]
    changes = {line.split(",")[0] for line in (run / "changes.csv").read_text().splitlines()[1:]}
    assert len(redraws) == len(changes) > 0
    before = {row[0]: row[2] for row in seen["first"]["rows"]}
    after = {row[0]: row[2] for row in seen["steps"][0]["rows"]}
    assert sum(before[name] != after[name] for name in before) > 13


def test_a_large_network_and_no_serious_fault_of_access(
    record: Record, serve: Serve, drive: Drive, shots: Path
) -> None:
    topology = load_topology(GEANT)
    assert (len(topology.sites), len(topology.links)) == (37, 58)
    run = record(RUN.format(topology=GEANT, iterations=2))
    address = serve(run)
    (turn,) = [turn for turn in read_replay(run)["segments"] if turn["scheduler"] == "netstorm"]
    for scheme in ("light", "dark"):
        hash_ = f"t={turn['t0'] + 0.5}"
        seen = drive(url=address, hash=hash_, shots=shots, name=f"geant-{scheme}", scheme=scheme, axe=True)
        # axe-core fetches the style sheets again, from the same address.
        check_clean(seen, address)
        first = seen["first"]
        assert first["links"] == [f"{link.src_name}>{link.dst_name}" for link in topology.directed]
        assert first["sites"] == list(topology.site_names)
        # Of so many trees the first is shown, not all at once.
        trees = plans(run)["netstorm"]
        assert set(first["edges"]) == edges(trees[0]) and len(first["roots"]) == len(trees) + 1
        serious = [fault for fault in seen["faults"] if fault["impact"] in ("serious", "critical")]
        assert serious == []


def test_chunks_that_go_round_are_drawn_along_their_path(
    record: Record, serve: Serve, drive: Drive, shots: Path
) -> None:
    run = record(RUN.format(topology="netstorm-9", iterations=3))
    replay = read_replay(run)
    event = next(iter(read_events(run / "events.jsonl")))
    topology = load_topology("netstorm-9")
    number, path = next((k, path) for k, path in enumerate(path_sets(topology)[0, 1]) if len(path) > 2)
    names = [topology.site_names[k] for k in path]
    # What Prometheus keeps of a run in which dc1 sent dc2 four chunks over that path, from 1 s on.
    began_s = float(event["t_s"]) - int(event["monotonic_ns"]) * 1e-9 + beginning_s(run)
    labels = {"__name__": "stormbed_agent_path_chunks_total", "auxiliary": "1"}
    series = {"labels": {**labels, "instance": "dc1", "peer": "dc2", "path": str(number)}}
    samples = [[began_s + 1.1, 0], [began_s + 2.1, 4]]
    with open_packed(run / JSON_FILE, "wt") as file:
        json.dump({"schema": 1, "series": [{**series, "samples": samples}]}, file)
    address = serve(run)
    seen = drive(url=address, hash="t=1.5", keys=["End"], shots=shots, name="auxiliary", axe=True)
    check_clean(seen, address)
    assert replay["auxiliary"] == []
    assert seen["first"]["auxiliary"] == [f"{a}>{b}" for a, b in itertools.pairwise(names)]
    assert seen["first"]["auxiliary_said"] == [f"{' → '.join(names)}: 4.0 chunks/s"]
    assert seen["steps"][0]["auxiliary"] == seen["steps"][0]["auxiliary_said"] == []
    assert [fault for fault in seen["faults"] if fault["impact"] in ("serious", "critical")] == []


def beginning_s(run: Path) -> float:
    measured = read_run(run)
    return beginning(measured.manifest, measured.links) * 1e-9


def test_it_plays_by_itself_to_the_end(record: Record, serve: Serve, drive: Drive) -> None:
    address = serve(record(RUN.format(topology="triangle", iterations=2)))
    seen = drive(url=address, untils=["2 of 2"])
    check_clean(seen, address)
    assert seen["untils"][0]["clock"] != "0.0 s"


@pytest.mark.emulated
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the live page is UNVERIFIED here")
def test_a_change_of_a_standing_testbed_appears_within_three_seconds(
    serve: Serve, drive: Drive, shots: Path, tmp_path: Path
) -> None:
    """The quickest of three: what a browser without a graphics card waits for the processor is not the page's."""
    rates = (23, 24, 25)
    changed_s: list[float] = []
    with Testbed.up("pair", name=f"page-{os.getpid()}", calibrate=False) as testbed:
        address = serve(testbed.name)
        opened = tmp_path / "opened"
        with ThreadPoolExecutor(1) as pool:
            page = pool.submit(
                drive,
                url=address,
                untils=[f"dc1 > dc2 set to {rate} Mbit/s" for rate in rates],
                opened=opened,
                shots=shots,
                name="live",
            )
            for number, rate in enumerate(rates):
                there = opened if number == 0 else tmp_path / f"opened-{number}"
                wait_for(lambda there=there: there.exists() or page.done(), "the page to show what was", 90)
                changed_s.append(time.time())
                testbed.link("dc1", "dc2").set(rate=f"{rate}mbit", one_way=True)
            seen = page.result(timeout=120)
    check_clean(seen, address)
    assert seen["first"]["mode"] == "live"
    assert seen["first"]["links"] == ["dc1>dc2", "dc2>dc1"]
    for rate, until in zip(rates, seen["untils"], strict=True):
        assert f"{rate:.1f}" in [row[2] for row in until["rows"]], "the links are shown as the change has left them"
    assert min(until["at_s"] - at for until, at in zip(seen["untils"], changed_s, strict=True)) < 3
