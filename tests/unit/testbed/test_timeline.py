"""Dynamics and timeline as one list of steps, and the simulated world that follows it."""

from __future__ import annotations

import csv
from itertools import islice
from pathlib import Path

import pytest
from pydantic import ValidationError

from testbed.experiments.run import run_experiment
from testbed.experiments.spec import experiment_from_text
from testbed.report.measurements import read_run
from testbed.timeline import RunDynamics, Step, TimelineEntry, steps
from topologies.errors import UsageError
from topologies.load import load_topology

TRIANGLE = load_topology("triangle")
STILL = RunDynamics()


def entries(*fields: dict[str, object]) -> list[TimelineEntry]:
    return [TimelineEntry.model_validate(entry) for entry in fields]


def played(dynamics: RunDynamics, *fields: dict[str, object], until_s: float = 100) -> list[Step]:
    return list(steps(TRIANGLE, dynamics, entries(*fields), until_s=until_s))


def mbps(step: Step) -> dict[int, float]:
    return {index: link.rate.mbps for index, link in step.links.items()}


def test_nothing_declared_is_nothing_to_do() -> None:
    assert played(STILL) == []


def test_dynamics_alone_are_the_changes_of_the_topologys_directions() -> None:
    walk = RunDynamics.model_validate({"kind": "walk", "every": "2s", "rate": "1mbit..1gbit"})
    first = list(islice(steps(TRIANGLE, walk), 4))
    assert [step.t_s for step in first] == [0.0, 2.0, 4.0, 6.0]
    assert first[0].empty, "at 0 a walk is where the file is"
    assert all(set(step.links) == set(range(6)) for step in first[1:])
    assert first == list(islice(steps(TRIANGLE, walk), 4)), "the same again"
    assert first != list(islice(steps(TRIANGLE, walk, seed=2), 4))


def test_a_cut_is_mended_after_its_time_in_both_directions() -> None:
    down, up = played(STILL, {"at": "3s", "action": "link-down", "link": "dc2-dc1", "for": "1.5s"})
    index = TRIANGLE.between(0, 1).index
    both = {index: True, index ^ 1: True}
    assert (down.t_s, down.down, down.links, down.blackhole) == (3.0, both, {}, {})
    assert (up.t_s, up.down) == (4.5, dict.fromkeys(both, False))


def test_link_up_mends_what_has_no_end() -> None:
    down, up = played(
        STILL,
        {"at": "1s", "action": "link-down", "link": ["dc1", "dc2"]},
        {"at": "2s", "action": "link-up", "link": ["dc1", "dc2"]},
    )
    assert set(down.down.values()) == {True}
    assert set(up.down.values()) == {False}


def test_a_black_hole_has_a_direction() -> None:
    (step,) = played(STILL, {"at": "1s", "action": "blackhole", "link": "dc2>dc1"})
    assert step.blackhole == {TRIANGLE.between(1, 0).index: True}


def test_values_set_by_the_timeline_hold_against_dynamics_and_end_with_them() -> None:
    uniform = RunDynamics.model_validate({"kind": "uniform", "every": "2s"})
    index = TRIANGLE.between(0, 1).index
    plain = {step.t_s: mbps(step) for step in played(uniform, until_s=6)}
    found = played(
        uniform,
        {"at": "1s", "action": "link-set", "link": "dc1>dc2", "rate": "7mbit", "loss": "1%", "for": "2s"},
        until_s=6,
    )
    assert [step.t_s for step in found] == [0, 1, 2, 3, 4]
    assert mbps(found[1]) == {index: 7}
    assert found[1].links[index].loss.ratio == 0.01
    assert index not in found[2].links, "the epoch at 2 s leaves it alone"
    assert mbps(found[3]) == {index: plain[2][index]}, "at 3 s it is what dynamics made it meanwhile"
    assert found[3].links[index].loss.ratio == 0
    assert mbps(found[4]) == plain[4]


def test_what_happens_at_one_moment_is_one_step() -> None:
    (step,) = played(
        STILL,
        {"at": "1s", "action": "link-set", "link": "dc1>dc2", "rate": "7mbit"},
        {"at": "1s", "action": "link-set", "link": "*", "delay": "4ms"},
    )
    assert len(step.links) == 6
    assert step.links[0].rate.mbps == 7


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"action": "link-set"}, "link-set sets nothing"),
        ({"action": "link-down", "rate": "1mbit"}, "rate: it is for link-set"),
        ({"action": "link-down", "link": "dc1>dc2"}, "cut in both directions"),
        ({"action": "link-up", "for": "1s"}, "stays up by itself"),
        ({"action": "explode"}, "'link-down', 'link-up', 'link-set' or 'blackhole'"),
        ({"action": "link-down", "at": "0s"}, "above zero"),
        ({"action": "link-down", "att": "1s"}, "att"),
    ],
)
def test_entries_that_cannot_be(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        entries({"at": "1s", "link": "dc1-dc2", **fields})


def test_a_link_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="dc1-dc7"):
        played(STILL, {"at": "1s", "action": "link-down", "link": "dc1-dc7"})


