"""Parameters: parsing, drawing, perturbing."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from agents.search.base import SearchError
from agents.search.samplers import ListSampler, RandomSampler
from agents.search.space import Choice, Range, Space


def test_plain_values_become_domains() -> None:
    space = Space.parse(
        {
            "lr": {"low": 1e-3, "high": 1, "log": True},
            "layers": {"low": 1, "high": 4},
            "batch": [16, 32],
            "optimiser": "sgd",
            "nesterov": [True, False],
        }
    )
    assert space.domains == {
        "lr": Range(1e-3, 1, log=True),
        "layers": Range(1, 4, whole=True),
        "batch": Choice((16, 32)),
        "optimiser": Choice(("sgd",)),
        "nesterov": Choice((True, False)),
    }


def test_draws_are_spread_as_declared() -> None:
    rng = Random(1)
    log = [Range(1e-4, 1.0, log=True).sample(rng) for _ in range(4000)]
    assert all(1e-4 <= float(value) <= 1 for value in log)
    assert sum(float(value) < 1e-2 for value in log) / 4000 == pytest.approx(0.5, abs=0.04)
    plain = [float(Range(2.0, 4.0).sample(rng)) for _ in range(4000)]
    assert sum(plain) / 4000 == pytest.approx(3, abs=0.05)
    whole = [Range(1, 8, log=True, whole=True).sample(rng) for _ in range(4000)]
    assert set(whole) == set(range(1, 9))
    # Of ln 8.5 - ln 0.5, the number 1 has ln 1.5 - ln 0.5.
    assert whole.count(1) / 4000 == pytest.approx(math.log(3) / math.log(17), abs=0.04)
    assert {Range(1, 3, whole=True).sample(rng) for _ in range(100)} == {1, 2, 3}


def test_perturbed_values_stay_inside_and_move() -> None:
    rng = Random(2)
    assert {Range(0.1, 1.0).perturb(0.5, rng) for _ in range(50)} == {0.4, 0.6}
    assert {Range(0.1, 1.0).perturb(0.9, rng) for _ in range(50)} == {0.9 * 0.8, 1.0}
    # 0.8 and 1.2 times 2 are 2 again for whole numbers: a step instead.
    assert {Range(1, 9, whole=True).perturb(2, rng) for _ in range(50)} == {1, 3}
    assert {Choice((1, 2, 4)).perturb(2, rng) for _ in range(50)} == {1, 4}
    assert {Choice((1, 2, 4)).perturb(1, rng) for _ in range(50)} == {1, 2}
    assert Choice(("a",)).perturb("a", rng) == "a"


def test_a_trials_configuration_does_not_depend_on_when_it_is_asked_for() -> None:
    space = Space.parse({"lr": {"low": 0.0, "high": 1.0}})
    forwards, backwards = RandomSampler(space, 4), RandomSampler(space, 4)
    first = [forwards.ask(trial) for trial in range(5)]
    assert [backwards.ask(trial) for trial in reversed(range(5))] == first[::-1]
    assert RandomSampler(space, 5).ask(0) != first[0]
    with pytest.raises(SearchError, match="has 1 configurations, none for trial 1"):
        ListSampler([{"lr": 1}]).ask(1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"low": 1}, "tuner.lr: no range in {'low': 1}"),
        ({"low": 1, "high": 2, "step": 1}, "no range in"),
        ({"low": 2, "high": 2}, "from 2 to 2"),
        ({"low": "1e-3", "high": 1}, "'1e-3' ends no range (a finite number; 1.0e-3 rather than 1e-3)"),
        ({"low": 0, "high": math.inf}, "inf ends no range"),
        ({"low": 0, "high": 1, "log": True}, "a logarithmic range from 0"),
        ({"low": 1, "high": 2, "log": 1}, "log is 1"),
        ([], "nothing to choose from"),
        ([1, 1], "lists a value twice"),
        ([None], "None is no value"),
        (math.nan, "nan is no value"),
    ],
)
def test_what_is_no_domain_is_named(given: Any, says: str) -> None:
    with pytest.raises(SearchError) as error:
        Space.parse({"lr": given}, "tuner")
    assert says in str(error.value)
    assert str(error.value).startswith("tuner.lr")
