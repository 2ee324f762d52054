"""The coordinator's side of measuring the network during one segment of a job: rates, new plans, detours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agents.auxiliary import Detours, spare_detours
from agents.config import Config
from agents.options import AuxiliaryOptions, AwarenessOptions
from agents.planning.base import NetworkView, Plan
from agents.rate_matrix import Rates, make_matrix, mean_change, predicted_gain
from agents.sync.policy import Policy
from agents.wire import pack_body
from topologies.errors import StormbedError

log = logging.getLogger(__name__)


class NetworkWatch:
    """See the module's text. All methods run on the coordinator's loop.

    Args:
        config: the network.
        members: the job's sites.
        declared: bit/s of every directed link, what is planned with unless links are measured.
        view: what a scheduler sees of such rates.
        make_plan: plans with them, elsewhere than on the loop.
        use_plan: makes a plan the one of the next collective.
        broadcast: sends a frame to all sites of the job.

    Attributes:
        plan: the latest plan.
        reports, report_bytes: from the sites, and what they took.
        checks, replans: looks at the rates, and new plans that came of them.
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
        use_plan: Callable[[Plan], None],
        broadcast: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.awareness = awareness
        self.auxiliary = auxiliary
        self.matrix = make_matrix(awareness, declared)
        self.plan: Plan | None = None
        self.reports = self.report_bytes = 0
        self.checks = self.replans = 0
        self._config = config
        self._members = members
        self._declared = declared
        self._view = view
        self._make_plan = make_plan
        self._use_plan = use_plan
        self._broadcast = broadcast
        self._loop = asyncio.get_running_loop()
        self._snapshot: Mapping[tuple[int, int], float] = {}
        self._detours: Detours = frozenset()
        self._task: asyncio.Task[None] | None = None

    def options(self) -> dict[str, Any]:
        """What the sites are told."""
        return {"awareness": self.awareness.model_dump(), "auxiliary": self.auxiliary.model_dump()}

    def rates(self) -> Rates:
        """What to plan with now."""
        return self.matrix.rates(self._loop.time()) if self.awareness.on else self._declared

    async def first_plan(self) -> Plan:
        """The segment's plan to begin with."""
        self._snapshot = self.rates()
        self.plan = await self._make_plan(self._view(self._snapshot))
        return self.plan

    def keep_plan(self, policy: Policy | None) -> None:
        """The segment begins with the plan that is in use."""
        self._snapshot = self.rates()
        self.plan = None if policy is None else policy.plan

    def start(self) -> None:
        """The sites know their options: follow the network from now on."""
        self._offer_detours(self.rates())
        if self.awareness.on:
            self._task = self._loop.create_task(self._follow())

    def stop(self) -> None:
        """The segment is over."""
        if self._task is not None:
            self._task.cancel()

    def reported(self, site: int, ways: Sequence[Sequence[Any]]) -> None:
        """Estimates of what comes in at `site`: [from, path number, bit/s] each."""
        now = self._loop.time()
        for peer, number, rate in ways:
            if (peer, site) in self._config.paths and rate > 0:
                self.matrix.report(self._config.path(peer, site, number), float(rate), now)
        self.reports += 1
        self.report_bytes += len(pack_body(ways))

    async def check(self) -> bool:
        """Look at the rates; whether they led to a new plan."""
        self.checks += 1
        rates = self.rates()
        changed = mean_change(self._snapshot, rates)
        if self.plan is None or self.plan.transfers is not None or not changed > self.awareness.update_rate:
            return False
        view = self._view(rates)
        proposed = await self._make_plan(view)
        by_gain = self.awareness.replanning == "gain"
        if by_gain and predicted_gain(self.plan, proposed, view) <= self.awareness.min_gain:
            self._offer_detours(rates)
            return False
        self._snapshot = rates
        if _unscored(proposed) != _unscored(self.plan):
            self.replans += 1
            self.plan = proposed
            self._use_plan(proposed)
        self._offer_detours(rates)
        return True

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self.awareness.check_period_s)
            try:
                await self.check()
            except StormbedError as error:
                log.warning("no new plan: %s", error)

    def _offer_detours(self, rates: Rates) -> None:
        """Tell the sites which paths have something to spare, when that has changed."""
        if self.auxiliary.rule != "capacity" or self.plan is None:
            return
        view = self._view(rates)
        place = {site: k for k, site in enumerate(self._members)}
        paths = {
            (place[u], place[v]): tuple(tuple(place.get(site, -1) for site in path) for path in alternatives)
            for (u, v), alternatives in self._config.paths.items()
            if u in place and v in place
        }
        spare = spare_detours(self.plan, view, paths, self.auxiliary.spare_ratio)
        if spare != self._detours:
            self._detours = spare
            plain = [[self._members[u], self._members[v], number] for u, v, number in sorted(spare)]
            self._broadcast("detours", {"detours": plain})

    def status(self) -> dict[str, Any]:
        """Plain values for `status` and results; measured rates by "from>to"."""
        names = self._config.topology.site_names
        now = self._loop.time()
        return {
            "awareness": self.awareness.estimator,
            "auxiliary": self.auxiliary.rule,
            "reports": self.reports,
            "report_bytes": self.report_bytes,
            "checks": self.checks,
            "replans": self.replans,
            "measured": {
                f"{names[u]}>{names[v]}": {"rate_bps": found.rate, "age_s": max(0.0, now - found.at)}
                for (u, v), found in self.matrix.estimates.items()
            },
        }


def _unscored(plan: Plan) -> Plan:
    """A plan without what it was ranked by, which moves with every rate and which no site acts on."""
    return replace(plan, trees=tuple(replace(tree, score=0.0) for tree in plan.trees))
