from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from topologies.dynamics import NETSTORM_ORDER, Changes, Dynamics, netstorm_links, netstorm_rates
from topologies.errors import InvalidFileError, UsageError
from topologies.files import parse_yaml
from topologies.load import load_topology
from topologies.model import Topology
from topologies.traces import LinkChange
from topologies.units import Delay, Loss, Rate

NINE, TRIANGLE = load_topology("netstorm-9"), load_topology("triangle")
HEADER = "t_s,link,rate_mbit,delay_ms,loss\n"

# What random.seed(1) and randint(20, 155) give on Python 2.7, in the published order of links.
FIRST_EPOCH = (
    38, 135, 123, 54, 87, 81, 108, 127, 32, 23, 133, 78, 123, 20, 80, 118, 51, 148, 142, 24, 23, 93, 147, 71,
    49, 77,
)  # fmt: skip


def make(**data: Any) -> Dynamics:
    return Dynamics.model_validate(data)


def rates(found: Changes) -> dict[int, float]:
    return {index: change.rate.mbps for index, change in found[1].items() if change.rate is not None}


def test_the_published_sequence() -> None:
    assert netstorm_rates(0) == FIRST_EPOCH
    assert "".join(f"{a}{b} " for a, b in NETSTORM_ORDER) == (
        "12 13 23 21 25 31 32 34 43 45 46 52 57 54 64 67 68 69 75 76 78 86 87 89 96 98 "
    )
    by_pair = {(link.src + 1, link.dst + 1): link for link in NINE.directed}
    for pair, mbit in zip(NETSTORM_ORDER, FIRST_EPOCH, strict=True):
        assert by_pair[pair].rate.mbps == mbit, "the library declares the first epoch"


def test_netstorm_goes_on_through_the_sequence() -> None:
    first, second, third = make(kind="netstorm").changes(NINE, 3 * 180)
    assert (first[0], second[0], third[0]) == (0, 180, 360)
    assert rates(first) == {link.index: link.rate.mbps for link in NINE.directed}
    order = netstorm_links(NINE)
    for epoch, found in enumerate((first, second, third)):
        assert tuple(rates(found)[index] for index in order) == netstorm_rates(epoch)
    assert netstorm_rates(1) != netstorm_rates(0)
    assert all(20 <= rate <= 155 for epoch in range(40) for rate in netstorm_rates(epoch))


def test_netstorm_has_parameters() -> None:
    found = list(make(kind="netstorm", seed=7, every="10s", rate=["5mbit", "6mbit"]).changes(NINE, 35))
    assert [t for t, _ in found] == [0, 10, 20, 30]
    assert {rate for step in found for rate in rates(step).values()} == {5, 6}
    # The published process has its own seed, whatever the experiment's.
    assert next(make(kind="netstorm").changes(NINE, seed=9)) == next(make(kind="netstorm").changes(NINE))
    assert next(make(kind="netstorm", seed=9).changes(NINE)) != next(make(kind="netstorm").changes(NINE))


def test_netstorm_is_for_its_own_network() -> None:
    with pytest.raises(UsageError, match=r"not for triangle.*uniform"):
        make(kind="netstorm").changes(TRIANGLE)


def test_uniform_serves_any_topology() -> None:
    topology = load_topology("waxman-20-1")
    spec = make(kind="uniform", every="1min")
    found = list(spec.changes(topology, 600, seed=3))
    assert [t for t, _ in found] == [60 * k for k in range(10)]
    assert all(set(changed) == set(range(len(topology.directed))) for _, changed in found)
    seen = {rate for step in found for rate in rates(step).values()}
    assert min(seen) == 20 and max(seen) == 155 and all(rate == int(rate) for rate in seen)
    assert found == list(spec.changes(topology, 600, seed=3))
    assert found != list(spec.changes(topology, 600, seed=4))


def test_rates_are_scaled_with_the_topology() -> None:
    whole = list(make(kind="netstorm").changes(NINE, 400))
    tenth = list(make(kind="netstorm").changes(NINE.scaled(0.1), 400, scale=0.1))
    for a, b in zip(whole, tenth, strict=True):
        assert rates(b) == {index: pytest.approx(rate / 10) for index, rate in rates(a).items()}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(0.01, 3), st.sampled_from([0.1, 1.0]))
def test_a_walk_takes_small_steps_in_its_range(seed: int, step: float, scale: float) -> None:
    topology = NINE.scaled(scale)
    found = list(make(kind="walk", step=step, every="5s").changes(topology, 100, seed=seed, scale=scale))
    assert [t for t, _ in found] == [5.0 * k for k in range(20)]
    assert rates(found[0]) == {link.index: pytest.approx(link.rate.mbps) for link in topology.directed}
    for before, after in pairwise(found):
        for index, rate in rates(after).items():
            assert 20 * scale * 0.999 <= rate <= 155 * scale * 1.001
            assert 1 / (1 + step) / 1.001 <= rate / rates(before)[index] <= (1 + step) * 1.001


