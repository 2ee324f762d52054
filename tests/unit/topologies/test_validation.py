"""What pydantic finds is told in the project's words: the object, the field, the fix."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from topologies.errors import InvalidFileError, UsageError
from topologies.validation import Unfit, fit, keys_of, validated

ROOT = Path(__file__).parents[3]
DOOR = Path("topologies/validation.py")


class Time(BaseModel):
    model_config = ConfigDict(extra="forbid")

    mean_s: Annotated[float, Field(gt=0)]


class Times(Time):
    sites: dict[str, Time] = {}


class Job(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    compute: Literal["real"] | Times = "real"
    sizes: Annotated[int, Field(ge=1)] | list[Annotated[int, Field(ge=1)]] = 1
    lasts: Annotated[int | None, Field(ge=1)] = Field(default=None, alias="for")


@pytest.mark.parametrize(
    ("data", "said", "hint"),
    [
        ({}, "name: the key 'name' is missing", "add it"),
        ({"name": "a", "computes": 1}, "computes: unknown key 'computes'", "did you mean compute?"),
        ({"name": "a", "fro": 1}, "fro: unknown key 'fro'", "did you mean for?"),
        ({"name": 3}, "name: should be a valid string, not 3", ""),
        ("a", "this is a text, not a map", ""),
        # Where a value may be one of several things, no name of pydantic's for one of them is told.
        ({"name": "a", "compute": "rael"}, "compute: should be 'real', not 'rael'", ""),
        ({"name": "a", "compute": {"mean_s": -1}}, "compute.mean_s: should be greater than 0, not -1", ""),
        (
            {"name": "a", "compute": {"mean_s": 1, "sites": {"dc1": {"mean": 1}}}},
            "compute.sites.dc1.mean: unknown key 'mean'",
            "did you mean mean_s?",
        ),
        ({"name": "a", "sizes": [1, 0]}, "sizes[1]: should be greater than or equal to 1, not 0", ""),
        ({"name": "a", "sizes": 0}, "sizes: should be greater than or equal to 1, not 0", ""),
        ({"name": 3, "sizes": 0}, "name: should be a valid string, not 3; one more follows", ""),
    ],
)
def test_the_first_thing_that_is_wrong_is_told_by_its_place(data: Any, said: str, hint: str) -> None:
    with pytest.raises(Unfit) as caught:
        fit(Job, data)
    assert (str(caught.value), caught.value.hint) == (said, hint)


def test_the_object_its_part_and_a_fix_that_is_always_right_are_told() -> None:
    with pytest.raises(InvalidFileError) as caught:
        validated(Job, {"name": 3}, "job x", ("jobs", 2), error=InvalidFileError, hint="see docs")
    assert str(caught.value) == "job x: jobs[2].name: should be a valid string, not 3 (see docs)"
    with pytest.raises(UsageError) as near:
        validated(Job, {}, hint="see docs")
    assert near.value.hint == "add it", "what is closer to the fault goes first"


def test_keys_are_those_that_are_written() -> None:
    assert keys_of(Job) == ["name", "compute", "sizes", "for"] and keys_of(Job, required=True) == ["name"]


def test_no_other_module_sees_the_errors_of_pydantic() -> None:
    seen = []
    for package in ("topologies", "controller", "agents", "testbed"):
        for file in sorted((ROOT / package).rglob("*.py")):
            if file.relative_to(ROOT) == DOOR:
                continue
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                name = getattr(node, "attr", getattr(node, "id", None))
                if name == "ValidationError" or str(name).startswith("model_validate"):
                    seen.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert seen == [], f"read the model through {DOOR}"
