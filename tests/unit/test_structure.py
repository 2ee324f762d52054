"""What keeps the house readable: no circle of imports, and no module that answers more than one question."""

from __future__ import annotations

from pathlib import Path

import grimp
import networkx as nx
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("topologies", "controller", "agents", "testbed")
MOST_LINES = 400


def test_no_imports_go_in_a_circle() -> None:
    """Not for types only either, and not inside functions: who needs a value declares what it must be like."""
    graph = grimp.build_graph(*PACKAGES)
    imports = nx.DiGraph(
        (module, used) for module in graph.modules for used in graph.find_modules_directly_imported_by(module)
    )
    circles = [sorted(found) for found in nx.strongly_connected_components(imports) if len(found) > 1]
    assert circles == []


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_are_short(package: str) -> None:
    long = {
        str(file.relative_to(ROOT)): lines
        for file in sorted((ROOT / package).rglob("*.py"))
        if (lines := len(file.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    }
    assert long == {}, "split by idea"