def test_a_walk_depends_on_the_seed_alone() -> None:
    spec = make(kind="walk")
    assert list(spec.changes(NINE, 60, seed=1)) == list(spec.changes(NINE, 60, seed=1))
    assert list(spec.changes(NINE, 60, seed=1)) != list(spec.changes(NINE, 60, seed=2))
    # One rate alone as a range: it stays there.
    still = list(make(kind="walk", rate="50mbit").changes(NINE, 60))
    assert {round(rate, 6) for step in still for rate in rates(step).values()} == {50}


def test_a_csv_trace(tmp_path: Path) -> None:
    lines = "0,*,10,,\n1,dc1>dc2,5,,\n1,dc1-dc2,,30,\n1,dc1>dc2,6,,50%\n2.5,dc3>dc1,7,,\n"
    (tmp_path / "wan.csv").write_text(HEADER + lines)
    spec = make(kind="trace", path="wan.csv")
    found = list(spec.changes(TRIANGLE, folder=tmp_path))
    assert found == [
        (0, {k: LinkChange(Rate(10**7)) for k in range(6)}),
        (
            1,
            {
                0: LinkChange(Rate(6 * 10**6), Delay(30 * 10**6), Loss(0.5)),
                1: LinkChange(None, Delay(30 * 10**6)),
            },
        ),
        (2.5, {5: LinkChange(Rate(7 * 10**6))}),
    ]
    assert len(list(spec.changes(TRIANGLE, 2.5, folder=tmp_path))) == 2
    scaled = list(spec.changes(TRIANGLE, folder=tmp_path, scale=0.5))
    assert scaled[1][1][0] == LinkChange(Rate(3 * 10**6), Delay(30 * 10**6), Loss(0.5))
    again = list(make(kind="trace", path="wan.csv", repeat="10s").changes(TRIANGLE, 22, folder=tmp_path))
    assert [t for t, _ in again] == [0, 1, 2.5, 10, 11, 12.5, 20, 21]
    assert again[3][1] == found[0][1]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("none", {}),
        ("netstorm", {"kind": "netstorm"}),
        (
            "uniform?every=10s&rate=30mbit..90mbit&seed=7",
            {"kind": "uniform", "every": "10s", "rate": ["30mbit", "90mbit"], "seed": 7},
        ),
        ("walk?step=0.5", {"kind": "walk", "step": 0.5}),
        (
            "trace?path=a/b.trace&links=dc1-dc2,dc3>dc1",
            {"kind": "trace", "path": "a/b.trace", "links": ["dc1-dc2", "dc3>dc1"]},
        ),
    ],
)
def test_dynamics_on_a_command_line(text: str, fields: dict[str, Any]) -> None:
    spec = Dynamics.parse(text)
    assert spec == make(**fields)
    again = Dynamics.parse(str(spec))
    assert again.model_dump(mode="json") == spec.model_dump(mode="json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "netstorm, uniform"),
        ("tide", "netstorm, uniform"),
        ("uniform?", "no option"),
        ("uniform?every", "no option"),
        ("uniform?evry=1s", "no option"),
        ("uniform?every=1s&every=2s", "given twice"),
        ("uniform?kind=walk", "given twice"),
        ("uniform?every=5", "every: .*no unit"),
        ("uniform?seed=x", "seed: "),
        ("walk?path=x", "path: it is for kind: trace"),
    ],
)
def test_dynamics_on_a_command_line_that_are_wrong(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Dynamics.parse(text)


def test_rates_that_scaling_makes_too_slow_are_told_at_the_call(tmp_path: Path) -> None:
    (tmp_path / "wan.csv").write_text(f"{HEADER}0,*,10,,\n1,dc1>dc2,0.5,,\n")
    (tmp_path / "lte.trace").write_text("1\n2000\n")
    for spec, words in (
        (make(kind="uniform"), "dynamics uniform: .* below 1kbit.*20mbit times 1e-05"),
        (make(kind="walk", rate="1mbit..1gbit"), "1mbit times 1e-05"),
        (make(kind="trace", path="wan.csv"), "wan.csv, line 2: .*10mbit times 1e-05"),
        (make(kind="trace", path="lte.trace"), "lte.trace: .*12kbit times 1e-05"),
    ):
        with pytest.raises(UsageError, match=words):
            spec.changes(TRIANGLE, scale=1e-5, folder=tmp_path)
    with pytest.raises(UsageError, match=r"link dc1 > dc2: .* below 1kbit"):
        TRIANGLE.scaled(1e-6)


def test_a_csv_trace_that_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "wan.csv").write_text(f"{HEADER}0,*,10,,\n1,dc1>dc7,5,,\n")
    with pytest.raises(InvalidFileError, match=r"wan.csv, line 3: link: triangle has no site 'dc7'"):
        make(kind="trace", path="wan.csv").changes(TRIANGLE, folder=tmp_path)
    with pytest.raises(InvalidFileError, match="there is no file"):
        make(kind="trace", path="none.csv").changes(TRIANGLE, folder=tmp_path)
    (tmp_path / "wan.csv").write_text(f"{HEADER}0,*,10,,\n5,*,5,,\n")
    with pytest.raises(UsageError, match="cannot begin anew after 5s"):
        make(kind="trace", path="wan.csv", repeat="5s").changes(TRIANGLE, folder=tmp_path)
    with pytest.raises(UsageError, match="says its own times and links"):
        make(kind="trace", path="wan.csv", links=["dc1-dc2"]).changes(TRIANGLE, folder=tmp_path)


