"""The example of docs/write-a-scheduler.md, installed from outside the tree, plans for a real network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.emulation import launch
from testbed.experiments.manifest import read_manifest
from tests.unit.agents.planning.test_outside_schedulers import PAGE, example_files

pytestmark = pytest.mark.emulated

EXPERIMENT = """
name: outside
topology: triangle
training: {model: tensor-50k, iterations: 2, chunk_elements: 7001}
schedulers:
  - netstorm
  - widest
  - {name: widest, options: {root: dc3, link_order: slack}, label: widest-from-dc3}
"""


@pytest.fixture
def name(unique_name: Callable[[], str]) -> Iterator[str]:
    """A name for a testbed, which is down afterwards whatever happened."""
    chosen = unique_name()
    yield chosen
    if any(listed.name == chosen for listed in launch.list_testbeds()):
        launch.down(chosen)


def test_the_example_runs_on_a_real_network(tmp_path: Path, name: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for file, text in example_files().items():
        (source / file).write_text(text, encoding="utf-8")
    target = tmp_path / "target"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True, timeout=120)

    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "e.yaml").write_text(EXPERIMENT)
    # As if installed beside the project: the coordinator, which plans, is started from here as well.
    paths = os.pathsep.join([str(target), str(PAGE.parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "run", "e.yaml", "--name", name, "--format", "json"],
        cwd=outside,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    shown = [scheduler["scheduler"] for scheduler in report["schedulers"]]
    assert shown == ["netstorm", "widest", "widest-from-dc3"]
    for scheduler in report["schedulers"]:
        assert scheduler["measured_iterations"] == 2
        assert scheduler["sums_checked"] is True, "every worker compared every element of every sum"
    (run,) = (outside / "runs").iterdir()
    plans = {segment.scheduler: segment.plan for segment in read_manifest(run).segments}
    assert plans["widest"] is not None
    assert plans["widest-from-dc3"] is not None
    assert [root["site"] for root in plans["widest"]["roots"]] == ["dc1"]
    assert [root["site"] for root in plans["widest-from-dc3"]["roots"]] == ["dc3"]
    assert plans["widest-from-dc3"]["link_order"] == "slack"