def test_entries_and_dynamics_survive_being_written_out() -> None:
    (entry,) = entries(
        {"at": "1s", "action": "link-set", "link": "dc1>dc2", "rate": "7mbit", "loss": "1%", "for": "2s"}
    )
    assert TimelineEntry.model_validate(entry.model_dump(mode="json")) == entry
    dynamics = RunDynamics.model_validate({"kind": "uniform", "every": "2s", "replay": "run"})
    assert RunDynamics.model_validate(dynamics.model_dump(mode="json")) == dynamics
    assert RunDynamics.model_validate(STILL.model_dump(mode="json")) == STILL
    # Without dynamics it says how a timeline goes on.
    alone = RunDynamics.model_validate({"replay": "run"})
    assert RunDynamics.model_validate(alone.model_dump(mode="json")) == alone != STILL
    with pytest.raises(ValidationError, match="replay"):
        RunDynamics.model_validate({"kind": "uniform", "replay": "always"})


SIMULATED = """
name: s
topology: triangle
world: simulated
dynamics: {{kind: uniform, rate: [20mbit, 40mbit], every: 500ms, replay: {replay}}}
training: {{model: tensor-1m, iterations: 3}}
schedulers: [{{name: star, options: {{server: first}}}}, {{name: netstorm}}]
"""


def changes_of(run: Path) -> dict[str, list[tuple[float, str, str, int]]]:
    """By segment: when after the segment's first change, which direction, what rate."""
    found: dict[str, list[tuple[float, str, str, int]]] = {}
    with (run / "changes.csv").open() as file:
        for row in csv.DictReader(file):
            rows = found.setdefault(row["segment"], [])
            rows.append((float(row["t_s"]), row["src"], row["dst"], int(row["rate_bps"])))
    return {
        segment: [(round(t - rows[0][0], 3), src, dst, rate) for t, src, dst, rate in rows]
        for segment, rows in found.items()
    }


def test_every_scheduler_meets_the_same_changes_in_the_simulated_world(tmp_path: Path) -> None:
    path = run_experiment(experiment_from_text(SIMULATED.format(replay="segment")), out=tmp_path)
    found = changes_of(path)
    between = found.pop("")
    assert {rate for _, _, _, rate in between} == {100_000_000}, "after each turn the links are as declared"
    assert set(found) == {"star-first", "netstorm"}
    shared = min(len(rows) for rows in found.values())
    assert shared > 12
    assert found["star-first"][:shared] == found["netstorm"][:shared]
    measured = read_run(path)
    assert {sample.configured_bps for sample in measured.links} > {20_000_000}
    assert all(sample.configured_bps <= 40_000_000 for sample in measured.links)
    slow = measured.iterations["netstorm"][0].synchronisation_s
    still = SIMULATED.format(replay="segment").replace("20mbit, 40mbit", "100mbit, 100mbit")
    fast = read_run(run_experiment(experiment_from_text(still), out=tmp_path)).iterations["netstorm"][0]
    assert slow is not None and fast.synchronisation_s is not None
    assert slow > 2 * fast.synchronisation_s, "the changes are in force"


def test_changes_may_go_on_through_the_whole_run(tmp_path: Path) -> None:
    path = run_experiment(experiment_from_text(SIMULATED.format(replay="run")), out=tmp_path)
    with (path / "changes.csv").open() as file:
        times = [float(row["t_s"]) for row in csv.DictReader(file)]
    assert times == sorted(times)
    moments = sorted(set(times))
    assert moments == [k / 2 for k in range(len(moments))], "no scheduler began anew"


def test_a_timeline_alone_may_go_on_through_the_whole_run_too(tmp_path: Path) -> None:
    text = SIMULATED.format(replay="run").replace("kind: uniform, rate: [20mbit, 40mbit], every: 500ms, ", "")
    text += "timeline: [{at: 500ms, action: link-set, link: dc1>dc2, rate: 50mbit}]\n"
    path = run_experiment(experiment_from_text(text), out=tmp_path)
    with (path / "changes.csv").open() as file:
        assert [(row["t_s"], row["rate_bps"]) for row in csv.DictReader(file)] == [("0.500", "50000000")]
    assert read_run(path).manifest.experiment["dynamics"] == {"kind": "none", "replay": "run"}


def test_the_experiment_in_the_documentation_is_one() -> None:
    text = (Path(__file__).parents[3] / "docs" / "dynamics.md").read_text()
    experiment = experiment_from_text(text.partition("```yaml\n")[2].partition("```")[0])
    assert experiment.changes
    assert len(experiment.spec.timeline) == 3
