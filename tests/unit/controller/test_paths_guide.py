"""What docs/paths.md says exists."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from controller.api import FabricCollector
from controller.fabric import Fabric
from topologies.load import load_topology

GUIDE = (Path(__file__).parents[3] / "docs" / "paths.md").read_text()


def test_the_example_works() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    exec(compile(example, "docs/paths.md", "exec"), {})


def test_the_names_are_the_controllers() -> None:
    fabric = Fabric(load_topology("triangle"))
    (line,) = [line for line in GUIDE.splitlines() if line.startswith("| `GET /health`")]
    assert set(re.findall(r"`(\w+)`", line)) <= fabric.health().keys()
    route = fabric.routes("dc1", "dc2")["routes"][0]
    assert "primary" in route and "intact" in route["paths"][0]
    registry = CollectorRegistry()
    registry.register(FabricCollector(fabric))
    (line,) = [line for line in GUIDE.splitlines() if line.startswith("| `GET /metrics`")]
    for name in re.findall(r"`(?:stormbed_controller)?(_\w+)`", line):
        assert f"stormbed_controller{name}" in generate_latest(registry).decode()
