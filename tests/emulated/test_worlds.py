"""Prediction against measurement: one experiment in both worlds, set side by side as a user does it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.emulation import launch
from testbed.experiments.manifest import read_manifest

pytestmark = pytest.mark.emulated

EXPERIMENT = "worlds"
TOLERANCE = 0.15
# With less of the cores idle than this, whatever else runs on the machine takes part in the result.
IDLE_RATIO = 0.03


@pytest.fixture
def name(unique_name: Any) -> Iterator[str]:
    """A name for a testbed, which is down afterwards whatever happened."""
    chosen = unique_name()
    yield chosen
    if any(listed.name == chosen for listed in launch.list_testbeds()):
        launch.down(chosen)


def cli(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "testbed", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_id(*arguments: str, cwd: Path) -> str:
    return str(json.loads(cli("run", EXPERIMENT, "--format", "json", *arguments, cwd=cwd))["run"]["id"])


def what_disturbed(run: Path, off: dict[str, float]) -> str:
    """Why a measurement says nothing about the prediction; empty where it does."""
    fidelity = read_manifest(run).fidelity
    if fidelity.verdict != "faithful":
        return f"the network was {fidelity.verdict}: {'; '.join(fidelity.reasons)}"
    assert fidelity.run is not None
    busy = fidelity.run["cpu_busy_ratio"]
    if off and busy > 1 - IDLE_RATIO:
        return f"the machine's cores were {busy:.0%} busy"
    return ""


@pytest.mark.timeout(600)
def test_both_worlds_agree(tmp_path: Path, name: str) -> None:
    """The mean synchronisation of star and of netstorm within 15 % of its prediction.

    A measurement on a network that was not faithful, or one that is off while the cores had nothing left, would
    test the machine. One stall of the machine puts the mean of a few iterations off as well and leaves no mark, so
    two measurements have to be off.
    """
    predicted = run_id("--world", "simulated", cwd=tmp_path)
    disturbed, missed = "", []
    for _ in range(3):
        measured = run_id("--name", name, cwd=tmp_path)
        comparison = json.loads(cli("compare", predicted, measured, "--format", "json", cwd=tmp_path))
        assert [comparison["a"]["world"], comparison["b"]["world"]] == ["simulated", "emulated"]
        assert comparison["differences"] == ["world: simulated, emulated"]
        ratios = {row["scheduler"]: row["synchronisation_ratio"] for row in comparison["schedulers"]}
        assert set(ratios) == {"star-first", "netstorm"}
        off = {scheduler: ratio for scheduler, ratio in ratios.items() if abs(ratio - 1) > TOLERANCE}
        disturbed = what_disturbed(tmp_path / "runs" / measured, off)
        if not disturbed and off:
            missed.append(off)
            assert len(missed) < 2, f"measured over predicted: {missed}"
        elif not disturbed:
            text = cli("compare", predicted, measured, cwd=tmp_path)
            assert "B / A" in text
            assert "netstorm" in text
            return
    pytest.skip(f"UNVERIFIED: that both worlds agree to {TOLERANCE:.0%}; B / A: {ratios}; {disturbed or missed}")