def test_a_mahimahi_trace(tmp_path: Path) -> None:
    (tmp_path / "cell.trace").write_text("".join(f"{t}\n" for t in [*range(1, 1001), *range(1002, 1501, 2)]))
    spec = make(kind="trace", path="cell.trace", links=["dc1-dc2", "dc3>dc1"])
    found = list(spec.changes(TRIANGLE, 4, folder=tmp_path))
    assert [t for t, _ in found] == [0, 1, 1.5, 2.5, 3]
    assert [rates(step) for step in found] == [dict.fromkeys((0, 1, 5), rate) for rate in (12, 6, 12, 6, 12)]
    fine = list(make(kind="trace", path="cell.trace", every="250ms").changes(TRIANGLE, 1, folder=tmp_path))
    assert [t for t, _ in fine] == [0, 0.25, 0.5, 0.75]
    with pytest.raises(UsageError, match="repeats by itself"):
        make(kind="trace", path="cell.trace", repeat="5s").changes(TRIANGLE, folder=tmp_path)
    (tmp_path / "cell.trace").write_text("1\nx\n")
    with pytest.raises(InvalidFileError, match=r"cell.trace, line 2: 'x'"):
        make(kind="trace", path="cell.trace").changes(TRIANGLE, folder=tmp_path)


@pytest.mark.parametrize("kind", ["netstorm", "uniform", "walk"])
def test_without_an_end_it_goes_on(kind: str) -> None:
    assert [len(changed) for _, changed in islice(make(kind=kind).changes(NINE), 50)] == [26] * 50


class Experiment(BaseModel):
    name: str
    dynamics: Dynamics = Dynamics()


def read(text: str) -> Dynamics:
    return parse_yaml(f"name: x\ndynamics: {text}\n", "exp.yaml").validate(Experiment).dynamics


def test_in_an_experiment_file() -> None:
    assert read("none") == read("") == Dynamics()
    assert list(Dynamics().changes(NINE)) == []
    spec = read("{kind: uniform, rate: [20mbit, 155mbit], every: 180s}")
    assert spec == read("{kind: uniform, rate: 20mbit..155mbit, every: 3min}")
    assert read("netstorm").kind == "netstorm"
    assert spec.model_dump(mode="json")["rate"] == ["20mbit", "155mbit"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sometimes", "dynamics.kind: .*'none', 'netstorm', 'uniform', 'walk' or 'trace'"),
        ("{kind: uniform, rat: 1mbit}", "unknown key 'rat'.*did you mean rate"),
        ("{kind: uniform, rate: [155mbit, 20mbit]}", "the range ends below its beginning"),
        ("{kind: uniform, rate: [0.5mbit, 20mbit]}", "whole Mbit/s"),
        ("{kind: uniform, rate: [20, 155]}", "20 is a bare number"),
        ("{kind: uniform, every: 180}", "180 is a bare number"),
        ("{kind: uniform, every: 0s}", "above zero"),
        ("{kind: uniform, path: x.csv}", "path: it is for kind: trace"),
        ("{kind: uniform, step: 0.1}", "step: it is for kind: walk"),
        ("{kind: walk, step: 0}", "greater than 0"),
        ("{kind: trace}", "a trace needs its file"),
        ("{kind: trace, path: x.csv, seed: 3}", "seed: a trace has none"),
        ("{kind: none, seed: 3}", "seed: nothing changes"),
        ("{kind: uniform, seed: -1}", "greater than or equal to 0"),
        ("[uniform]", "dynamics"),
    ],
)
def test_descriptions_that_are_wrong(text: str, expected: str) -> None:
    with pytest.raises(InvalidFileError, match=expected) as caught:
        read(text)
    assert "exp.yaml, line 2" in str(caught.value)


def test_a_resolved_description_can_be_read_again() -> None:
    """A run's manifest writes every default out."""
    for text in ("none", "netstorm", "uniform", "walk", "{kind: trace, path: wan.csv}"):
        spec = read(text)
        written = spec.model_dump(mode="json")
        again = Dynamics.model_validate(written)
        assert again.model_dump(mode="json") == written
    assert read("none").model_dump(mode="json") == "none"
    assert read("walk").model_dump(mode="json") == {
        "kind": "walk", "rate": ["20mbit", "155mbit"], "every": "10s", "step": 0.2
    }  # fmt: skip


def test_spec_is_frozen() -> None:
    with pytest.raises(ValidationError):
        Dynamics().kind = "walk"  # type: ignore[misc]


def test_topologies_do_not_change() -> None:
    before: Topology = NINE.model_copy()
    list(make(kind="walk").changes(NINE, 60))
    assert before == NINE
