"""Every scheduler over real agents and TCP: exact sums, odd chunks, one slow site; two to nine sites."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agents.planning.registry import SchedulerSpec, scheduler_names

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


@pytest.mark.timeout(120)
def test_exact_sums_on_two_to_nine_sites(make_cluster: Any, everywhere: Everywhere) -> None:
    """A job of the first n sites of the network each, under every registered scheduler."""
    cluster = make_cluster("netstorm-9")
    runner = cluster.runner()
    names = scheduler_names()
    sizes = (1, 10_007)  # one chunk of one element; no whole number of chunks

    def work(site: int, job: str) -> int:
        served = 0
        with cluster.join(site, job) as client:
            total = client.world_size * (client.world_size + 1) // 2
            while client.next_segment() is not None:
                if site == 1:
                    time.sleep(0.02)  # a straggler
                for elements in sizes:
                    rows = np.arange(elements) % 97
                    array = (rows * (client.rank + 1)).astype(np.float32)
                    client.allreduce(array).wait()
                    assert np.array_equal(array, (rows * total).astype(np.float32))
                    served += 1
        return served

    def run(job: str) -> None:
        for name in names:
            runner.run_segment(job, {"label": name, "scheduler": name}, timeout=50)
        runner.close_job(job)

    for n in range(2, 10):
        job = f"sites-{n}"
        runner.open_job(
            {"job": job, "sites": dict.fromkeys(cluster.names[:n], 1), "deadline_s": 40, "chunk_elements": 997}
        )
        sites = {k: lambda k=k, job=job: work(k, job) for k in range(n)}
        results = everywhere({"runner": lambda job=job: run(job)} | sites)
        assert [results[k] for k in range(n)] == [len(sizes) * len(names)] * n
