"""The examples run as their first lines say, and use only what a user may use."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed import Testbed
from testbed.standing import standing

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLIC = {"testbed", "topologies", "fabric", "paramiko", "sys"}


def run_example(name: str, *arguments: str, run_root: Path | None = None) -> str:
    environment = dict(os.environ)
    if run_root is not None:
        environment["STORMBED_RUN_ROOT"] = str(run_root)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.emulated
def test_fabric_hello(unique_name: Callable[[], str]) -> None:
    with Testbed.up("triangle", name=unique_name(), calibrate=False) as testbed:
        lines = run_example("fabric_hello.py", str(testbed.ssh_config)).splitlines()
        assert len(lines) == 3
        for name, line in zip(testbed.sites, lines, strict=True):
            site = testbed.sites[name]
            assert line.startswith(f"{name}: I am {name} on Linux")
            assert site.wan_ip in line and site.mgmt_ip in line
    assert testbed.name not in [info.name for info in standing()]


@pytest.mark.emulated
def test_testbed_hello(tmp_path: Path) -> None:
    text = run_example("testbed_hello.py", run_root=tmp_path)
    # The shortest of five each: a busy machine only adds to them.
    near, far = (float(line.split(" = ")[1].split("/")[0]) for line in text.splitlines() if "apart" in line)
    assert near == pytest.approx(20, abs=6)
    assert far == pytest.approx(80, abs=12)
    assert "dc1 to dc2: 20 Mbit/s, 40 ms" in text
    assert not list(tmp_path.glob("*/"))  # taken down at the end


@pytest.mark.parametrize("name", ["fabric_hello.py", "testbed_hello.py"])
def test_examples_are_short_and_import_only_public_names(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    tree = ast.parse(text)
    code = [line for line in text.replace(ast.get_docstring(tree) or "", "").splitlines() if line.strip()]
    assert len(code) <= 22
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.module in PUBLIC
        elif isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= PUBLIC
