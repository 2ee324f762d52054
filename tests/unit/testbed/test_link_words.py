"""What `testbed link` says of changes, and of those that cannot be."""

from __future__ import annotations

import pytest

from testbed.cli.link import changes_made
from testbed.timeline import RunDynamics, TimelineEntry
from topologies.dynamics import Dynamics
from topologies.errors import UsageError
from topologies.validation import validated


@pytest.mark.parametrize(
    ("steps", "said"), [(0, "0 changes were made"), (1, "1 change was made"), (2, "2 changes were made")]
)
def test_a_single_change_is_one(steps: int, said: str) -> None:
    assert changes_made(steps) == said


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        ("nosuch", "dynamics.kind: should be 'none', 'netstorm', 'uniform', 'walk' or 'trace', not 'nosuch'", ""),
        (
            {"kind": "uniform", "every": "0s"},
            "dynamics.every: a time span of 0 s is not above zero",
            "write for example 1s",
        ),
        ({"kind": "uniform", "evry": "1s"}, "dynamics.evry: unknown key 'evry'", "did you mean every?"),
        ({"kind": "none", "every": "1s"}, "dynamics.every: nothing changes with kind: none; leave it out", ""),
    ],
)
def test_dynamics_that_cannot_be_are_told_in_one_sentence(given: object, said: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        validated(RunDynamics, given, place=("dynamics",))
    assert (caught.value.message, caught.value.hint) == (said, hint)


def test_an_entry_that_cannot_be_is_told_by_its_number() -> None:
    with pytest.raises(UsageError, match=r"timeline\[2\].action: should be 'link-down'"):
        validated(TimelineEntry, {"at": "1s", "action": "cut", "link": "a-b"}, place=("timeline", 2))


def test_dynamics_of_the_command_line_are_told_alike() -> None:
    with pytest.raises(UsageError, match="every: a time span of 0 s is not above zero") as caught:
        Dynamics.parse("uniform?every=0s")
    assert caught.value.hint == "write for example 1s"
    with pytest.raises(UsageError, match="kind: should be 'none'") as caught:
        Dynamics.parse("nosuch")
    assert "the kinds are" in caught.value.hint
