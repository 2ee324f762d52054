"""What the coordinator tells a planner of when sites are ready, and that GreedW heeds it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agents import coordinator_job
from agents.coordinator_job import CoordinatedJob
from agents.job import JobDescription
from agents.planning.base import NetworkView
from agents.planning.greedw import aggregation_time, costs_of
from agents.planning.registry import get_scheduler
from agents.ready_times import ReadyTimes
from agents.sync.messages import Ready, control_to_dict
from agents.sync.spec import CollectiveSpec, allreduce, barrier

NAMES = ("dc1", "dc2", "dc3")


def test_ready_times_are_those_of_the_last_all_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(coordinator_job.time, "monotonic", lambda: now)

    async def play() -> None:
        nonlocal now
        job = CoordinatedJob(
            JobDescription("j", "j#1", (0, 1, 2), NAMES, (1, 1, 1), 30.0), 1000, {}, lambda *frame: None
        )

        def ready(site: int, seq: int, spec: CollectiveSpec, at: float) -> None:
            nonlocal now
            now = at
            message = Ready("j", site, seq, spec.digest, spec.summary, seq)
            job.agent_said(site, "machine", {"message": control_to_dict(message)})

        for site, at in ((1, 10.0), (0, 10.5)):
            ready(site, 0, allreduce(5000), at)
        assert job.ready_times.seconds == (), "not all are known"
        ready(2, 0, allreduce(5000), 14.0)
        assert job.ready_times.seconds == (0.5, 0.0, 4.0)
        for site, at in ((0, 20.0), (1, 21.0), (2, 22.0)):
            ready(site, 1, barrier(), at)
        assert job.ready_times.seconds == (0.5, 0.0, 4.0), "a barrier says nothing of gradients"

    asyncio.run(play())


def test_collectives_under_way_together_do_not_hide_each_other() -> None:
    """As buckets do: a site is ready for the next one before another is ready for the first."""
    times = ReadyTimes(2)

    def ready(site: int, seq: int, at: float) -> None:
        spec = allreduce(5000)
        times.heard(Ready("j", site, seq, spec.digest, spec.summary, 0), at)

    for site, seq, at in ((0, 0, 1.0), (0, 1, 2.0), (1, 0, 4.0)):
        ready(site, seq, at)
    assert times.seconds == (0.0, 3.0)
    ready(1, 1, 4.5)
    assert times.seconds == (0.0, 2.5)
    ready(1, 0, 9.0)
    ready(0, 0, 9.0)
    assert times.seconds == (0.0, 2.5), "what is repeated is no news"
    times.forget()
    assert times.seconds == ()


def test_greedw_sums_the_others_while_a_late_site_computes() -> None:
    """One more transfer of 1 s after the late site is ready, whichever it is: nothing is left to do but that."""
    n = 5
    rates = {(u, v): 100e6 for u in range(n) for v in range(n) if u != v}
    names = [f"dc{k + 1}" for k in range(n)]
    view = NetworkView(n, rates, tuple(names), model_bits=100e6)
    greedw = get_scheduler("greedw", names)
    blind = greedw.plan(view).trees[0].parents
    heedless = []
    for late in range(n):
        times = tuple(9.0 if site == late else 0.0 for site in range(n))
        seen = replace(view, ready_s=times)
        assert greedw.plan(seen).trees[0].score == pytest.approx(100 / 10)
        heedless.append(aggregation_time(costs_of(seen), blind))
    assert max(heedless) > 11, "the tree for equal sites waits for one in its middle"
