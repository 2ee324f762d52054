"""Links that change by themselves while traffic flows: in force, without loss, written down, and undone."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.api import Testbed
from testbed.emulation.waiting import wait_for
from testbed.experiments.run import run_experiment
from testbed.experiments.spec import experiment_from_text
from testbed.report.measurements import read_run
from tests.emulated.traffic import Stream
from topologies.dynamics import Dynamics
from topologies.errors import StormbedError, UsageError

pytestmark = pytest.mark.emulated

TRIANGLE = {
    "name": "triangle-changing",
    "sites": {"dc1": {}, "dc2": {}, "dc3": {}},
    "links": [
        {"endpoints": ["dc1", "dc2"], "rate": "50mbit"},
        {"endpoints": ["dc2", "dc3"], "rate": "50mbit"},
        {"endpoints": ["dc1", "dc3"], "rate": "50mbit"},
    ],
}
UNIFORM = {"kind": "uniform", "rate": "25mbit..60mbit", "every": "400ms"}


@pytest.fixture(scope="module")
def triangle(bring):
    return bring(TRIANGLE)


@pytest.fixture
def still(triangle):
    """The triangle with no link changing, before and after."""
    yield triangle
    playing = triangle.client.call("status")["dynamics"]
    if playing is not None:
        triangle.client.call("dynamics_stop", owner=playing["owner"])
        pytest.fail("the links were left changing")
    if any(row["state"] != "up" or row["rate_bps"] != 50_000_000 for row in triangle.client.call("links")):
        triangle.client.call("link_reset")
        pytest.fail("the links were left changed")


def rates(testbed) -> list[int]:
    return [row["rate_bps"] for row in testbed.client.call("links")]


def shaped_bps(testbed, device: str) -> int:
    """What the kernel itself says the rate of a direction's root class is."""
    shown = testbed.supervisor().run("tc", "class", "show", "dev", device)
    (mbit,) = re.findall(r"class htb 1:1 root rate (\d+)Mbit", shown)
    return int(mbit) * 10**6


def play(testbed, steps: int, **how: Any) -> list[dict[str, Any]]:
    """What was applied until so many steps were; a busy machine may be late with each."""
    testbed.client.call("dynamics_start", **how)
    wait_for_steps(testbed, steps)
    return list(testbed.client.call("dynamics_stop")["applied"])


def wait_for_steps(testbed, steps: int) -> None:
    wait_for(lambda: testbed.client.call("status")["dynamics"]["steps"] >= steps, f"{steps} steps", 30)


def test_rates_are_in_force_lose_no_packet_and_are_undone(still) -> None:
    """Paced datagrams at 0.8 of the lowest rate over some ten redraws of every link: none lost."""
    stream = Stream(still, "dc1", "dc2", 0.8 * 25e6)
    still.client.call("dynamics_start", dynamics=UNIFORM, seed=5)
    wait_for_steps(still, 10)
    sent, seen, reordered = stream.end()
    with pytest.raises(StormbedError, match="cannot be calibrated"):
        still.client.call("calibrate")
    with pytest.raises(StormbedError, match="changing by themselves already"):
        still.client.call("dynamics_start", dynamics=UNIFORM)
    played = still.client.call("dynamics_stop")
    assert (seen, reordered) == (sent, 0)
    applied = played["applied"]
    assert len(applied) >= 10
    assert played["failure"] is None
    assert [round(step["due_s"] / 0.4, 6) for step in applied] == list(range(len(applied)))
    assert all(step["late_s"] >= 0 for step in applied)
    assert all(25e6 <= link["rate_bps"] <= 60e6 for step in applied for link in step["links"])
    assert rates(still) == [50_000_000] * 6
    events = [
        json.loads(line) for line in still.info.run_dir.joinpath("events.jsonl").read_text().splitlines()
    ]
    written = [event for event in events if event["kind"] == "link_changes"]
    assert [event["links"] for event in written] == [step["links"] for step in applied]


def test_the_kernel_has_the_drawn_rate_and_the_same_seed_gives_the_same(still) -> None:
    still.client.call("dynamics_start", dynamics={**UNIFORM, "every": "60s"}, seed=9)
    drawn = rates(still)
    devices = [row["device"] for row in still.client.call("links")]
    assert [shaped_bps(still, device) for device in devices] == drawn
    still.client.call("dynamics_stop")
    assert len(set(drawn)) > 2
    assert [shaped_bps(still, device) for device in devices] == [50_000_000] * 6
    (first,) = play(still, 1, dynamics={**UNIFORM, "every": "60s"}, seed=9)
    assert [link["rate_bps"] for link in first["links"]] == drawn


