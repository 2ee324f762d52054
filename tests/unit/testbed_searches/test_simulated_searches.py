"""Searches in the simulated world: real training, stages with barriers, and reports as of any experiment."""

from __future__ import annotations

import io
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from agents.coflow.registry import ordering_names
from testbed.experiments.run import run_experiment
from testbed.experiments.spec import LoadedExperiment, experiment_from_text, open_experiment
from testbed.report.compare import compare_runs, comparison_to_json
from testbed.report.compare_page import render_compare_page
from testbed.report.format import NONE, interval
from testbed.report.html import render_page
from testbed.report.json_form import result_to_json
from testbed.report.measurements import read_run
from testbed.report.searches import SearchMeasurements, read_searches, summarise_searches
from testbed.report.stats import summarise
from testbed.report.summary import summarise_run
from testbed.report.text import render_comparison
from topologies.errors import CannotHonourError

SMALL: dict[str, Any] = {
    "name": "s",
    "topology": "triangle",
    "scale": 0.1,
    "world": "simulated",
    "training": {"model": "mlp-4k", "batch": 8, "compute": {"mean": "20ms"}, "chunk_elements": 2000},
    "schedulers": ["ring"],
}


def experiment(**changes: Any) -> LoadedExperiment:
    return experiment_from_text(yaml.safe_dump({**SMALL, **changes}))


def halving(**changes: Any) -> dict[str, Any]:
    options = {"trials": 4, "rungs": 3, "iterations": 1}
    return {"options": options, "space": {"lr": {"low": 0.01, "high": 0.5, "log": True}}, **changes}


def run(loaded: LoadedExperiment, out: Path) -> tuple[Path, SearchMeasurements]:
    path = run_experiment(loaded, out=out)
    problems: list[str] = []
    found = read_searches(path, problems)
    assert problems == []
    return path, found


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SearchMeasurements]:
    loaded = experiment(
        tuners=[halving(), halving(name="wide", workers=3)], policies=["fair", "sincronia", "beamer"], repeats=3
    )
    return run(loaded, tmp_path_factory.mktemp("runs"))


def test_stages_are_rungs_that_end_with_their_last_trial(searched: tuple[Path, SearchMeasurements]) -> None:
    _, found = searched
    assert len(found.stages) == 3 * 3 * 2 * 3 and all(stage.barrier for stage in found.stages)
    for stage in found.stages:
        key = stage.segment, stage.tuner, stage.stage
        trials = [row for row in found.trials if (row.segment, row.tuner, row.stage) == key]
        assert len(trials) == stage.trials == (4, 2, 1)[stage.rung]
        assert stage.end_s == pytest.approx(max(row.end_s for row in trials), abs=1e-6)
        assert stage.sct_s >= stage.alone_s * 0.999
    assert len(found.coflows) == 9 * 2 * (4 + 2 * 1 + 1 * 2)


def test_survivors_are_the_best_by_real_training(searched: tuple[Path, SearchMeasurements]) -> None:
    _, found = searched
    for segment in {row.segment for row in found.stages}:
        rows = [row for row in found.trials if row.segment == segment and row.tuner == "wide"]
        first = sorted((row.score, row.trial) for row in rows if row.stage == 0)
        assert {trial for _, trial in first[:2]} == {row.trial for row in rows if row.stage == 1}
        assert len({score for score, _ in first}) == 4, "four configurations, four losses"


def test_every_policy_of_a_repeat_has_the_very_same_searches(searched: tuple[Path, SearchMeasurements]) -> None:
    _, found = searched

    def trials(segment: str) -> set[tuple[Any, ...]]:
        rows = [row for row in found.trials if row.segment == segment]
        return {(r.tuner, r.stage, r.trial, r.parameters, r.sites, r.score) for r in rows}

    assert trials("fair#1") == trials("beamer#1") == trials("sincronia#1") != trials("fair#2")
    assert {row[4] for row in trials("fair#1")} == {row[4] for row in trials("fair#2")}, "the same sites"


def test_the_report_compares_policies_repeat_by_repeat(searched: tuple[Path, SearchMeasurements]) -> None:
    path, found = searched
    result = summarise_run(read_run(path))
    assert [row.policy for row in result.policies] == ["fair", "sincronia", "beamer"] and result.schedulers == ()
    fair, _, beamer = result.policies
    assert fair.first_ratio is not None and fair.first_ratio.mean == 1 and fair.stage is not None
    ratios = []
    for repeat in (1, 2, 3):
        means = {}
        for policy in ("fair", "beamer"):
            times = [row.sct_s for row in found.stages if row.segment == f"{policy}#{repeat}"]
            means[policy] = sum(times) / len(times)
        ratios.append(means["beamer"] / means["fair"])
    assert beamer.first_ratio is not None
    assert beamer.first_ratio.mean == pytest.approx(sum(ratios) / 3) and beamer.first_ratio.interval is not None
    plain = json.loads(json.dumps(result_to_json(result)))["policies"][0]
    assert plain["stage_completion_s"]["count"] == 18 and plain["bound_ratio"] >= 1
    assert 0 < plain["mean_utilisation_ratio"] <= plain["busiest_link"]["utilisation_ratio"] <= 1.001
    page = render_page(path)
    assert "SCT mean s" in page and "sincronia" in page


