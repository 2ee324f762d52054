"""When the coordinator plans anew for measured rates, and what it tells the sites."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from agents.config import AddressBook, Config
from agents.network_watch import NetworkWatch
from agents.options import AuxiliaryOptions, AwarenessOptions
from agents.planning.base import NetworkView, Plan
from agents.planning.registry import get_scheduler
from agents.views import network_view
from topologies.load import load_topology

TOPOLOGY = load_topology("triangle")
NAMES = TOPOLOGY.site_names
CONFIG = Config(
    TOPOLOGY,
    AddressBook(tuple((f"127.9.9.{k + 1}", 7000) for k in range(3)), ("127.9.9.253", 7002), (None,) * 3),
    Path("unused"),
)


class Watched:
    """A watch whose plans and frames are kept."""

    def __init__(self, awareness: Any, auxiliary: Any = None, scheduler: Any = "netstorm") -> None:
        self.used: list[Plan] = []
        self.frames: list[tuple[str, dict[str, Any]]] = []
        planner = get_scheduler(scheduler, NAMES)

        async def make_plan(view: NetworkView) -> Plan:
            return planner.plan(view)

        self.watch = NetworkWatch(
            AwarenessOptions.model_validate(awareness),
            AuxiliaryOptions.model_validate(auxiliary or "off"),
            config=CONFIG,
            members=(0, 1, 2),
            declared={link: float(bps) for link, bps in TOPOLOGY.rates().items()},
            view=lambda rates: network_view(CONFIG, rates, (0, 1, 2)),
            make_plan=make_plan,
            use_plan=lambda plan, why: self.used.append(plan),
            broadcast=lambda kind, body: self.frames.append((kind, body)),
        )

    def report(self, src: int, dst: int, rate: float) -> None:
        number = next(i for i, path in enumerate(CONFIG.paths[src, dst]) if len(path) == 2)
        self.watch.reported(dst, [[src, number, rate]])


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_the_published_rule_plans_anew_for_any_change_that_is_large_enough() -> None:
    async def work() -> None:
        case = Watched({"estimator": "published", "update_rate": 0.15})
        first = await case.watch.first_plan()
        assert not await case.watch.check()  # nothing is measured
        case.report(0, 1, 90e6)
        assert not await case.watch.check()  # 0.1
        case.report(1, 2, 75e6)
        assert await case.watch.check()  # the mean of 0.1 and 0.25
        assert case.used and case.used[-1] != first
        assert not await case.watch.check()  # from what is planned with now
        assert case.watch.replans == 1 and case.watch.checks == 4 and case.watch.reports == 2
        measured = case.watch.status()["measured"]
        assert {link: found["rate_bps"] for link, found in measured.items()} == {
            "dc1>dc2": 90e6,
            "dc2>dc3": 75e6,
        }

    run(work)


def test_hysteresis_plans_anew_only_for_what_the_new_plan_promises() -> None:
    async def work() -> None:
        case = Watched({"estimator": "unbiased", "min_gain": 0.2})
        await case.watch.first_plan()
        for src, dst in ((0, 1), (1, 0)):
            case.report(src, dst, 90e6)
        assert not await case.watch.check()  # the link is slower, and another plan gains little
        assert not case.used
        for src, dst in ((0, 1), (1, 0)):
            case.report(src, dst, 20e6)
        assert await case.watch.check()
        (plan,) = case.used
        hops = {(v, p) for tree in plan.trees for v, p in enumerate(tree.parents)}
        assert not {(0, 1), (1, 0)} & hops
        assert not await case.watch.check()

    run(work)


def test_a_plan_that_stays_the_same_is_not_issued_again() -> None:
    async def work() -> None:
        case = Watched({"estimator": "published"}, scheduler="star-first")
        await case.watch.first_plan()
        for rate in (90e6, 10e6):
            case.report(0, 1, rate)
            await case.watch.check()
        assert case.used == [] and case.watch.replans == 0

    run(work)


def test_reports_of_paths_that_do_not_exist_or_of_no_rate_are_ignored() -> None:
    async def work() -> None:
        case = Watched("unbiased")
        case.watch.reported(1, [[1, 0, 5e6], [7, 0, 5e6], [0, 0, 0.0]])
        assert case.watch.matrix.estimates == {}

    run(work)


@pytest.mark.parametrize("rule", ["capacity", "threshold"])
def test_sites_are_told_which_paths_have_something_to_spare(rule: str) -> None:
    async def work() -> None:
        case = Watched({"estimator": "unbiased"}, rule, scheduler="star-first")
        await case.watch.first_plan()
        case.watch.start()
        try:
            if rule == "threshold":
                assert case.frames == []
                return
            ((kind, body),) = case.frames
            # The star's links are full at its rate; only those between the other two are free.
            assert kind == "detours"
            assert {(src, dst) for src, dst, _ in body["detours"]} == {(1, 2), (2, 1)}
            for src, dst in ((0, 1), (1, 0)):
                case.report(src, dst, 20e6)
            await case.watch.check()
            # Now the star waits for dc2, and dc1 - dc3 - dc2 has room.
            assert {(src, dst) for src, dst, _ in case.frames[-1][1]["detours"]} >= {(0, 1), (1, 0)}
        finally:
            case.watch.stop()

    run(work)
