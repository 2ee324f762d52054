"""Searches stage by stage, against hand-computed rungs and survivors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.search.base import Goal, Outcome, Parameters, SearchError, StagePlan, Step, TrialRun, Tuner
from agents.search.halving import HalvingRules, Hyperband, HyperbandRules
from agents.search.population import PopulationRules
from agents.search.registry import has_barrier, make_rules, make_tuner, tuner_names
from agents.search.samplers import RandomSampler
from agents.search.space import Space
from topologies.errors import UsageError

SPACE = Space.parse({"lr": {"low": 0.001, "high": 0.1, "log": True}, "batch": [16, 32, 64]})


class Heard(RandomSampler):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(SPACE, 1)
        self.reports: list[tuple[int, int, float]] = []
        self.ends: dict[int, Outcome] = {}

    def report(self, trial: int, iterations: int, score: float) -> None:
        self.reports.append((trial, iterations, score))

    def end(self, trial: int, outcome: Outcome) -> None:
        assert trial not in self.ends
        self.ends[trial] = outcome


Score = Callable[[TrialRun], float | None]


def run(tuner: Tuner, score: Score, backwards: bool = False) -> tuple[list[StagePlan], list[int]]:
    """All stages in the order in which they began, and the trials in the order in which they stopped."""
    stages: list[StagePlan] = []
    stopped: list[int] = []
    waiting = list(tuner.start().stages)
    while waiting:
        plan = waiting.pop(0)
        stages.append(plan)
        for trial_run in reversed(plan.runs) if backwards else plan.runs:
            assert not tuner.done
            step = tuner.report(plan.id, trial_run.trial, score(trial_run))
            waiting += step.stages
            stopped += step.stopped
        assert step.ended == (plan.id,)
    assert tuner.done
    assert not tuner.running
    return stages, stopped


def shape(stages: list[StagePlan]) -> list[tuple[int, int, int]]:
    """(trials, start, end) of every stage."""
    return [(len(plan.runs), plan.runs[0].start, plan.runs[0].end) for plan in stages]


def by_number(trial_run: TrialRun) -> float:
    return float(trial_run.trial)


def test_halving_keeps_the_best_half_and_goes_on_from_their_state() -> None:
    scores = [5.0, 1.0, 7.0, 3.0, 2.0, 8.0, 6.0, 4.0]
    heard = Heard()
    tuner = make_tuner("halving", SPACE, sampler=heard)
    stages, stopped = run(tuner, lambda one: scores[one.trial])
    assert shape(stages) == [(8, 0, 10), (4, 10, 20), (2, 20, 40), (1, 40, 80)]
    assert [[one.trial for one in plan.runs] for plan in stages] == [
        list(range(8)),
        [1, 3, 4, 7],
        [1, 4],
        [1],
    ]
    assert [one.source for one in stages[0].runs] == [None] * 8
    assert [one.source for one in stages[1].runs] == [1, 3, 4, 7]
    assert stopped == [0, 2, 5, 6, 3, 7, 4, 1]
    assert [plan.id for plan in stages] == [0, 1, 2, 3]
    assert tuner.best is not None
    assert (tuner.best.trial, tuner.best.iterations, tuner.best.score) == (1, 10, 1.0)
    assert heard.ends == {**dict.fromkeys((0, 2, 3, 4, 5, 6, 7), "stopped"), 1: "complete"}
    assert [entry for entry in heard.reports if entry[0] == 1] == [(1, n, 1.0) for n in (10, 20, 40, 80)]


def test_halving_from_scratch_trains_every_rung_in_full() -> None:
    stages, _ = run(make_tuner("halving", SPACE, {"trials": 4, "rungs": 3, "resume": False}), by_number)
    assert shape(stages) == [(4, 0, 10), (2, 0, 20), (1, 0, 40)]
    assert all(one.source is None for plan in stages for one in plan.runs)


def test_larger_scores_can_be_better_and_equal_ones_go_by_number() -> None:
    stages, _ = run(make_tuner("halving", SPACE, {"trials": 4, "rungs": 2}, goal="max"), by_number)
    assert [one.trial for one in stages[1].runs] == [2, 3]
    stages, _ = run(make_tuner("halving", SPACE, {"trials": 4, "rungs": 2}, goal="max"), lambda one: 1.0, True)
    assert [one.trial for one in stages[1].runs] == [0, 1]


def test_hyperband_of_81_and_3_has_the_rungs_of_the_paper() -> None:
    # Algorithm 1 of the paper by hand: trials (iterations) per rung, R = 81, eta = 3, B = 5 R.
    by_hand = [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]
    brackets = HyperbandRules(81, 3).brackets()
    assert [[(rung.trials, rung.end) for rung in bracket] for bracket in brackets] == by_hand
    tuner = make_tuner("hyperband", SPACE)
    stages, _ = run(tuner, by_number)
    assert [(len(plan.runs), plan.runs[0].end) for plan in stages] == [pair for own in by_hand for pair in own]
    assert [(rung.trials, rung.start, rung.end) for rung in tuner.rungs()] == shape(stages)
    # Every bracket has trials of its own, numbered on.
    assert [min(one.trial for one in plan.runs) for plan in stages if plan.rung == 0] == [0, 81, 115, 130, 138]


def test_what_can_begin_only_after_a_stage() -> None:
    def after(name: str, options: dict[str, Any]) -> list[list[tuple[int, int, int]]]:
        tuner = make_tuner(name, SPACE, options)
        stages = tuner.start().stages
        return [[(r.trials, r.start, r.end) for r in tuner.after(plan.id)] for plan in stages]

    assert after("halving", {"rungs": 3}) == [[(4, 10, 20), (2, 20, 40)]]
    assert after("hyperband", {"max_iterations": 3}) == [[(1, 1, 3), (2, 0, 3)]]
    assert after("hyperband", {"max_iterations": 3, "together": True}) == [[(1, 1, 3)], []]
    assert after("random", {"trials": 5, "wave": 3}) == [[(2, 0, 10)]]
    assert after("asha", {"slots": 1}) == [[]]
    with pytest.raises(SearchError, match="stage 3 is not under way"):
        make_tuner("halving", SPACE).after(3)


def test_hyperband_rounds_down_what_is_no_power_and_needs_no_logarithm() -> None:
    brackets = HyperbandRules(100, 3).brackets()
    assert [rung.end for rung in brackets[0]] == [1, 3, 11, 33, 100]
    # log(243) / log(3) is 4.999... in floating point: a bracket would be lost.
    assert len(HyperbandRules(243, 3).brackets()) == 6
    assert [[(r.trials, r.end) for r in own] for own in HyperbandRules(1, 2).brackets()] == [[(1, 1)]]


def test_hyperband_can_run_all_brackets_at_once() -> None:
    tuner = make_tuner("hyperband", SPACE, {"max_iterations": 9, "together": True})
    first = tuner.start().stages
    assert shape(list(first)) == [(9, 0, 1), (5, 0, 3), (3, 0, 9)]
    assert sorted(tuner.running) == [0, 1, 2]
    step = Step()
    for one in first[1].runs:
        step = tuner.report(first[1].id, one.trial, by_number(one))
    assert (step.ended, shape(list(step.stages))) == ((1,), [(1, 3, 9)])


def test_a_failed_trial_never_goes_on() -> None:
    heard = Heard()
    scores = [None, math.nan, math.inf, 4.0, 3.0, 2.0, 1.0, None]
    tuner = make_tuner("halving", SPACE, {"rungs": 3}, sampler=heard)
    stages, _ = run(tuner, lambda one: scores[one.trial])
    assert [[one.trial for one in plan.runs] for plan in stages[1:]] == [[3, 4, 5, 6], [5, 6]]
    assert {trial for trial, outcome in heard.ends.items() if outcome == "failed"} == {0, 1, 2, 7}
    # Fewer than the rung has places for: those that are left.
    stages, _ = run(make_tuner("halving", SPACE), lambda one: 1.0 if one.trial == 5 else None)
    assert [len(plan.runs) for plan in stages] == [8, 1, 1, 1]


def test_where_all_trials_fail_the_bracket_ends() -> None:
    tuner = make_tuner("halving", SPACE)
    stages, stopped = run(tuner, lambda one: None)
    assert (len(stages), stopped, tuner.best) == (1, list(range(8)), None)
    stages, _ = run(make_tuner("hyperband", SPACE, {"max_iterations": 9}), lambda one: None)
    assert shape(stages) == [(9, 0, 1), (5, 0, 3), (3, 0, 9)]


def test_population_replaces_the_worst_quarter_by_the_best() -> None:
    heard = Heard()
    tuner = make_tuner("pbt", SPACE, {"intervals": 2}, seed=3, sampler=heard)
    first, second = run(tuner, by_number)[0]
    assert (shape([first]), shape([second])) == ([(8, 0, 10)], [(8, 10, 20)])
    assert [one.source for one in second.runs[:6]] == list(range(6))
    assert {one.source for one in second.runs[6:]} <= {0, 1}
    for one in second.runs[6:]:
        assert one.source is not None
        copied = first.runs[one.source].parameters
        assert one.parameters != copied
        # An untouched range is scaled; a drawn one lies within the space.
        assert 0.001 <= one.parameters["lr"] <= 0.1
        assert one.parameters["batch"] in (16, 32, 64)
    assert [one.parameters for one in second.runs[:6]] == [one.parameters for one in first.runs[:6]]
    # What trials 6 and 7 score from now on is not their first configuration's.
    assert {heard.ends[trial] for trial in (6, 7)} == {"stopped"}
    assert [entry[:2] for entry in heard.reports if entry[0] >= 6] == [(6, 10), (7, 10)]


def test_explore_multiplies_or_draws_anew() -> None:
    space = Space.parse({"lr": {"low": 0.001, "high": 0.1, "log": True}})
    for seed in range(20):
        options = {"intervals": 2, "trials": 2, "resample": 0}
        first, second = run(make_tuner("pbt", space, options, seed=seed), by_number)[0]
        factor = second.runs[1].parameters["lr"] / first.runs[0].parameters["lr"]
        clipped = second.runs[1].parameters["lr"] in (0.001, 0.1)
        assert clipped or factor == pytest.approx(0.8) or factor == pytest.approx(1.2)
    options = {"intervals": 2, "trials": 2, "resample": 1}
    factors = set()
    for seed in range(20):
        first, second = run(make_tuner("pbt", space, options, seed=seed), by_number)[0]
        factors.add(round(second.runs[1].parameters["lr"] / first.runs[0].parameters["lr"], 3))
    assert len(factors) > 10


def test_population_is_a_matter_of_its_seed() -> None:
    def replaced(seed: int) -> list[TrialRun]:
        tuner = make_tuner("pbt", SPACE, {"intervals": 2}, seed=seed, sampler=Heard())
        return list(run(tuner, by_number)[0][1].runs[6:])

    assert replaced(3) == replaced(3)
    assert len({tuple(one.source for one in replaced(seed)) for seed in range(10)}) > 1
    # In whatever order the trials report.
    backwards = make_tuner("pbt", SPACE, {"intervals": 2}, seed=3, sampler=Heard())
    assert list(run(backwards, by_number, True)[0][1].runs[6:]) == replaced(3)


def test_population_replaces_failed_trials_first() -> None:
    tuner = make_tuner("pbt", SPACE, {"trials": 4, "intervals": 2, "quantile": 0.5})
    _, second = run(tuner, lambda one: None if one.trial in (0, 1) and one.end == 10 else float(one.trial))[0]
    assert [one.source in (2, 3) for one in second.runs] == [True] * 4
    assert [one.source for one in second.runs[2:]] == [2, 3]
    stages, stopped = run(make_tuner("pbt", SPACE, {"trials": 2}), lambda one: None)
    assert (len(stages), stopped) == (1, [0, 1])
    # Nobody is exchanged at a quantile of 0.
    _, second = run(make_tuner("pbt", SPACE, {"intervals": 2, "quantile": 0}), by_number)[0]
    assert [one.source for one in second.runs] == list(range(8))


def test_asha_promotes_as_soon_as_it_can() -> None:
    # eta 2, one slot: 0 ends; with 1 rung 0 has two, its best half (trial 1) goes on; 2 changes nothing; ...
    scores = [4.0, 3.0, 2.0, 1.0]
    heard = Heard()
    tuner = make_tuner(
        "asha", SPACE, {"trials": 4, "slots": 1, "eta": 2, "rungs": 3, "iterations": 5}, sampler=heard
    )
    stages, stopped = run(tuner, lambda one: scores[one.trial])
    assert [(plan.runs[0].trial, plan.rung, plan.runs[0].start, plan.runs[0].end) for plan in stages] == [
        (0, 0, 0, 5),
        (1, 0, 0, 5),
        (1, 1, 5, 10),
        (2, 0, 0, 5),
        # One of three may go on, and it is trial 2 now.
        (2, 1, 5, 10),
        # Two have reached rung 1, the better goes to the top.
        (2, 2, 10, 20),
        (3, 0, 0, 5),
        (3, 1, 5, 10),
        (3, 2, 10, 20),
    ]
    assert not any(plan.barrier for plan in stages)
    assert stopped == [0, 1, 2, 3]
    assert heard.ends == {0: "stopped", 1: "stopped", 2: "complete", 3: "complete"}


def test_asha_keeps_its_slots_busy() -> None:
    tuner = make_tuner("asha", SPACE, {"trials": 20, "slots": 3, "eta": 2, "rungs": 3})
    waiting = list(tuner.start().stages)
    assert len(waiting) == 3
    while waiting:
        plan = waiting.pop()
        waiting += tuner.report(plan.id, plan.runs[0].trial, float(plan.runs[0].trial)).stages
        assert len(waiting) == len(tuner.running) <= 3
    assert tuner.done
    failing = make_tuner("asha", SPACE, {"trials": 5, "slots": 2, "eta": 2})
    stages, _ = run(failing, lambda one: None)
    assert [plan.rung for plan in stages] == [0] * 5


def test_only_asha_has_no_barrier() -> None:
    assert [name for name in tuner_names() if not has_barrier(name)] == ["asha"]
    for name in tuner_names():
        tuner = make_tuner(name, Space.parse({"batch": [16, 32]}), {"trials": 2} if name == "random" else None)
        assert isinstance(tuner, Tuner)
        assert (tuner.name, tuner.barrier) == (name, has_barrier(name))


def test_random_in_waves_and_the_whole_grid() -> None:
    stages, stopped = run(make_tuner("random", SPACE, {"trials": 5, "wave": 2, "iterations": 7}), by_number)
    assert shape(stages) == [(2, 0, 7), (2, 0, 7), (1, 0, 7)]
    assert stopped == [0, 1, 2, 3, 4]
    grid = Space.parse({"batch": [16, 32], "momentum": 0.9, "opt": ["sgd", "adam"]})
    tuner = make_tuner("grid", grid)
    (stage,) = run(tuner, by_number)[0]
    assert [tuple(one.parameters.values()) for one in stage.runs] == [
        (16, 0.9, "sgd"),
        (16, 0.9, "adam"),
        (32, 0.9, "sgd"),
        (32, 0.9, "adam"),
    ]
    assert [len(plan.runs) for plan in run(make_tuner("grid", grid, {"trials": 3}), by_number)[0]] == [3]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["halving", "hyperband", "pbt", "asha", "random"]),
    st.integers(0, 1000),
    st.sampled_from(["min", "max"]),
    st.booleans(),
)
def test_every_search_ends_and_every_trial_ends_once(name: str, seed: int, goal: Goal, failing: bool) -> None:
    options: dict[str, dict[str, Any]] = {
        "hyperband": {"max_iterations": 9, "together": bool(seed % 2)},
        "random": {"trials": 7, "wave": 3},
        "asha": {"trials": 9, "eta": 2},
    }
    heard = Heard()
    tuner = make_tuner(name, SPACE, options.get(name), goal=goal, seed=seed, sampler=heard)

    def score(one: TrialRun) -> float | None:
        value = (one.trial * 7919 + one.end * 104729 + seed) % 97
        return None if failing and value < 10 else float(value)

    stages, stopped = run(tuner, score, bool(seed % 3))
    assert sorted(stopped) == sorted(set(stopped)) == sorted(heard.ends) == list(range(len(heard.ends)))
    reached: dict[int, int] = {}
    for plan in stages:
        for one in plan.runs:
            # A state is only taken up where its owner left it.
            assert one.start == (0 if one.source is None else reached[one.source])
        reached |= {one.trial: one.end for one in plan.runs}
    if not failing and tuner.barrier:
        counts = sorted((plan.bracket, plan.rung, len(plan.runs), plan.runs[0].end) for plan in stages)
        assert counts == sorted((r.bracket, r.rung, r.trials, r.end) for r in tuner.rungs())
    if tuner.best is not None:
        known = [value for plan in stages for one in plan.runs if (value := score(one)) is not None]
        assert tuner.best.score == (min(known) if goal == "min" else max(known))


def test_reports_that_do_not_belong_are_refused() -> None:
    tuner = make_tuner("halving", SPACE)
    (stage,) = tuner.start().stages
    tuner.report(stage.id, 0, 1.0)
    for number, trial in ((stage.id, 0), (stage.id, 8), (7, 1)):
        with pytest.raises(SearchError, match=f"trial {trial} is not under way in stage {number}"):
            tuner.report(number, trial, 1.0)
    with pytest.raises(SearchError, match="halving has started already"):
        tuner.start()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: HalvingRules(trials=3), "3 trials leave none for rung 4 at eta 2 (at least 8 trials"),
        (lambda: HalvingRules(trials=0), "halving: trials is 0"),
        (lambda: HalvingRules(eta=1), "halving: eta is 1"),
        (lambda: HalvingRules(iterations=2.5), "halving: iterations is 2.5"),  # type: ignore[arg-type]
        (lambda: HyperbandRules(eta=True), "hyperband: eta is True"),
        (lambda: PopulationRules(trials=1), "pbt: trials is 1"),
        (lambda: PopulationRules(quantile=0.6), "pbt: quantile is 0.6"),
        (lambda: make_tuner("asha", SPACE, {"slots": 0}), "asha: slots is 0"),
        (lambda: make_tuner("random", SPACE), "how many trials"),
        (lambda: make_tuner("grid", SPACE), "a grid over lr, which is a range"),
        (lambda: make_tuner("grid", Space.parse({"a": [1]}), {"trials": 2}), "grid has 1 configurations"),
        (lambda: make_tuner("grid", SPACE, sampler=Heard()), "grid takes its configurations from the grid"),
        (lambda: make_tuner("halving", SPACE, goal="best"), "a goal 'best'"),  # type: ignore[arg-type]
        (lambda: StagePlan(4, 0, 0, ()), "stage 4 has no jobs"),
        (lambda: StagePlan(4, 0, 0, (TrialRun(1, {}, 5, 5),)), "trial 1 would go from iteration 5 to 5"),
    ],
)
def test_searches_that_make_no_sense_are_named(make: Callable[[], Any], says: str) -> None:
    def begin() -> None:
        made = make()
        if isinstance(made, Tuner):
            made.start()

    with pytest.raises(SearchError) as error:
        begin()
    assert says in str(error.value)
    assert error.value.exit_code == 2


def test_unknown_names_are_named() -> None:
    with pytest.raises(UsageError, match=r"unknown tuner 'hiperband' \(did you mean hyperband\?\)"):
        make_rules("hiperband")
    with pytest.raises(UsageError, match=r"halving has no option 'rung' \(did you mean rungs\?\)"):
        make_rules("halving", {"rung": 3})
    assert isinstance(make_tuner("hyperband", SPACE), Hyperband)


def test_parameters_are_the_samplers() -> None:
    asked: list[Parameters] = [RandomSampler(SPACE, 9).ask(k) for k in range(8)]
    (stage,) = make_tuner("halving", SPACE, seed=9).start().stages
    assert [one.parameters for one in stage.runs] == asked
