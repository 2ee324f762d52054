"""New policies while collectives go on, over a real network: every sum exact, every chunk counted once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.emulation.waiting import wait_for
from testbed.events import read_events
from testbed.experiments.run import run_experiment
from testbed.experiments.spec import experiment_from_text
from testbed.report.measurements import read_run
from tests.emulated.conftest import Bring, Standing
from tests.emulated.test_awareness import Training, agent_metric, assert_sums_were_right
from tests.five_sites import CUT, FIVE, simulated_plans
from topologies.errors import UsageError

pytestmark = pytest.mark.emulated

COLLECTIVES = 200
ELEMENTS, CHUNK = 8_001, 1_000
RANDOM = {"name": "netstorm", "options": {"paths": "random", "seed": 7}}


@pytest.fixture(scope="module")
def testbed(bring: Bring) -> Standing:
    return bring(FIVE)


def counted(testbed: Standing, name: str, **wanted: str) -> float:
    """A counter of all agents together, of the samples with these labels."""
    total = 0.0
    for site in testbed.info.sites:
        for labels, value in agent_metric(testbed, site, f"stormbed_agent_{name}_total").items():
            if wanted.items() <= dict(labels).items():
                total += value
    return total


@pytest.mark.timeout(150)
@pytest.mark.parametrize("switch", ["barrier", "announced"])
def test_a_random_policy_for_every_collective_and_a_random_path_for_every_chunk(
    testbed: Standing, tmp_path: Path, switch: str
) -> None:
    late = counted(testbed, "late_frames")  # of an agent, not of a job: an earlier test may have left some
    with Training(testbed, tmp_path, chunk_elements=CHUNK) as training:
        done: dict[str, Any] = training.start(
            label=switch,
            scheduler=RANDOM,
            iterations=COLLECTIVES,
            elements=ELEMENTS,
            auxiliary="random",
            policy={"switch": switch, "every": 1},
            seed=3,
        ).result(100)
        # Five sites: every chunk goes up over four hops and down over four, whatever the trees.
        wanted = COLLECTIVES * -(-ELEMENTS // CHUNK) * 8
        assert counted(testbed, "path_chunks") == counted(testbed, "received_chunks") == wanted
        assert counted(testbed, "path_chunks", auxiliary="1") > 0.3 * wanted
        assert counted(testbed, "duplicate_messages") == counted(testbed, "late_frames") - late == 0
        assert counted(testbed, "collectives") == 5 * COLLECTIVES
        assert training.status()["failure"] is None
    assert_sums_were_right(training, tmp_path)  # every element of every sum, at every site
    assert done["collectives"] == COLLECTIVES
    # A new plan is made while the collective before goes on; now and then the next one begins first.
    assert len(done["policies"]) > 0.8 * COLLECTIVES
    assert len({entry["from_seq"] for entry in done["policies"]}) == len(done["policies"])


LINE = {
    "name": "line",
    "defaults": {"rate": "50mbit", "delay": "10ms"},
    "sites": {"dc1": {}, "dc2": {}, "dc3": {}},
    "links": [{"endpoints": ["dc1", "dc2"]}, {"endpoints": ["dc2", "dc3"]}],
}
EXPERIMENT = """
name: coordinator-at-a-site
topology: {topology}
coordinator: {coordinator}
training: {{model: tensor-20k, iterations: 12, chunk_elements: 10000, deadline_s: 30}}
schedulers:
  - {{name: netstorm, label: barrier}}
  - {{name: netstorm, label: announced, policy: announced}}