def test_two_runs_are_compared_policy_by_policy(searched: tuple[Path, SearchMeasurements], tmp_path: Path) -> None:
    path, _ = searched
    faster, _ = run(experiment(scale=0.2, tuners=[halving()], policies=["beamer", "fair"]), tmp_path)
    one, other = summarise_run(read_run(path)), summarise_run(read_run(faster))
    comparison = compare_runs(one, other)
    assert comparison.shared and comparison.rows == ()
    assert [row.policy for row in comparison.policies] == ["fair", "sincronia", "beamer"]
    assert comparison.policies[1].stage_ratio is None and comparison.policies[1].stage_b_s is None
    ratio = comparison.policies[0].stage_ratio
    assert ratio is not None and ratio < 1, "twice the rates and half the searches"
    out = io.StringIO()
    Console(file=out, width=160).print(render_comparison(comparison))
    assert f"{ratio:.2f}" in out.getvalue() and "SCT" in out.getvalue()
    assert comparison_to_json(comparison)["policies"][0]["stage_completion_ratio"] == ratio
    page = render_compare_page(comparison)
    assert f"{ratio:.2f}" in page and "A SCT s" in page and "sincronia" in page
    assert "Synchronisation time" not in page, "no table without rows"


def test_one_repeat_has_no_interval_and_two_have_that_of_their_means(
    searched: tuple[Path, SearchMeasurements],
) -> None:
    path, found = searched
    manifest = read_run(path).manifest
    for repeats in (1, 2):
        kept = tuple(segment for segment in manifest.segments if segment.repeat < repeats)
        fair = summarise_searches(manifest.model_copy(update={"segments": kept}), found, [])[0]
        for summary in (fair.stage, fair.job, fair.coflow):
            assert summary is not None and summary.count > repeats
            assert (summary.interval is None) == (repeats == 1)
            assert (interval(summary) == NONE) == (repeats == 1)
    means = [statistics.fmean(r.sct_s for r in found.stages if r.segment == f"fair#{n}") for n in (1, 2)]
    assert fair.stage is not None and fair.stage.interval is not None
    of_means = summarise(means)
    assert of_means is not None and fair.stage.interval == pytest.approx(of_means.interval)


def test_a_missing_package_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {**SMALL["training"], "data": "digits"}
    loaded = experiment(training=training, tuner=halving())
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(CannotHonourError, match="scikit-learn") as caught:
        run_experiment(loaded, out=tmp_path / "runs")
    assert caught.value.hint == "pip install scikit-learn"
    assert not (tmp_path / "runs").exists()


def test_the_same_file_gives_the_same_run(tmp_path: Path) -> None:
    loaded = experiment(tuner=halving(), policies=["beamer"])
    assert run(loaded, tmp_path / "a")[1] == run(loaded, tmp_path / "b")[1]


@pytest.mark.parametrize(
    ("kind", "options", "stages"),
    [
        ("hyperband", {"max_iterations": 4, "eta": 2}, 3 + 2 + 1),
        ("pbt", {"trials": 4, "iterations": 1, "intervals": 3}, 3),
        ("random", {"trials": 3, "iterations": 2}, 1),
        ("asha", {"trials": 4, "slots": 2, "eta": 2, "rungs": 2}, 6),
    ],
)
def test_every_kind_of_search_runs(tmp_path: Path, kind: str, options: dict[str, Any], stages: int) -> None:
    loaded = experiment(tuner=halving(kind=kind, options=options), policies=["beamer"])
    path, found = run(loaded, tmp_path)
    assert len(found.stages) == stages
    assert all(bool(row.barrier) == (kind != "asha") for row in found.stages)
    if kind == "pbt":
        # A copied state goes on: every interval begins where the one before it ended.
        assert {(row.stage, row.from_iteration, row.to_iteration) for row in found.trials} == {
            (0, 0, 1),
            (1, 1, 2),
            (2, 2, 3),
        }
    assert summarise_run(read_run(path)).policies[0].barrier == (kind != "asha")


def test_every_ordering_can_be_a_policy(tmp_path: Path) -> None:
    loaded = experiment(tuners=[halving(), halving()], policies=list(ordering_names()))
    path, found = run(loaded, tmp_path)
    assert {row.segment for row in found.stages} == set(ordering_names())
    assert all(row.turns == row.completed_turns == 1 for row in summarise_run(read_run(path)).policies)


def test_training_that_diverges_is_a_trial_that_failed(tmp_path: Path) -> None:
    tuner = halving(options={"trials": 2, "rungs": 1, "iterations": 12}, space={"lr": [1e20]})
    _, found = run(experiment(tuner=tuner, policies=["fair"]), tmp_path)
    assert [row.score for row in found.trials] == [None, None] and len(found.stages) == 1


def test_a_damaged_row_is_a_named_problem(searched: tuple[Path, SearchMeasurements], tmp_path: Path) -> None:
    path, _ = searched
    copy = tmp_path / "stages.csv"
    copy.write_text(path.joinpath("stages.csv").read_text() + "fair,wide,x,0,0,1,1,0,0,0\n")
    problems: list[str] = []
    assert len(read_searches(tmp_path, problems).stages) == 54
    assert problems == ["stages.csv: line 56 cannot be read"]


def test_the_shipped_experiment_runs_without_root(tmp_path: Path) -> None:
    _, found = run(open_experiment("searches", {"world": "simulated"}), tmp_path)
    assert {row.tuner for row in found.stages} == {"tuner1", "tuner2"} and len(found.stages) == 2 * 2 * 2
