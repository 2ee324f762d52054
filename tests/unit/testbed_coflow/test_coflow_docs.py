"""What docs/coflows.md says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agents.coflow.registry import get_ordering, ordering_names

TEXT = (Path(__file__).parents[3] / "docs" / "coflows.md").read_text(encoding="utf-8")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(example, "coflows.md", "exec"), {})
    assert capsys.readouterr().out == "(0, 1)\n"


def test_every_ordering_has_its_line() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (\w+) \|", TEXT, re.MULTILINE))
    assert {name: rate.lower() for name, rate in rows.items()} == {
        name: get_ordering(name).allocation for name in ordering_names()
    }