def test_every_door_refuses_what_no_link_can_be(still) -> None:
    """Before anything is changed, and in the same words, whoever asks."""
    link = Testbed(still.info).link("dc1", "dc2")
    at = {"at": "1s", "action": "link-set", "link": "dc1-dc2"}
    for values, words in (
        ({"rate": "999bit"}, "below 1kbit"),
        ({"rate": "4gbit"}, "carries at most 3gbit"),
        ({"rate": "2gbit", "delay": "1ms"}, "carries at most 1.25gbit"),
        ({"delay": "61s"}, "longer than a minute"),
        ({"delay": "-1ms"}, "negative"),
        ({"loss": "101%"}, "between 0% and 100%"),
        ({"loss": "1% burst 0"}, "burst of 0"),
    ):
        with pytest.raises(StormbedError, match=words):
            still.client.call("link_set", src="dc1", dst="dc2", **values)
        with pytest.raises(StormbedError, match=words):
            link.set(**values)
        with pytest.raises(StormbedError, match=words):
            still.client.call("dynamics_start", timeline=[at | values])
    for values, words in (
        ({"jitter": "61s"}, "longer than a minute"),
        ({"queue": "2000B"}, "cannot carry TCP"),
        ({"queue": "2GiB"}, "between 1B and 1GiB"),
    ):
        with pytest.raises(StormbedError, match=words):
            still.client.call("link_set", src="dc1", dst="dc2", **values)
    for how, words in (
        ({"dynamics": {"kind": "walk", "rate": "1bit..1mbit"}}, "below 1kbit"),
        ({"dynamics": UNIFORM, "scale": 1e-5}, "below 1kbit"),
        ({"dynamics": {"kind": "uniform", "rate": "4gbit..5gbit"}}, "carries at most"),
    ):
        with pytest.raises(StormbedError, match=words):
            still.client.call("dynamics_start", **how)
    assert rates(still) == [50_000_000] * 6
    assert {row["carrier"] for row in still.client.call("links")} == {"kernel"}


def test_the_timeline_cuts_mends_and_sets(still) -> None:
    timeline = [
        {"at": "200ms", "action": "link-down", "link": "dc1-dc2", "for": "300ms"},
        {"at": "300ms", "action": "link-set", "link": "dc2>dc3", "rate": "10mbit", "delay": "5ms"},
        {"at": "400ms", "action": "blackhole", "link": "dc1>dc3"},
    ]
    applied = play(still, 4, timeline=timeline)
    assert [step["due_s"] for step in applied] == [0.2, 0.3, 0.4, 0.5]
    down, slow, hole, up = (step["links"] for step in applied)
    assert [(link["src"], link["dst"], link["state"]) for link in down] == [
        ("dc1", "dc2", "down"),
        ("dc2", "dc1", "down"),
    ]
    assert [(link["rate_bps"], link["delay_s"]) for link in slow] == [(10_000_000, 0.005)]
    assert [(link["src"], link["dst"], link["state"]) for link in hole] == [("dc1", "dc3", "blackhole")]
    assert [link["state"] for link in up] == ["up", "up"]
    assert still.site("dc1").run("ping", "-c", "1", "-W", "10", still.wan_ip("dc3"))


def test_what_cannot_be_is_refused(still) -> None:
    for how, message in (
        ({"dynamics": {"kind": "uniform", "path": "x"}}, "path"),
        ({"dynamics": "netstorm"}, "nine sites"),
        ({"dynamics": {"kind": "trace", "path": "/nowhere.csv"}}, "nowhere.csv"),
        ({"timeline": [{"at": "1s", "action": "link-down", "link": "dc1-dc9"}]}, "dc1-dc9"),
    ):
        with pytest.raises(StormbedError, match=message):
            still.client.call("dynamics_start", **how)
    with pytest.raises(StormbedError, match="do not change"):
        still.client.call("dynamics_stop")


