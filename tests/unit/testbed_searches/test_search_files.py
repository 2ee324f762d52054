"""Experiment files with tuners: what is right, and what is wrong is named with its key and the fix."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.experiments.search_check import names_of, policies_of
from testbed.experiments.spec import LoadedExperiment, experiment_from_text, open_experiment
from testbed.searches.plan import alone_s, ordering_of, plan_searches, possible_sizes, trial_count
from topologies.errors import InvalidFileError

GOOD: dict[str, Any] = {
    "name": "s",
    "topology": "triangle",
    "training": {"model": "mlp-20k"},
    "schedulers": ["ring"],
    "tuner": {"options": {"trials": 4, "rungs": 2, "iterations": 1}, "space": {"lr": [0.1, 0.2]}},
    "policies": ["fair", "beamer"],
}


CUT = {"at": "1s", "link": "dc1-dc2", "action": "link-set", "rate": "1mbit"}


def load(**changes: Any) -> LoadedExperiment:
    tuner = changes.pop("of_tuner", None)
    data = {**GOOD, **changes}
    if tuner is not None:
        data["tuner"] = {**GOOD["tuner"], **tuner}
    return experiment_from_text(yaml.safe_dump({key: value for key, value in data.items() if value is not None}))


def test_turns_are_policies_and_one_tuner_may_stand_alone() -> None:
    loaded = load(repeats=2)
    assert [segment.label for segment in loaded.segments] == ["fair#1", "beamer#1", "fair#2", "beamer#2"]
    assert [segment.seed for segment in loaded.segments] == [1, 1, 2, 2]
    assert names_of(loaded.spec) == ("tuner1",)
    assert [policy.shown for policy in policies_of(load(policies=None).spec)] == [
        *("fair", "fifo_lm", "sincronia", "beamer")
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"of_tuner": {"kind": "halvign"}}, "unknown tuner 'halvign'.*halving"),
        ({"of_tuner": {"options": {"trials": 0}}}, "trials is 0"),
        ({"of_tuner": {"options": {"trials": 4, "rungs": 9}}}, "leave none for rung 9"),
        ({"of_tuner": {"options": {"trails": 4}}}, "no option 'trails'.*trials"),
        ({"of_tuner": {"space": {"lr": []}}}, "space.lr has nothing to choose from"),
        ({"of_tuner": {"space": {"lr": {"low": 1, "high": 0}}}}, "space.lr: from 1 to 0"),
        ({"of_tuner": {"space": {"width": [1]}}}, "'width' cannot be searched; what can: model"),
        ({"of_tuner": {"space": {"model": ["mlp-20k", "cnn"]}}}, "numpy trainer cannot train 'cnn'.*trainer: torch"),
        ({"of_tuner": {"space": {"model": ["tensor-1m"]}}}, "'tensor-1m' is no model that can be trained"),
        ({"of_tuner": {"space": {"optimizer": ["adam"]}}}, "numpy trainer has no optimizer 'adam'"),
        ({"of_tuner": {"space": {"batch": [0]}}}, "a batch of 0"),
        ({"of_tuner": {"space": {"lr": [-1.0]}}}, "a learning rate of -1.0"),
        ({"of_tuner": {"sampler": "grid", "space": {"lr": {"low": 0.1, "high": 1.0}}}}, "a grid over lr"),
        ({"of_tuner": {"kind": "pbt", "options": {}, "space": {"model": ["mlp-20k"]}}}, "model cannot be searched"),
        ({"of_tuner": {"sites": ["dc9"]}}, "no site 'dc9'"),
        ({"of_tuner": {"workers": 4}}, "4 workers, each at a site of its own, and 3 sites"),
        ({"policies": ["beemer"]}, "unknown ordering 'beemer'.*beamer"),
        ({"policies": ["fair", "fair"]}, "both be shown as 'fair'"),
        ({"policies": [{"name": "fifo_lm", "options": {"percentile": 0}}]}, "percentile 0"),
        ({"enforcement": "hope"}, "enforcement"),
        ({"schedulers": ["ring", "star"]}, "2 schedulers"),
        ({"schedulers": ["tsengine"]}, "decides per transfer"),
        ({"schedulers": ["gloo"]}, "gloo synchronises without the agents"),
        ({"tuner": None}, "no tuners whose coflows"),
        ({"tuners": [GOOD["tuner"]]}, "tuner or tuners, not both"),
        ({"world": "simulated", "trainer": "torch"}, "simulated world trains without torch"),
        ({"timeline": [CUT]}, "links do not change"),
        ({"training": {"model": "mlp-20k", "overlap": True}}, "all their gradients at once.*leave overlap out"),
    ],
)
def test_what_is_wrong_is_named_with_its_key_and_the_fix(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidFileError) as caught:
        load(**changes)
    text = f"{caught.value.message} {caught.value.hint}"
    assert re.search(said, text), text
    assert caught.value.exit_code == 2


def test_sites_are_drawn_once_and_alike_for_everybody() -> None:
    one, other = plan_searches(load()), plan_searches(load(policies=["fair"], repeats=3))
    places = {key: job.members for key, job in one.jobs.items()}
    assert places == {key: job.members for key, job in other.jobs.items()}
    assert len(one.jobs) == 4 and all(len(set(job.members)) == 2 for job in one.jobs.values())
    assert len({job.members for job in one.jobs.values()}) > 1, "several places"
    moved = plan_searches(load(seed=5))
    assert {key: job.members for key, job in moved.jobs.items()} != places


def test_only_the_sites_of_the_tuner_are_used() -> None:
    plan = plan_searches(load(of_tuner={"sites": ["dc2", "dc3"]}))
    assert {job.members for job in plan.jobs.values()} == {(1, 2)}


def test_loads_are_those_of_the_plan() -> None:
    """A ring of three over the hub of a star: 2 (W-1)/W of the model on every up and down link of its sites."""
    loaded = open_experiment("searches-study")
    plan = plan_searches(loaded)
    job = plan.jobs["tuner1", 0]
    assert len(job.members) == 3 and 0 not in job.members
    rate = 20e6 / 8
    assert len(job.loads) == 6 and {round(load * rate, 6) for load in job.loads.values()} == {round(4 / 3, 6)}
    assert sum(job.flows.values()) == pytest.approx(4.0)


def test_fifo_lm_gets_a_threshold_from_the_sizes_that_may_occur() -> None:
    loaded = open_experiment("searches-study")
    plan = plan_searches(loaded)
    sizes = sorted(possible_sizes(plan, loaded.spec))
    assert len(sizes) == 24 * 4
    threshold = ordering_of(plan, loaded.spec, "fifo_lm")["options"]["threshold"]
    assert sum(size <= threshold for size in sizes) >= 0.8 * len(sizes)
    assert ordering_of(plan, loaded.spec, "beamer") == {"name": "beamer", "options": {}}


@pytest.mark.parametrize(
    ("kind", "options", "trials"),
    [
        ("halving", {"trials": 8}, 8),
        ("hyperband", {"max_iterations": 9, "eta": 3}, 9 + 5 + 3),
        ("pbt", {"trials": 6}, 6),
        ("asha", {"trials": 7, "slots": 2}, 7),
        ("random", {"trials": 5, "wave": 2}, 5),
        ("grid", {}, 2),
    ],
)
def test_every_trial_of_every_kind_of_search_has_a_job(kind: str, options: dict[str, Any], trials: int) -> None:
    loaded = load(of_tuner={"kind": kind, "options": options})
    assert trial_count(loaded.spec.tuners[0]) == trials == len(plan_searches(loaded).jobs)


def test_a_stage_needs_its_links_and_its_longest_job() -> None:
    plan = plan_searches(load())
    jobs = [plan.jobs["tuner1", trial] for trial in range(2)]

    class Run:
        trial, iterations = 0, 3

    needs = [job.needs(Run(), 1e6, 0.5) for job in jobs]  # type: ignore[arg-type]
    alone = alone_s(needs)
    assert alone >= 3 * (0.5 + max(needs[0].loads.values())) and alone_s(needs[:1]) <= alone


def test_the_library_has_a_small_one_and_the_study(tmp_path: Path) -> None:
    small = open_experiment("searches")
    assert len(small.spec.tuners) == 2 and {trial_count(entry) for entry in small.spec.tuners} == {4}
    study = open_experiment("searches-study")
    assert len(study.spec.tuners) == 3 and len(study.turns) == 20
    first = {segment.shown for segment in study.turns[:4]}
    assert first == {"fair", "fifo_lm", "sincronia", "beamer"}, "interleaved, one of each a seed"
