"""The coordinator's side of measuring the network during one segment of a job: rates, new plans, detours.

The decisions are those of `agents.replanning`; here is the clock, and planning that takes its time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from agents.config import Config
from agents.options import AuxiliaryOptions, AwarenessOptions
from agents.planning.base import NetworkView, Plan
from agents.rate_matrix import RateMatrix, Rates
from agents.replanning import Replanner
from agents.sync.policy import Policy
from agents.wire import pack_body
from topologies.errors import StormbedError

log = logging.getLogger(__name__)


class NetworkWatch:
    """See the module's text. All methods run on the coordinator's loop.

    Args:
        config: the network.
        members, declared, view: see `agents.replanning.Replanner`.
        make_plan: plans for a view, elsewhere than on the loop.
        use_plan: makes a plan the one of the next collective; told why as well.
        broadcast: sends a frame to all sites of the job.

    Attributes:
        report_bytes: what the reports from the sites took.
        probe_bytes: sent by each site, as far as it has reported.
    """

    def __init__(
        self,
        awareness: AwarenessOptions,
        auxiliary: AuxiliaryOptions,
        *,
        config: Config,
        members: tuple[int, ...],
        declared: Rates,
        view: Callable[[Rates], NetworkView],
        make_plan: Callable[[NetworkView], Awaitable[Plan]],
        use_plan: Callable[[Plan, dict[str, Any]], None],
        broadcast: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.awareness = awareness
        self.auxiliary = auxiliary
        self.report_bytes = 0
        self.probe_bytes: dict[int, int] = {}
        self._replanner = Replanner(
            awareness, auxiliary, network=config, members=members, declared=declared, view=view
        )
        self._make_plan = make_plan
        self._use_plan = use_plan
        self._broadcast = broadcast
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._again: asyncio.Task[None] | None = None
        self._wanted = ""  # why a plan is to be made anew

    @property
    def matrix(self) -> RateMatrix:
        """What is known of the links."""
        return self._replanner.matrix

    @property
    def reports(self) -> int:
        """Messages with estimates from the sites."""
        return self._replanner.reports

    @property
    def checks(self) -> int:
        """Looks at the rates."""
        return self._replanner.checks

    @property
    def replans(self) -> int:
        """New plans that came of them."""
        return self._replanner.replans

    def options(self) -> dict[str, Any]:
        """What the sites are told."""
        return {"awareness": self.awareness.model_dump(), "auxiliary": self.auxiliary.model_dump()}

    def rates(self) -> Rates:
        """What to plan with now."""
        return self._replanner.rates(self._loop.time())

    async def first_plan(self) -> Plan:
        """The segment's plan to begin with."""
        look = self._replanner.begin(self._loop.time())
        plan = await self._make_plan(look.view)
        self._replanner.plan = plan
        return plan

    def keep_plan(self, policy: Policy | None) -> None:
        """The segment begins with the plan that is in use."""
        self._replanner.begin(self._loop.time(), None if policy is None else policy.plan)

    def start(self) -> None:
        """The sites know their options: follow the network from now on."""
        self._offer_detours(self.rates())
        if self.awareness.on:
            self._task = self._loop.create_task(self._follow())

    def stop(self) -> None:
        """The segment is over."""
        for task in (self._task, self._again):
            if task is not None:
                task.cancel()

    def links_changed(self, down: Iterable[int], *, replan: bool) -> None:
        """These links are down now, by index; at the start of a segment or in the middle of one."""
        self._replanner.links_changed(down)
        if replan:
            self.plan_again("links")

    def plan_again(self, reason: str) -> None:
        """Make a new plan whatever the rates; one that is being made may know less, so it comes after that."""
        self._wanted = reason
        if self._again is None or self._again.done():
            self._again = self._loop.create_task(self._replan_as_wanted())

    async def _replan_as_wanted(self) -> None:
        while self._wanted:
            reason, self._wanted = self._wanted, ""
            await self._replan(reason)

    async def _replan(self, reason: str) -> None:
        look = self._replanner.look_again(self._loop.time())
        if look is None:
            return
        try:
            plan = self._replanner.adopt(look, await self._make_plan(look.view))
        except StormbedError as error:
            log.warning("no new plan: %s", error)
            return
        if plan is not None:
            self._use_plan(plan, self._replanner.why(reason))
        self._offer_detours(look.rates)

    def reported(self, site: int, ways: Sequence[Sequence[Any]], probe_bytes: int = 0) -> None:
        """Estimates of what comes in at `site`: [from, path number, bit/s] each; and what it has probed."""
        self.probe_bytes[site] = probe_bytes
        self._replanner.reported(site, ways, self._loop.time())
        self.report_bytes += len(pack_body(ways))

    async def check(self) -> bool:
        """Look at the rates; whether they led to a new plan."""
        look = self._replanner.look(self._loop.time())
        if look is None:
            return False
        accepted, plan = self._replanner.judge(look, await self._make_plan(look.view))
        if plan is not None:
            self._use_plan(plan, self._replanner.why("rates"))
        self._offer_detours(look.rates)
        return accepted

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self.awareness.check_period_s)
            try:
                await self.check()
            except StormbedError as error:
                log.warning("no new plan: %s", error)

    def _offer_detours(self, rates: Rates) -> None:
        """Tell the sites which paths have something to spare, when that has changed."""
        detours = self._replanner.detours(rates)
        if detours is not None:
            self._broadcast("detours", {"detours": detours})

    def status(self) -> dict[str, Any]:
        """Plain values for `status` and results."""
        spent = {"report_bytes": self.report_bytes, "probe_bytes": sum(self.probe_bytes.values())}
        return {**self._replanner.status(self._loop.time()), **spent}
