"""A sweep: its points, what is done and stays done, and what its files say."""

from __future__ import annotations

import csv
import json
from datetime import date
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from testbed.cli import build
from testbed.cli.errors import exit_code_of
from testbed.cli.validate import kind_of
from testbed.experiments import sweep_run
from testbed.experiments.manifest import Manifest, read_manifest
from testbed.experiments.spec import experiment_from_text, open_experiment
from testbed.experiments.sweep import (
    Sweep,
    estimate,
    is_sweep,
    load_sweep,
    parse_axis,
    parse_setting,
    sweep_of,
)
from testbed.experiments.sweep_run import STATE, SweepDirectory, groups, run_sweep
from testbed.report.figures import looks_of
from testbed.report.sweep import cells, figure, schedulers_of, to_csv
from topologies.errors import InvalidFileError, RunFailedError, StormbedError, UsageError

EXPERIMENT = """
name: small
topology: pair
world: simulated
training: {model: tensor-100k, iterations: 2, chunk_elements: 10000}
schedulers: [star, netstorm]
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(EXPERIMENT)
    return tmp_path / "small.yaml"


def write(tmp_path: Path, **fields: object) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"name": "s", "experiment": "small.yaml", **fields}, sort_keys=False))
    return path


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("seed=1..3", (1, 2, 3)),
        ("seed=-1..1", (-1, 0, 1)),
        ("scale=0.5,1", (0.5, 1)),
        ("topology=pair,triangle", ("pair", "triangle")),
        ("schedulers=[star],[star, netstorm]", (["star"], ["star", "netstorm"])),
        ("dynamics={kind: netstorm, every: 4s},none", ({"kind": "netstorm", "every": "4s"}, "none")),
    ],
)
def test_an_axis_from_words(text: str, values: tuple[object, ...]) -> None:
    assert parse_axis(text) == (text.split("=", 1)[0], values)


@pytest.mark.parametrize("text", ["seed", "=1", "seed=", "seed=3..1", "seed=1..99999", "seed={"])
def test_an_axis_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError):
        parse_axis(text)


def test_a_setting_keeps_its_type() -> None:
    assert parse_setting("repeats=2") == ("repeats", 2)
    assert parse_setting("world=simulated") == ("world", "simulated")
    with pytest.raises(UsageError):
        parse_setting("world")


@given(st.dictionaries(st.sampled_from(["seed", "scale", "repeats", "order"]),
       st.lists(st.integers(1, 50), min_size=1, max_size=5, unique=True), min_size=1))  # fmt: skip
def test_points_are_every_combination_once(axes: dict[str, list[int]]) -> None:
    sweep = Sweep(name="s", experiment="e", axes={key: tuple(values) for key, values in axes.items()})
    points = list(sweep.points())
    assert len(points) == sweep.size == len({point.key for point in points})
    for key, values in axes.items():
        assert {point.values[key] for point in points} == set(values)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"axes": {"seed": []}}, "an axis without values"),
        ({"axes": {"seed": [1, 1]}}, "the same value twice"),
        ({"axes": {"seed": [1, date(2020, 1, 1)]}}, "line 6: axes.seed[1]: 2020-01-01 was read as a date; quote it"),
        ({"axes": {"Seed!": [1]}}, "no key of an experiment"),
        ({"axes": {"seed": [1]}, "set": {"seed": 2}}, "both an axis and set"),
        ({"axes": {"seed": list(range(101)), "repeats": list(range(1, 101))}}, "10100 points"),
        ({"axes": {"seed": [1]}, "axis": {}}, "unknown key 'axis'"),
        ({"axis": {"seed": [1]}}, "sweep.yaml, line 3: axis: unknown key 'axis'"),
        ({"axes": {}}, "axes: this map is empty; it needs at least one entry"),
        ({"axes": {"seed": [1]}, "experiment": "nosuch"}, "sweep.yaml, line 2: experiment: there is no experiment"),
        ({"axes": {"seed": [1]}, "experiment": "no.yaml"}, "line 2: experiment: there is no file no.yaml"),
        ({"axes": {"training.nosuch": [1]}}, "unknown key 'nosuch'"),
        ({"axes": {"scale": [1, -2]}}, "at scale=-2"),
        ({"axes": {"name.x": [1]}}, "name is 'small', not a map"),
        ({"axes": {"schedulers.2": ["star"]}}, "schedulers is a list of 2"),
    ],
)
def test_what_is_wrong_with_a_sweep_is_named(tmp_path: Path, small: Path, fields: dict, said: str) -> None:
    with pytest.raises(InvalidFileError) as caught:
        load_sweep(write(tmp_path, **fields))
    assert said in str(caught.value)


def test_dotted_keys_reach_into_maps_and_lists(small: Path) -> None:
    loaded = open_experiment(
        small, {"training.chunk_elements": 7, "training.compute.mean": "5ms", "schedulers.0": "ring"}
    )
    assert loaded.spec.training.chunk_elements == 7
    assert loaded.spec.training.compute.mean is not None
    assert loaded.segments[0].shown == "ring"


def test_a_sweep_runs_resumes_and_grows(tmp_path: Path, small: Path) -> None:
    path = write(tmp_path, axes={"training.chunk_elements": [10_000, 50_000], "seed": [1, 2]})
    sweep = load_sweep(path)
    directory = SweepDirectory(tmp_path / "out", sweep)
    said: list[str] = []
    rows = run_sweep(sweep, directory, say=said.append)
    assert [row["status"] for row in rows] == ["completed"] * 4
    assert any("point 2 of 4: training.chunk_elements=10000 seed=2" in line for line in said)
    for point, row in zip(sweep.points, rows, strict=True):
        manifest = json.loads((tmp_path / "out" / row["run"] / "manifest.json").read_text())
        assert manifest["experiment"]["seed"] == point.values["seed"]
        assert manifest["experiment"]["training"]["chunk_elements"] == point.values["training.chunk_elements"]
    # The same again: nothing runs. One value more: only its points run.
    runs = [row["run"] for row in rows]
    assert [row["run"] for row in run_sweep(sweep, SweepDirectory(tmp_path / "out", sweep))] == runs
    grown = load_sweep(write(tmp_path, axes={"training.chunk_elements": [10_000, 50_000], "seed": [1, 2, 3]}))
    said.clear()
    more = run_sweep(grown, SweepDirectory(tmp_path / "out", grown), say=said.append)
    assert said[0] == "4 of 6 points are done already"
    assert len(more) == 6 and {row["run"] for row in more} > set(runs)
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 6


def test_another_sweep_in_the_directory_is_refused(tmp_path: Path, small: Path) -> None:
    sweep = load_sweep(write(tmp_path, axes={"seed": [1]}))
    SweepDirectory(tmp_path / "out", sweep)
    small.write_text(EXPERIMENT.replace("iterations: 2", "iterations: 3"))
    with pytest.raises(UsageError, match="the experiment's file differs"):
        SweepDirectory(tmp_path / "out", load_sweep(write(tmp_path, axes={"seed": [1]})))
    with pytest.raises(UsageError, match="is not empty"):
        SweepDirectory(tmp_path, sweep)
    (tmp_path / "out" / STATE).write_text("{")
    with pytest.raises(InvalidFileError, match="cannot be read"):
        SweepDirectory(tmp_path / "out", sweep)


def test_a_point_that_fails_is_kept_and_tried_again(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = load_sweep(write(tmp_path, axes={"seed": [1, 2, 3]}))
    real = sweep_run.run_experiment

    def fails(experiment, **options):
        if experiment.spec.seed == 2:
            raise RunFailedError("no such luck")
        return real(experiment, **options)

    monkeypatch.setattr(sweep_run, "run_experiment", fails)
    rows = run_sweep(sweep, SweepDirectory(tmp_path / "out", sweep))
    assert [row["status"] for row in rows] == ["completed", "failed", "completed"]
    assert rows[1]["failure"] == "no such luck"
    monkeypatch.setattr(sweep_run, "run_experiment", real)
    rows = run_sweep(sweep, SweepDirectory(tmp_path / "out", sweep))
    assert [row["status"] for row in rows] == ["completed"] * 3
    assert "failure" not in rows[1]


def test_an_interrupt_keeps_what_is_done(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = load_sweep(write(tmp_path, axes={"seed": [1, 2, 3]}))
    real = sweep_run.run_experiment

    def interrupted(experiment, **options):
        if experiment.spec.seed == 2:
            raise KeyboardInterrupt
        return real(experiment, **options)

    monkeypatch.setattr(sweep_run, "run_experiment", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, SweepDirectory(tmp_path / "out", sweep))
    state = json.loads((tmp_path / "out" / STATE).read_text())
    assert [row["status"] for row in state["points"]] == ["completed", "pending", "pending"]


def test_points_of_one_network_share_a_testbed() -> None:
    text = EXPERIMENT.replace("world: simulated\n", "world: {world}\ntopology: {topology}\n").replace(
        "topology: pair\n", "", 1
    )

    def of(topology: str, world: str):
        return experiment_from_text(text.replace("{world}", world).replace("{topology}", topology))

    emulated = [of("pair", "emulated"), of("triangle", "emulated"), of("pair", "emulated")]
    assert groups(emulated) == [[0, 2], [1]]
    assert groups([of("pair", "simulated"), of("triangle", "simulated")]) == [[0, 1]]
    assert groups([]) == []


def test_the_estimate_says_from_what() -> None:
    assert estimate([], 5) == "no estimate before the first point ends"
    assert estimate([10.0, 10.0], 3) == "about 30 s left"
    assert estimate([10.0, 50.0], 4) == "about 2 min left; points took 10 s to 50 s"
    assert estimate([3600.0], 3) == "about 3.0 h left"


def test_rows_and_intervals_over_the_seeds() -> None:
    def scheduler(mean: float) -> dict:
        summary = {
            "count": 3,
            "mean": mean,
            "median": mean,
            "p95": mean,
            "min": mean,
            "max": mean,
            "ci95": [mean, mean],
        }
        return {
            "scheduler": "star", "synchronisation_s": summary, "iteration_s": None, "bound_s": 0.5,
            "bound_ratio": mean / 0.5, "carried_bytes_per_iteration": 10.0, "accuracy_ratio": None,
        }  # fmt: skip

    rows = [
        {"values": {"scale": scale, "seed": seed}, "status": "completed", "fidelity": "exact", "run": "r",
         "schedulers": [scheduler(mean)]}
        for scale, seed, mean in ((1, 1, 2.0), (1, 2, 4.0), (2, 1, 1.0))
    ]  # fmt: skip
    ((at, line),) = cells(rows, "scale").items()
    assert at == ("", "star")
    assert [(cell.place, cell.summary.mean, cell.bound_s) for cell in line] == [(1.0, 3.0, 0.5), (2.0, 1.0, 0.5)]
    # Student's t with one degree of freedom: 12.706 x sqrt(2)/sqrt(2).
    assert line[0].summary.interval == pytest.approx((3 - 12.7062, 3 + 12.7062), abs=1e-3)
    assert line[1].summary.interval == (1.0, 1.0)
    table = list(csv.DictReader(to_csv(["scale", "seed"], rows).splitlines()))
    assert [(row["scale"], row["seed"], row["synchronisation_s"]) for row in table] == [
        ("1", "1", "2.0"), ("1", "2", "4.0"), ("2", "1", "1.0"),
    ]  # fmt: skip


def test_the_command_writes_the_table_and_the_page(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "small.yaml", "--axis", "scale=0.5,1", "--axis", "seed=1,2", "--format", "json"]
    done = CliRunner().invoke(build(), words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [point["values"] for point in found["points"]] == [
        {"scale": scale, "seed": seed} for scale in (0.5, 1) for seed in (1, 2)
    ]
    times = [point["schedulers"][0]["synchronisation_s"]["mean"] for point in found["points"]]
    assert times[0] > 1.5 * times[2], "half the rates, nearly twice the time: the delay stays"
    folder = tmp_path / "sweeps" / "small-scale-seed"
    page = (folder / "sweep.html").read_text()
    assert "4 of 4 points" in page and page.count("<svg") == 1 and "<script" not in page
    assert len((folder / "results.csv").read_text().splitlines()) == 1 + 4 * 2
    # Again, from what is on disk alone: the same page, byte for byte.
    assert CliRunner().invoke(build(), words).exit_code == 0
    assert (folder / "sweep.html").read_text() == page


def test_a_failed_point_ends_with_5(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def fails(experiment, **options):
        raise StormbedError("broken")

    monkeypatch.setattr(sweep_run, "run_experiment", fails)
    words = ["sweep", "small.yaml", "--axis", "seed=1,2"]
    assert exit_code_of(lambda: build()(words, standalone_mode=False)) == 5


def test_dry_run_and_validate_list_without_running(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, axes={"seed": [1, 2]})
    done = CliRunner().invoke(build(), ["sweep", str(path), "--dry-run"])
    assert done.exit_code == 0 and "seed=1\nseed=2\n" in done.output
    assert not (tmp_path / "sweeps").exists()
    done = CliRunner().invoke(build(), ["validate", str(path)])
    assert "valid sweep 's' (2 points)" in done.output


def test_searches_are_run_and_not_swept(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match=r"searches: an experiment of searches.*cannot be swept") as caught:
        load_sweep(write(tmp_path, experiment="searches", axes={"seed": [1, 2]}))
    assert "testbed run searches --seed" in caught.value.hint
    assert caught.value.exit_code == 2


def swept(tmp_path: Path, small: Path, axes: dict[str, list]) -> tuple[list[dict], Manifest]:
    small.write_text(EXPERIMENT.replace("[star, netstorm]", "[packing, {name: packing, label: packing-fitted}]"))
    sweep = load_sweep(write(tmp_path, axes=axes))
    rows = run_sweep(sweep, SweepDirectory(tmp_path / "out", sweep))
    return rows, read_manifest(tmp_path / "out" / rows[0]["run"])


def test_schedulers_of_one_family_can_be_told_apart(tmp_path: Path, small: Path) -> None:
    rows, manifest = swept(tmp_path, small, {"scale": [0.5, 1]})
    looks = looks_of(schedulers_of(rows), manifest)
    first, second = looks["packing"], looks["packing-fitted"]
    assert (first.colour, first.marker) == (second.colour, second.marker)
    assert (first.line, first.hollow, second.line, second.hollow) == ("-", False, ":", True)
    six = looks_of(["packing", *(f"packing-{k}" for k in range(5))], manifest).values()
    assert len({(look.line, look.hollow) for look in six}) == 6
    drawn = figure(["scale"], rows, manifest)
    assert drawn is not None
    dotted = f"stroke-dasharray: 1.8,2.97; stroke-dashoffset: 0; stroke: {first.colour.lower()}"
    assert dotted in drawn.svg


def test_the_bound_of_a_single_value_is_drawn(tmp_path: Path, small: Path) -> None:
    rows, manifest = swept(tmp_path, small, {"scale": [1]})
    drawn = figure(["scale"], rows, manifest)
    assert drawn is not None and rows[0]["schedulers"][0]["bound_s"]
    # One mark on the panel, one in the legend.
    assert 'd="M 9 0 L -9 -0" style="stroke: var(--ink)' in drawn.svg
    assert drawn.svg.count('style="fill: var(--ink); stroke: var(--ink)') == 2


def test_a_misspelt_axes_is_told_as_such(tmp_path: Path, small: Path) -> None:
    path = write(tmp_path, axis={"seed": [1, 2]})
    assert is_sweep(path) and kind_of(str(path)) == "sweep" and not is_sweep(small)
    with pytest.raises(InvalidFileError, match="unknown key 'axis'") as caught:
        load_sweep(path)
    assert caught.value.hint == "did you mean axes?"


def test_an_axis_that_changes_nothing_is_refused(tmp_path: Path, small: Path) -> None:
    own = "[{name: star, iterations: 2}, {name: netstorm, iterations: 3}]"
    small.write_text(EXPERIMENT.replace("[star, netstorm]", own))
    axis = "training.iterations=2,4"
    with pytest.raises(UsageError, match=r"the axis training\.iterations changes nothing") as caught:
        sweep_of(str(small), ["seed=1,2", axis])
    assert "schedulers.0.iterations" in caught.value.hint
    with pytest.raises(InvalidFileError, match=r"line 6: axes.training.iterations: this axis changes nothing"):
        load_sweep(write(tmp_path, axes={"seed": [1], "training.iterations": [2, 4]}))
    assert len(sweep_of(str(small), ["schedulers.0.iterations=2,4"]).points) == 2
    # One scheduler that takes the training's number is enough for a sweep to be one.
    small.write_text(EXPERIMENT.replace("[star, netstorm]", "[{name: star, iterations: 2}, netstorm]"))
    assert len(sweep_of(str(small), [axis]).points) == 2


def test_a_key_that_is_axis_and_set_has_its_own_hint(small: Path) -> None:
    with pytest.raises(UsageError, match="scale is both an axis and set for all") as caught:
        sweep_of(str(small), ["scale=0.5,1"], {"scale": 1})
    assert caught.value.hint == "leave the axis scale out, or do not set it"
    with pytest.raises(UsageError, match="no key of an experiment") as caught:
        sweep_of(str(small), ["Seed=1,2"])
    assert caught.value.hint.startswith("for example --axis")
