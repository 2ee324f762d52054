"""One change of plan inside a synchronisation, planned at first with rates that are off by up to 20 %."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from agents.planning.registry import get_scheduler
from agents.sync.spec import allreduce
from testbed.experiments.spec import experiment_from_text
from testbed.report.measurements import read_run
from testbed.simulation.bounds import bound
from testbed.simulation.run import run_experiment
from testbed.simulation.world import REALISTIC, SECOND, World

from .conftest import Build

LINKS = ((0, 1), (0, 2), (1, 2), (1, 4), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6), (5, 7), (5, 8), (6, 7))
ELEMENTS = 57_029_322


@pytest.mark.parametrize("draw", range(2))
def test_a_new_plan_inside_a_synchronisation_makes_good_for_wrong_rates(
    draw: int, topology_of: Build
) -> None:
    rng = random.Random(draw)
    topology = topology_of({link: rng.randint(20, 155) for link in (*LINKS, (7, 8))})
    limit = bound(topology, 4 * ELEMENTS).seconds
    assert limit is not None
    factor = {link: 1 + rng.uniform(-0.2, 0.2) for link in (*LINKS, (7, 8))}

    def seconds(replan: bool) -> float:
        world = World(topology)
        view = world.view()
        wrong = {(u, v): rate * factor[min(u, v), max(u, v)] for (u, v), rate in view.rates.items()}
        packing = get_scheduler("packing", topology.site_names)
        world.use_plan(packing.plan(replace(view, rates=wrong)), 100_000)
        if replan:
            right = packing.plan(view)
            world.clock.at(round(0.05 * limit * SECOND), lambda: world.replan_within(0, right, 100_000))
        for site in range(world.n):
            world.begin(site, allreduce(ELEMENTS))
        record = world.run_until_complete(0)
        assert record.delivered == [ELEMENTS] * world.n
        assert world.coordinator.version == (2 if replan else 1)
        return record.synchronisation_s

    static, adapted = seconds(False) / limit, seconds(True) / limit
    assert adapted < 1.08
    assert adapted < static - 0.02


def test_the_run_itself_notices_and_plans_anew_inside(tmp_path: Path) -> None:
    """The same in an experiment: what the sites measure leads to the new plan, through the whole runtime."""
    rng = random.Random(0)
    links = (*LINKS, (7, 8))
    right = {link: rng.randint(20, 155) for link in links}
    wrong = {link: rate * (1 + rng.uniform(-0.2, 0.2)) for link, rate in right.items()}
    limit = bound({arc: rate * 1e6 for (u, v), rate in right.items() for arc in ((u, v), (v, u))}, 4 * ELEMENTS)
    assert limit.seconds is not None

    def ends(link: tuple[int, int]) -> list[str]:
        return [f"dc{site + 1}" for site in link]

    declared = {
        "name": "misjudged",
        "sites": {f"dc{k + 1}": {} for k in range(9)},
        "links": [{"endpoints": ends(link), "rate": f"{rate:.3f}mbit"} for link, rate in wrong.items()],
    }
    (tmp_path / "misjudged.yaml").write_text(json.dumps(declared))
    found = {}
    for switch in ("barrier", "within"):
        experiment = {
            "name": "replan",
            "topology": str(tmp_path / "misjudged.yaml"),
            "training": {"model": f"tensor-{ELEMENTS}", "iterations": 1},
            "schedulers": ["packing"],
            "awareness": {"estimator": "unbiased", "check_period_s": 1, "min_gain": 0.02},
            "policy": switch,
            "timeline": [
                {"at": "1ms", "action": "link-set", "link": "-".join(ends(link)), "rate": f"{rate}mbit"}
                for link, rate in right.items()
            ],
        }
        run_experiment(experiment_from_text(json.dumps(experiment)), tmp_path / switch)
        (iterations,) = read_run(tmp_path / switch).iterations.values()
        took = iterations[0].synchronisation_s
        assert took is not None
        found[switch] = took * REALISTIC.efficiency / limit.seconds
        events = [json.loads(line) for line in (tmp_path / switch / "events.jsonl").read_text().splitlines()]
        (followed,) = (event for event in events if event["kind"] == "network-followed")
        inside = [entry for entry in followed["policies"] if "from_chunk" in entry]
        assert len(inside) == (switch == "within"), "one change is enough"
        assert all(entry["from_seq"] == 0 and entry["reason"] == "rates" for entry in inside)
    assert found["within"] < 1.08
    assert found["within"] < found["barrier"] - 0.02
