"""Measuring the network and taking other paths, as an experiment file asks for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from agents.options import AuxiliaryOptions, AwarenessOptions, PolicyOptions
from testbed.experiments.spec import LoadedExperiment, experiment_from_text
from topologies.errors import InvalidFileError

TEXT = """
name: e
topology: pair
training: {model: tensor-1m}
schedulers: [%s]
%s
"""


def load(schedulers: str, more: str = "") -> LoadedExperiment:
    return experiment_from_text(TEXT % (schedulers, more))


def test_off_unless_asked_for() -> None:
    (segment,) = load("netstorm").segments
    assert not segment.awareness.on and not segment.auxiliary.on


def test_a_turn_has_its_own_options_or_the_experiment_s() -> None:
    first, second, third = load(
        "netstorm, {name: netstorm, label: static, awareness: off},"
        " {name: netstorm, label: detours, auxiliary: {rule: capacity, limit: 2}}",
        "awareness: {estimator: unbiased, check_period_s: 1}",
    ).segments
    assert first.awareness.estimator == "unbiased" and first.awareness.check_period_s == 1.0
    assert not second.awareness.on
    assert third.awareness.on and third.auxiliary.rule == "capacity" and third.auxiliary.limit == 2


def test_the_resolved_experiment_is_the_same_again() -> None:
    loaded = load("netstorm", "awareness: unbiased\nauxiliary: off")
    again = experiment_from_text(loaded.resolved_yaml())
    assert again.spec == loaded.spec
    assert again.segments == loaded.segments


@pytest.mark.parametrize(
    ("schedulers", "more", "words"),
    [
        ("netstorm", "awareness: psychic", "awareness"),
        ("netstorm", "auxiliary: {rule: threshold, limit: 0}", "limit"),
        ("netstorm", "awareness: published", "no message would be timed: chunks have at most 400000 bytes"),
        ("{name: netstorm, awareness: published}", "", "no message would be timed"),
    ],
)
def test_what_cannot_be_is_refused_with_the_key(schedulers: str, more: str, words: str) -> None:
    with pytest.raises(InvalidFileError, match=words):
        load(schedulers, more)


def test_the_published_parameters_fit_published_chunks() -> None:
    text = (TEXT % ("netstorm", "awareness: published")).replace(
        "tensor-1m}", "tensor-1m, chunk_elements: 1000000}"
    )
    (segment,) = experiment_from_text(text).segments
    assert segment.awareness.estimator == "published"


GUIDE = Path(__file__).parents[3] / "docs" / "awareness.md"


def test_the_guide_s_experiment_is_one() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    measured, declared, detours, ahead = experiment_from_text(text).segments
    assert measured.awareness.estimator == "unbiased" and not declared.awareness.on
    assert detours.auxiliary.rule == "threshold"
    assert ahead.policy.switch == "announced" and measured.policy.switch == "barrier"


@pytest.mark.parametrize("options", [AwarenessOptions(), AuxiliaryOptions(), PolicyOptions()])
def test_the_guide_names_every_option_with_its_default(options: BaseModel) -> None:
    rows = [line.split("|")[1:3] for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    told = {
        name.strip(" `"): default.strip(" `")
        for names, defaults in rows
        for name, default in zip(names.split(","), defaults.split(","), strict=True)
    }
    for name, default in options.model_dump().items():
        shown = (
            "by estimator" if default is None else f"{default:g}" if isinstance(default, float) else default
        )
        assert told[name] == str(shown), name
