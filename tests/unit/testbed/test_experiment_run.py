"""Which testbed a run uses, and runs in the simulated world, which need neither root nor a testbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.experiments.run import first_difference, free_name, run_experiment, same_network
from testbed.experiments.spec import experiment_from_text, open_experiment
from testbed.report.bounds import bounds_of
from testbed.report.compare import compare_runs
from testbed.report.measurements import read_run
from testbed.report.summary import summarise_run
from topologies.errors import CannotHonourError, InvalidFileError
from topologies.load import load_topology, topology_from_dict

TEXT = """
name: sim
topology: triangle
training: {model: mlp-100k, iterations: 3, chunk_elements: 10000, compute: {mean: 20ms}}
schedulers: [{name: star, options: {server: first}, warmup: 1}, netstorm]
world: simulated
"""


def test_the_name_of_a_network_does_not_matter_but_its_rates_do() -> None:
    pair = load_topology("pair")
    assert same_network(pair, topology_from_dict(pair.to_dict() | {"name": "other"}))
    assert not same_network(pair, pair.scaled(0.5))


def test_differences_are_said_in_a_few_words() -> None:
    pair = load_topology("pair")
    assert first_difference(pair, pair.scaled(0.5)) == (
        "the rate of dc1 > dc2 is 100mbit there and 50mbit here"
    )
    assert first_difference(load_topology("triangle"), pair) == "its sites are dc1, dc2, dc3"
    two = pair.to_dict()
    two["sites"]["dc2"]["workers"] = 2
    assert first_difference(topology_from_dict(two), pair) == "dc2 has 2 workers there and 1 here"


def test_the_name_of_a_new_testbed_is_the_experiments_and_free() -> None:
    assert free_name("Quick_Start.1", ()) == "quick-start-1"
    assert free_name("x", {"x", "x-1"}) == "x-2"
    assert free_name("___", ()) == "run"
    assert len(free_name("a" * 64, {"a" * 28})) <= 32


def test_a_simulated_run_writes_the_same_directory(tmp_path: Path) -> None:
    told: list[Path] = []
    path = run_experiment(experiment_from_text(TEXT), out=tmp_path, on_directory=told.append)
    assert told == [path]
    result = summarise_run(read_run(path), bounds_of)
    assert (result.manifest.world, result.manifest.status) == ("simulated", "completed")
    assert result.fidelity.verdict == "exact"
    star, netstorm = result.schedulers
    assert (star.measured, star.warmup, netstorm.measured) == (2, 1, 3)
    for scheduler in (star, netstorm):
        assert scheduler.synchronisation is not None
        assert scheduler.bound_multiple is not None
        assert scheduler.bound_multiple >= 1
        assert scheduler.carried_bytes_per_iteration is not None
        assert scheduler.carried_bytes_per_iteration >= 2 * 2 * 4 * scheduler.elements
    assert (path / "experiment.yaml").read_text() == TEXT


def test_the_same_seed_gives_the_same_simulated_times(tmp_path: Path) -> None:
    a, b = (
        summarise_run(read_run(run_experiment(experiment_from_text(TEXT), out=tmp_path))) for _ in range(2)
    )
    assert {row.synchronisation_ratio for row in compare_runs(a, b).rows} == {1.0}


def test_an_emulated_run_without_root_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    experiment = experiment_from_text(TEXT.replace("simulated", "emulated"))
    with pytest.raises(CannotHonourError, match="an emulated run needs root"):
        run_experiment(experiment, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


GLOO = """
name: baseline
topology: {topology}
training: {{model: tensor-300k, iterations: 2, chunk_elements: 10000}}
schedulers: [gloo, ring]
world: simulated
"""


def test_gloo_is_simulated_as_its_ring(tmp_path: Path) -> None:
    """The slowest hop of the ring from each rank to the one before it sets the pace, over primary paths."""
    (tmp_path / "three.yaml").write_text(
        "name: three\nsites: {a: {}, b: {}, c: {}}\nlinks:\n"
        "  - {endpoints: [a, b], rate: 100mbit, backward: {rate: 50mbit}}\n"
        "  - {endpoints: [b, c], rate: 100mbit}\n"
        "  - {endpoints: [c, a], rate: 100mbit}\n"
    )
    (tmp_path / "e.yaml").write_text(GLOO.format(topology="three.yaml"))
    experiment = open_experiment(tmp_path / "e.yaml")
    assert experiment.libraries == {"gloo"}
    result = summarise_run(read_run(run_experiment(experiment, out=tmp_path / "runs")), bounds_of)
    gloo, ring = result.schedulers
    assert gloo.synchronisation is not None
    assert ring.synchronisation is not None
    # b > a has 50 Mbit/s and is the hop of rank 1 to rank 0: 4/3 of 1.2 MB, with 94 % of the rate for payload. The
    # ring the other way round has 100 Mbit/s everywhere.
    least = 9.6e6 * 4 / 3 / (0.94 * 50e6)
    assert least < gloo.synchronisation.mean < 1.15 * least
    assert ring.synchronisation.mean < 0.6 * gloo.synchronisation.mean


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topology": "crowded.yaml"}, "knows gloo with one worker a site; b has 2"),
        (
            {"schedulers": [{"name": "gloo", "awareness": {"estimator": "unbiased"}}], "world": "emulated"},
            "gloo exchanges gradients without the agents, so it has no awareness",
        ),
        ({"schedulers": [{"name": "gloo", "options": {"k": 1}}]}, "gloo has no option 'k'"),
    ],
)
def test_what_gloo_cannot_do_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    (tmp_path / "crowded.yaml").write_text(
        "name: crowded\nsites: {a: {}, b: {workers: 2}}\nlinks: [{endpoints: [a, b], rate: 50mbit}]\n"
    )
    (tmp_path / "e.yaml").write_text(GLOO.format(topology="pair"))
    with pytest.raises(InvalidFileError, match=message):
        open_experiment(tmp_path / "e.yaml", change)


def test_links_are_not_measured_while_gloo_has_its_turn(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(GLOO.format(topology="pair"))
    measured = {"world": "emulated", "awareness": {"estimator": "unbiased"}}
    gloo, ring = open_experiment(tmp_path / "e.yaml", measured).segments
    assert (gloo.library, gloo.awareness.on) == ("gloo", False)
    assert (ring.library, ring.awareness.on) == ("", True)


SPLIT = """
name: split
topology: triangle
training: {model: mlp-1000, batch: 32, iterations: 12, compute: {mean: 100ms, sites: {dc3: 400ms}}}
schedulers: [greedw, {name: greedw, batches: split, label: greedw-split}]
world: simulated
"""


def test_batches_split_by_speed_shorten_the_wait_for_a_slow_site(tmp_path: Path) -> None:
    experiment = experiment_from_text(SPLIT)
    assert [segment.batches for segment in experiment.segments] == ["equal", "split"]
    result = summarise_run(read_run(run_experiment(experiment, out=tmp_path)))
    equal, split = result.schedulers
    assert equal.idle is not None
    # Two of three wait 0.3 s, and what results come sooner to them.
    assert equal.idle.mean == pytest.approx(0.2, rel=0.1)
    near = pytest.approx(0.3, rel=0.1)
    assert equal.idle_of == {"dc1-0": near, "dc2-0": near, "dc3-0": 0}
    run = read_run(Path(result.path))
    first, *_, last = run.iterations["greedw-split"]
    assert first.idle_s[0] == near, "the first iteration cannot know"
    # 96 samples at 320, 320 and 80 a second: 43, 43 and 10 in about 0.13 s.
    assert last.ready_ns - run.iterations["greedw-split"][-2].done_ns < 0.15e9
    assert max(last.idle_s.values()) < 0.02
    assert split.iteration is not None
    assert equal.iteration is not None
    assert split.iteration.minimum < 0.4 * equal.iteration.minimum


def test_greedw_plans_for_each_collective_unless_told_otherwise() -> None:
    text = "name: x\ntopology: pair\ntraining: {model: mlp-1000}\n"
    text += "schedulers: [greedw, netstorm, {name: greedw, policy: {every: 5}, label: seldom}]\n"
    assert [segment.policy.every for segment in experiment_from_text(text).segments] == [1, 0, 5]


def test_a_model_without_batches_has_none_to_split() -> None:
    text = "name: x\ntopology: pair\ntraining: {model: tensor-1m, batches: split}\nschedulers: [greedw]\n"
    with pytest.raises(InvalidFileError, match="model tensor-1m has no batches to split"):
        experiment_from_text(text)


@pytest.mark.parametrize("world", ["simulated", "emulated"])
def test_overlap_needs_a_backward_pass(world: str) -> None:
    text = f"name: x\ntopology: pair\nworld: {world}\nschedulers: [netstorm]\n"
    with pytest.raises(InvalidFileError, match=r"training\.overlap: model tensor-1k has no backward pass"):
        experiment_from_text(text + "training: {model: tensor-1k, overlap: true}\n")
    assert experiment_from_text(text + "training: {model: mlp-1000, overlap: true}\n").spec.training.overlap
    with pytest.raises(InvalidFileError, match=r"schedulers\[0\].*: model tensor-1k has no backward pass"):
        entry = "[{name: star, overlap: true}]"
        experiment_from_text(text.replace("[netstorm]", entry) + "training: {model: tensor-1k}\n")
