"""Optuna's configurations for our searches."""

from __future__ import annotations

import sys

import pytest

from agents.search.base import TrialRun
from agents.search.registry import make_tuner
from agents.search.space import Space
from testbed.experiments.optuna_sampler import OptunaSampler
from topologies.errors import CannotHonourError

SPACE = Space.parse({"x": {"low": -4.0, "high": 4.0}, "n": {"low": 1, "high": 64, "log": True}, "c": ["a", "b"]})


def searched(seed: int) -> tuple[OptunaSampler, list[TrialRun]]:
    sampler = OptunaSampler(SPACE, seed, startup=5)
    tuner = make_tuner("hyperband", SPACE, {"max_iterations": 9}, sampler=sampler)
    runs: list[TrialRun] = []
    stages = list(tuner.start().stages)
    while stages:
        plan = stages.pop()
        for one in plan.runs:
            runs.append(one)
            score = None if one.trial == 3 else float(one.parameters["x"]) ** 2
            stages += tuner.report(plan.id, one.trial, score).stages
    assert tuner.done
    return sampler, runs


def test_a_search_over_optunas_configurations() -> None:
    optuna = pytest.importorskip("optuna", reason="optuna is not installed; unverified: the Optuna sampler")
    sampler, runs = searched(1)
    assert all(-4 <= one.parameters["x"] <= 4 and 1 <= one.parameters["n"] <= 64 for one in runs)
    assert {one.parameters["c"] for one in runs} == {"a", "b"}
    states = [trial.state for trial in sampler._study.trials]
    kinds = optuna.trial.TrialState
    # Brackets of 9, 5 and 3: one trial of the first two and all of the last reach the end, trial 3 failed.
    assert (states.count(kinds.COMPLETE), states.count(kinds.FAIL), states.count(kinds.PRUNED)) == (5, 1, 11)
    assert sampler._study.trials[3].state == kinds.FAIL
    complete = [trial for trial in sampler._study.trials if trial.state == kinds.COMPLETE]
    assert all(trial.value == trial.params["x"] ** 2 for trial in complete)
    assert searched(1)[1] == runs
    assert searched(2)[1] != runs


def test_without_optuna_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(CannotHonourError, match=r"stormbed\[search\]"):
        OptunaSampler(SPACE, 1)
