"""The examples of docs/topologies.md work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from topologies.dynamics import Dynamics
from topologies.files import parse_yaml
from topologies.load import list_library, load_topology
from topologies.model import Topology
from topologies.traces import parse_csv, select

GUIDE = (Path(__file__).parents[3] / "docs" / "topologies.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE, flags=re.DOTALL)


def blocks(kind: str) -> list[str]:
    found = [text for name, text in BLOCKS if name == kind]
    assert found
    return found


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml(text: str) -> None:
    document = parse_yaml(text, "docs/topologies.md")
    if "dynamics" in document.data:
        Dynamics.model_validate(document.data["dynamics"])
    else:
        assert document.validate(Topology).directed[2].loss.ratio == 0.001


@pytest.mark.parametrize("text", blocks("python"))
def test_python(text: str) -> None:
    exec(compile(text, "docs/topologies.md", "exec"), {})


def test_commands_name_topologies() -> None:
    for line in blocks("console")[0].splitlines():
        load_topology(shlex.split(line)[2])


def test_csv() -> None:
    for entry in parse_csv(blocks("csv")[0]):
        assert select(load_topology("netstorm-9"), entry.link)


def test_the_library_is_all_there() -> None:
    for name in list_library():
        assert f"`{name}`" in GUIDE
