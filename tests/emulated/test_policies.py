"""New policies while collectives go on, over a real network: every sum exact, every chunk counted once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.emulated.conftest import Bring, Standing
from tests.emulated.test_awareness import Training, agent_metric, assert_sums_were_right

pytestmark = pytest.mark.emulated

COLLECTIVES = 200
ELEMENTS, CHUNK = 8_001, 1_000
FIVE = {
    "name": "five",
    "defaults": {"rate": "200mbit"},
    "sites": {f"dc{k}": {} for k in range(1, 6)},
    "links": [
        {"endpoints": ["dc1", "dc2"]},
        {"endpoints": ["dc2", "dc3"], "rate": "50mbit"},
        {"endpoints": ["dc3", "dc4"]},
        {"endpoints": ["dc4", "dc5"], "delay": "2ms"},
        {"endpoints": ["dc5", "dc1"]},
        {"endpoints": ["dc1", "dc3"]},
        {"endpoints": ["dc2", "dc4"], "backward": {"rate": "20mbit"}},
    ],
}
RANDOM = {"name": "netstorm", "options": {"paths": "random", "seed": 7}}


@pytest.fixture(scope="module")
def testbed(bring: Bring) -> Standing:
    return bring(FIVE)


def counted(testbed: Standing, name: str, **wanted: str) -> float:
    """A counter of all agents together, of the samples with these labels."""
    total = 0.0
    for site in testbed.info.sites:
        for labels, value in agent_metric(testbed, site, f"stormbed_agent_{name}_total").items():
            if wanted.items() <= dict(labels).items():
                total += value
    return total


@pytest.mark.timeout(150)
@pytest.mark.parametrize("switch", ["barrier", "announced"])
def test_a_random_policy_for_every_collective_and_a_random_path_for_every_chunk(
    testbed: Standing, tmp_path: Path, switch: str
) -> None:
    with Training(testbed, tmp_path, chunk_elements=CHUNK) as training:
        done: dict[str, Any] = training.start(
            label=switch,
            scheduler=RANDOM,
            iterations=COLLECTIVES,
            elements=ELEMENTS,
            auxiliary="random",
            policy={"switch": switch, "every": 1},
            seed=3,
        ).result(100)
        # Five sites: every chunk goes up over four hops and down over four, whatever the trees.
        wanted = COLLECTIVES * -(-ELEMENTS // CHUNK) * 8
        assert counted(testbed, "path_chunks") == counted(testbed, "received_chunks") == wanted
        assert counted(testbed, "path_chunks", auxiliary="1") > 0.3 * wanted
        assert counted(testbed, "duplicate_messages") == counted(testbed, "late_frames") == 0
        assert counted(testbed, "collectives") == 5 * COLLECTIVES
        assert training.status()["failure"] is None
    assert_sums_were_right(training, tmp_path)  # every element of every sum, at every site
    assert done["collectives"] == COLLECTIVES
    # A new plan is made while the collective before goes on; now and then the next one begins first.
    assert len(done["policies"]) > 0.8 * COLLECTIVES
    assert len({entry["from_seq"] for entry in done["policies"]}) == len(done["policies"])