def cli(testbed, *arguments: str) -> str:
    argv = [sys.executable, "-m", "testbed", "link", *arguments, "--name", testbed.name]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_same_by_hand(still) -> None:
    assert "20mbit" not in cli(still, "vary", "uniform", "--every", "300ms", "--rate", "20mbit..40mbit")
    assert max(rates(still)) <= 40_000_000
    assert " made; the links are what they were before" in cli(still, "vary", "--stop")
    cli(still, "blackhole", "dc1", "dc2")
    assert {row["state"] for row in still.client.call("links")} == {"up", "blackhole"}
    cli(still, "blackhole", "dc1", "dc2", "--off")
    assert "Mbit/s of TCP payload" in cli(still, "test", "dc1", "dc2", "--seconds", "0.3")


def test_links_of_a_standing_testbed_may_change_from_the_start(bring, tmp_path: Path) -> None:
    testbed = bring("pair", dynamics=Dynamics.parse("uniform?every=300ms&rate=40mbit..80mbit&seed=3"), scale=0.5)

    def playing() -> dict[str, Any] | None:
        found: dict[str, Any] | None = testbed.client.call("status")["dynamics"]
        return found

    first = playing()
    assert first is not None and (first["owner"], first["seed"], first["scale"]) == ("standing", 3, 0.5)
    assert first["text"] == "uniform?rate=40mbit..80mbit&every=300ms&seed=3"
    assert all(20_000_000 <= rate <= 40_000_000 for rate in rates(testbed)), "scaled as the topology is"
    wait_for(lambda: (playing() or first)["steps"] > first["steps"], "the next draw", 20)
    # An experiment that has links change, or one that is stopped by somebody else, does not get in its way.
    with pytest.raises(UsageError, match=r"uniform\?rate=40mbit.* of its own"):
        run_experiment(experiment_from_text(EXPERIMENT), out=tmp_path, testbed=testbed.name)
    with pytest.raises(StormbedError, match="by themselves already"):
        testbed.client.call("dynamics_start", dynamics=UNIFORM)
    with pytest.raises(StormbedError, match="by no run"):
        testbed.client.call("dynamics_stop")
    with pytest.raises(StormbedError, match="nine sites"):
        testbed.client.call("dynamics_start", dynamics="netstorm", owner="standing")
    assert (playing() or {})["seed"] == 3, "what cannot be has replaced nothing"
    cli(testbed, "vary", "walk", "--every", "10s", "--rate", "90mbit..120mbit")
    assert (playing() or {})["text"].startswith("walk?") and min(rates(testbed)) >= 90_000_000
    cli(testbed, "vary", "--stop")
    assert playing() is None and rates(testbed) == [100_000_000] * 2
    # A run's own changes are not stopped by hand.
    testbed.client.call("dynamics_start", dynamics={**UNIFORM, "every": "60s"})
    for verb in ("dynamics_stop", "dynamics_start"):
        with pytest.raises(StormbedError, match=r"by a run|by themselves already"):
            testbed.client.call(verb, owner="standing")
    testbed.client.call("dynamics_stop")
    events = [json.loads(line) for line in testbed.info.run_dir.joinpath("events.jsonl").read_text().splitlines()]
    begun = [event["text"].partition("?")[0] for event in events if event["kind"] == "dynamics_start"]
    assert begun == ["uniform", "walk", "uniform"]


EXPERIMENT = """
name: changing
topology: pair
dynamics: {kind: uniform, rate: [20mbit, 90mbit], every: 500ms}
training: {model: tensor-200k, iterations: 12}
schedulers: [{name: star, options: {server: first}}, netstorm]
"""


def test_a_run_gives_every_scheduler_the_same_changes_and_keeps_them(tmp_path: Path, bring) -> None:
    testbed = bring("pair")
    path = run_experiment(experiment_from_text(EXPERIMENT), out=tmp_path, testbed=testbed.name)
    run = read_run(path)
    assert run.manifest.status == "completed"
    assert run.manifest.experiment["dynamics"]["replay"] == "segment"
    found: dict[str, list[tuple[str, str, str]]] = {}
    with (path / "changes.csv").open() as file:
        for row in csv.DictReader(file):
            found.setdefault(row["segment"], []).append((row["src"], row["dst"], row["rate_bps"]))
    restored = found.pop("")  # at the end of each turn, which is of none
    assert restored and {rate for _, _, rate in restored} == {"100000000"}
    assert set(found) == {"star-first", "netstorm"}
    shared = min(len(rows) for rows in found.values())
    assert shared >= 4
    assert found["star-first"][:shared] == found["netstorm"][:shared]
    sampled = {sample.configured_bps for sample in run.links if sample.segment}
    assert sampled - {100_000_000}, "links.csv has the rates as they were"
    assert rates(testbed) == [100_000_000] * 2
