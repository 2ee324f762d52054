"""Everything at once: buckets under way together, rates that change, cables cut, detours, new plans of every kind."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from testbed.experiments.models import parameter_count
from testbed.experiments.spec import experiment_from_text
from testbed.simulation.run import run_experiment
from testbed.simulation.world import World
from topologies.load import load_topology

EXPERIMENT = """
name: together
topology: netstorm-9
scale: 0.25
dynamics: {{kind: netstorm, every: 700ms, seed: {seed}}}
timeline:
  - {{at: {first}ms, action: link-down, link: {cut}, for: 800ms}}
  - {{at: {second}ms, action: {action}, link: {other}, for: 900ms}}
training:
  model: mlp-100k
  iterations: 4
  chunk_elements: 5000
  compute: {{mean: 300ms, cv: 0.5}}
  overlap: true
  bucket_bytes: {bucket}
awareness: {{estimator: unbiased, check_period_s: 0.3, probe_idle_s: 0.5, min_gain: 0}}
auxiliary: {auxiliary}
policy: {{switch: {switch}, every: {every}}}
schedulers: [{scheduler}]
"""


@pytest.mark.parametrize(
    ("scheduler", "switch"),
    [
        ("netstorm", "barrier"),
        ("netstorm", "announced"),
        ("packing", "within"),
        ("tsengine", "barrier"),
        ("greedw", "announced"),
        ("ring", "within"),
    ],
)
def test_every_sum_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, switch: str) -> None:
    """Every delivered chunk is checked to hold each site once; here, that all of every bucket arrives everywhere."""
    rng = random.Random(f"{scheduler} {switch}")
    links = ["-".join(link.endpoints) for link in load_topology("netstorm-9").links]
    worlds: list[World] = []
    init = World.__init__

    def keep(world: World, *given: Any, **more: Any) -> None:
        init(world, *given, **more)
        worlds.append(world)

    monkeypatch.setattr(World, "__init__", keep)
    text = EXPERIMENT.format(
        seed=rng.randrange(1000),
        first=rng.randrange(1500),
        second=rng.randrange(2500),
        cut=rng.choice(links),
        other=rng.choice(links),
        action=rng.choice(["link-down", "blackhole"]),
        bucket=rng.choice([1024, 20_000]),
        auxiliary=rng.choice(["threshold", "capacity", "random"]),
        every=rng.choice([0, 1, 2]),
        switch=switch,
        scheduler=scheduler,
    )
    run_experiment(experiment_from_text(text), tmp_path / "run")
    (world,) = worlds
    assert sum(record.spec.parts[0].elements for record in world.records) == 4 * parameter_count("mlp-100k")
    assert all(record.delivered == [record.spec.parts[0].elements] * 9 for record in world.records)
