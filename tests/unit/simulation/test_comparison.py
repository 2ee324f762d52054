"""`testbed demo` and what is behind it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from agents.planning.registry import scheduler_names
from testbed.cli import build
from testbed.simulation.comparison import compare
from topologies.errors import UsageError
from topologies.load import load_topology


def test_every_scheduler_beside_the_bound() -> None:
    result = compare(load_topology("triangle"), 1_000_000, 100_000)
    assert [run.scheduler for run in result.results] == list(scheduler_names())
    assert result.bound_s == pytest.approx(32e6 / 150e6)
    for run in result.results:
        assert result.over_bound(run) >= 1
        assert result.rate_bps(run) == pytest.approx(150e6 / result.over_bound(run))


def test_one_scheduler_with_options() -> None:
    spec = {"name": "netstorm", "options": {"roots": 1}}
    result = compare(load_topology("triangle"), 1_000_000, 100_000, [spec])
    assert len(result.results) == 1
    assert len(result.results[0].plan.trees) == 1


def test_nothing_to_synchronise() -> None:
    with pytest.raises(UsageError, match="0 parameters"):
        compare(load_topology("pair"), 0)


def test_the_verb_prints_a_table_and_json() -> None:
    runner = CliRunner()
    words = ["demo", "--topology", "pair", "--parameters", "1000000"]
    text = runner.invoke(build(), words)
    assert text.exit_code == 0, text.output
    for name in (*scheduler_names(), "bound", "x bound"):
        assert name in text.stdout
    answer = runner.invoke(build(), [*words, "--format", "json", "--scheduler", "netstorm"])
    document = json.loads(answer.stdout)
    assert document["schema"] == 1
    assert [row["scheduler"] for row in document["schedulers"]] == ["netstorm"]
    row = document["schedulers"][0]
    assert row["bound_ratio"] == pytest.approx(row["synchronisation_s"] / document["bound"]["seconds"])


def test_netstorm_9_at_its_published_rates() -> None:
    """Two million parameters in chunks of 100,000: in which order the schedulers come, and by how much."""
    names = ["star-first", "star-best", "netstorm", "packing"]
    result = compare(load_topology("netstorm-9"), 2_000_000, 100_000, names)
    seconds = {run.scheduler: run.seconds for run in result.results}
    assert seconds["star-first"] == pytest.approx(7.28, abs=0.01)
    assert seconds["star-first"] / seconds["netstorm"] == pytest.approx(5.8, abs=0.1)
    assert seconds["packing"] < seconds["netstorm"] < seconds["star-best"] < seconds["star-first"]
