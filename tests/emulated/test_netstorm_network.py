"""The published network at its published rates, all of it at once."""

from __future__ import annotations

import time

import pytest

pytestmark = pytest.mark.emulated


def test_netstorm_9_comes_up_in_seconds_with_every_direction_measured(bring) -> None:
    stages: list[tuple[float, str]] = []
    started = time.monotonic()
    testbed = bring(
        "netstorm-9",
        calibrate=True,
        on_progress=lambda text: stages.append((time.monotonic() - started, text)),
    )
    spent = time.monotonic() - started
    # 15 s is the aim on a quiet machine of two cores; the allowance is for one that does other work.
    assert spent < 90, stages
    report = testbed.info.fidelity
    assert report is not None and len(report["links"]) == 26
    assert report["declared_bps"] == 2_185_000_000
    measured = [link for link in report["links"] if link["together_bps"]]
    assert len(measured) == 26, "every direction was measured with all others busy"
    assert report["verdict"] in ("faithful", "saturated", "degraded")
    if report["cpu_busy_ratio"] < 0.95:
        assert report["verdict"] == "faithful", report["reasons"]
    # Whatever the machine is short of, no direction is ever faster than declared. Payload is at most 0.956 of it;
    # and a receiver that was late when its two seconds began has a queue of up to 190 kB in them that was carried
    # before: 0.04 of the slowest link.
    assert all(link["together_bps"] <= 1.0 * link["declared_bps"] for link in report["links"])
