"""Every scheduler that plans ahead, over real agents and TCP: exact sums, odd chunks, one slow site."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agents.planning.registry import SchedulerSpec

Everywhere = Callable[[dict[Any, Callable[[], Any]]], dict[Any, Any]]

SPECS: tuple[SchedulerSpec, ...] = (
    "packing",
    {"name": "packing", "options": {"run_ahead": 0, "link_order": "fifo"}},
    {"name": "netstorm", "options": {"link_order": "slack"}},
    "ring",
    {"name": "ring", "options": {"order": "optimal", "link_order": "index"}},
    {"name": "mlnet", "options": {"k": 3, "roots": "all", "seed": 1}},
    "greedw",
    {"name": "greedw", "options": {"method": "literal"}},
    "star-best",
)
ELEMENTS = 654_321
SLOW = 4


@pytest.mark.timeout(120)
def test_exact_sums_on_nine_sites(make_cluster: Any, everywhere: Everywhere) -> None:
    cluster = make_cluster("netstorm-9")
    runner = cluster.runner()
    sites = dict.fromkeys(cluster.names, 1)
    runner.open_job({"job": "job", "sites": sites, "deadline_s": 60, "chunk_elements": 9_973})

    def work(site: int) -> int:
        served = 0
        with cluster.join(site) as client:
            while client.next_segment() is not None:
                if site == SLOW:
                    time.sleep(0.05)  # a straggler: everyone else waits for its contribution
                rows = np.arange(ELEMENTS) % 97
                array = (rows * (client.rank + 1)).astype(np.float32)
                client.allreduce(array).wait()
                assert np.array_equal(array, (rows * 45).astype(np.float32))
                served += 1
        return served

    def run() -> list[str]:
        shown = []
        for number, spec in enumerate(SPECS):
            fields = {"label": str(number), "scheduler": spec, "iterations": 1, "elements": ELEMENTS}
            done = runner.run_segment("job", fields, timeout=60)
            shown.append(done["plan"]["scheduler"])
        runner.close_job("job")
        return shown

    results = everywhere({"runner": run} | {k: lambda k=k: work(k) for k in range(9)})
    assert [results[k] for k in range(9)] == [len(SPECS)] * 9
    assert results["runner"] == [
        "packing",
        "packing+fifo",
        "netstorm+slack",
        "ring",
        "ring-optimal+index",
        "mlnet-k3-seed1-all",
        "greedw",
        "greedw-literal",
        "star-best",
    ]
