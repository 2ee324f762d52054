"""What docs/coflows.md says is so."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from agents.coflow.registry import get_ordering, ordering_names
from agents.search.registry import make_rules, tuner_names

TEXT = (Path(__file__).parents[3] / "docs" / "coflows.md").read_text(encoding="utf-8")


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    for example in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(example, "coflows.md", "exec"), {})
    order, first, second, best = capsys.readouterr().out.splitlines()
    assert (order, first, second[-5:]) == ("(0, 1)", "[0, 1, 2, 3] to 10", "to 20")
    assert best.removeprefix("best: ") in second[:6]


def test_every_tuner_has_its_line_with_its_defaults() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \| ([^|]+) \|$", TEXT, re.MULTILINE))
    for name in tuner_names():
        rules = make_rules(name)
        said = dict(re.findall(r"`(\w+)`(?: ([\w.]+))?", rows[name]))
        assert set(said) == {entry.name for entry in fields(rules)}
        for option, value in said.items():
            if value:
                assert value == str(getattr(rules, option)).lower()


def test_every_ordering_has_its_line() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (\w+) \|", TEXT, re.MULTILINE))
    assert {name: rate.lower() for name, rate in rows.items()} == {
        name: get_ordering(name).allocation for name in ordering_names()
    }