"""


def class_7_bytes(testbed: Standing, src: str, dst: str) -> int:
    (row,) = [row for row in testbed.client.call("links") if (row["src"], row["dst"]) == (src, dst)]
    return int(row["counters"]["class_bytes"][7])


def test_a_coordinator_at_a_site_speaks_over_the_wan_and_announcing_ahead_spares_its_round_trip(
    bring: Bring, tmp_path: Path
) -> None:
    standing = bring(LINE, coordinator="dc1")
    (process,) = [p for p in standing.client.call("status")["processes"] if p["name"] == "coordinator"]
    assert process["site"] == "dc1"
    (tmp_path / "line.yaml").write_text(yaml.safe_dump(LINE))
    fields = {"topology": tmp_path / "line.yaml", "coordinator": "{site: dc1}"}
    experiment = experiment_from_text(EXPERIMENT.format(**fields))
    links = [("dc1", "dc2"), ("dc2", "dc1"), ("dc3", "dc2")]
    before = {link: class_7_bytes(standing, *link) for link in links}
    run = read_run(run_experiment(experiment, out=tmp_path / "runs", testbed=standing.name))
    assert run.manifest.status == "completed"
    carried = {link: class_7_bytes(standing, *link) - before[link] for link in links}
    followed = {e["segment"]: e for e in read_events(run.directory / "events.jsonl", "network-followed")}
    control = followed["barrier"]["control"]
    said = sum(control["from_sites_bytes"].values()) + sum(control["to_sites_bytes"].values())
    assert min(carried.values()) > 500 and sum(carried.values()) > said / 2
    assert control["from_sites_bytes"]["barrier"] > 0 < control["to_sites_bytes"]["policies"]
    # dc3 is two hops of 10 ms away from the coordinator: 40 ms for its word and the answer, each time. Of the
    # shortest: a busy machine only adds to either.
    waits = {
        label: min(i.synchronisation_s or 0 for i in found[1:]) for label, found in run.iterations.items()
    }
    assert waits["barrier"] - waits["announced"] > 0.02, waits
    out_of_band = experiment_from_text(EXPERIMENT.format(**fields | {"coordinator": "management"}))
    with pytest.raises(UsageError, match=f"the coordinator of testbed {standing.name} is at dc1, .* out of band"):
        run_experiment(out_of_band, out=tmp_path / "runs", testbed=standing.name)


def links_down(testbed: Standing) -> list[float]:
    """How many links are down as each agent knows it."""
    found = (agent_metric(testbed, site, "stormbed_agent_links_down") for site in testbed.info.sites)
    return [value for samples in found for value in samples.values()]


def test_agents_learn_of_a_cut_link_and_plan_around_it(testbed: Standing, tmp_path: Path) -> None:
    """Its plans are those that the simulated world makes for the same cut: both plan with declared rates."""
    link = list(CUT)
    (_, first), (_, without), (_, again) = simulated_plans()
    with Training(testbed, tmp_path, chunk_elements=5_000) as training:
        # The network alone would be done with all in two seconds, before the link has failed and returned.
        compute = {"mean_s": 0.06}
        segment = training.start(label="cut", iterations=300, elements=60_000, compute=compute)
        training.until(lambda s: s["collectives"] > 10, "the first collectives", 40)
        assert training.client.plan("j")["plan"] == first
        cut_ns = time.monotonic_ns()
        testbed.client.call("link_down", src=link[0], dst=link[1])
        try:
            known = training.until(
                lambda s: any(e["reason"] == "links" for e in s["policies"]), "a policy without the link", 20
            )
            assert training.client.status()["links_down"] == ["-".join(link)]
            assert training.client.plan("j")["plan"] == without
            # Each agent is told as well, by its own connection.
            wait_for(lambda: links_down(testbed) == [1.0] * len(testbed.info.sites), "all agents to know", 20)
            (entry,) = [e for e in known["policies"] if e["reason"] == "links"]
            assert (entry["issued_ns"] - cut_ns) / 1e9 < 2 + 3  # the machine may be busy
            training.until(lambda s: s["collectives"] > known["collectives"] + 10, "more collectives", 30)
        finally:
            testbed.client.call("link_up", src=link[0], dst=link[1])
        training.until(lambda s: [e["reason"] for e in s["policies"]].count("links") == 2, "the link again", 20)
        assert training.client.plan("j")["plan"] == again
        done = segment.result(90)
        assert done["collectives"] == 300 and done["network"]["links_down"] == []
    assert_sums_were_right(training, tmp_path)
