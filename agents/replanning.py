"""When measured rates are reason to plan anew, and which detours the sites may take. Pure.

The caller plans, wherever it likes and for as long as it takes, between `look` and `judge`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents.auxiliary import Detours, spare_detours
from agents.declared_network import DeclaredNetwork
from agents.link_state import NetworkNow
from agents.options import AuxiliaryOptions, AwarenessOptions
from agents.planning.base import NetworkView, Plan
from agents.rate_matrix import Rates, make_matrix, mean_change, predicted_gain


@dataclass(frozen=True)
class Look:
    """The rates at one moment and what a scheduler sees of them."""

    rates: Rates
    view: NetworkView


class Replanner:
    """The coordinator's knowledge of the links during one segment of a job. Times are seconds of its clock.

    Args:
        network: as declared.
        members: the job's sites.
        declared: bit/s of every directed link, what is planned with unless links are measured.
        view: what a scheduler sees of such rates.

    Attributes:
        plan: the latest plan.
        reports: from the sites.
        checks, replans: looks at the rates, and new plans that came of them.
        now: the network without the links that are down.
        gain: what the latest new plan promised, relative; None where that was no reason for it.
    """

    def __init__(
        self,
        awareness: AwarenessOptions,
        auxiliary: AuxiliaryOptions,
        *,
        network: DeclaredNetwork,
        members: tuple[int, ...],
        declared: Rates,
        view: Callable[[Rates], NetworkView],
    ) -> None:
        self.awareness = awareness
        self.auxiliary = auxiliary
        self.matrix = make_matrix(awareness, declared)
        self.plan: Plan | None = None
        self.reports = 0
        self.checks = self.replans = 0
        self._network = network
        self._members = members
        self._declared = declared
        self._view = view
        self.now = NetworkNow(network)
        self.gain: float | None = None
        self._draws = 0
        self._snapshot: Rates = {}
        self._detours: Detours = frozenset()

    def rates(self, now: float) -> Rates:
        """What to plan with now."""
        return self.now.rates(self.matrix.rates(now) if self.awareness.on else self._declared)

    def links_changed(self, down: Iterable[int]) -> None:
        """These links are down now: what was measured on those that failed or returned counts no more."""
        for hop in self.now.change(down):
            self.matrix.estimates.pop(hop, None)

    def begin(self, now: float, plan: Plan | None = None) -> Look:
        """The segment begins: what its first plan is to be made for, or the plan that it keeps."""
        self.plan = plan
        self._snapshot = self.rates(now)
        return Look(self._snapshot, self._view(self._snapshot))

    def reported(self, site: int, ways: Sequence[Sequence[Any]], now: float) -> None:
        """Estimates of what comes in at `site`: [from, path number, bit/s] each."""
        for peer, number, rate in ways:
            if (peer, site) in self._network.paths and rate > 0:
                path = self.now.path(peer, site, number)
                if path is not None:
                    self.matrix.report(path, float(rate), now)
        self.reports += 1

    def look(self, now: float) -> Look | None:
        """A check is due: what to plan anew for, None when the rates give no reason."""
        self.checks += 1
        rates = self.rates(now)
        changed = mean_change(self._snapshot, rates)
        if self.plan is None or self.plan.transfers is not None or not changed > self.awareness.update_rate:
            return None
        return Look(rates, self._view(rates))

    def look_again(self, now: float) -> Look | None:
        """What to plan anew for, whatever the rates; None under a plan that decides per transfer."""
        if self.plan is None or self.plan.transfers is not None:
            return None
        self._draws += 1
        rates = self.rates(now)
        return Look(rates, replace(self._view(rates), draw=self._draws))

    def adopt(self, look: Look, proposed: Plan) -> Plan | None:
        """Take a plan for `look_again`; it, where it is another one."""
        self._snapshot = look.rates
        if self.plan is not None and _unscored(proposed) == _unscored(self.plan):
            return None
        self.gain = None if self.plan is None else predicted_gain(self.plan, proposed, look.view)
        self.replans += 1
        self.plan = proposed
        return proposed

    def why(self, reason: str) -> dict[str, Any]:
        """What is kept of the latest new plan: the reason, and what it promised where that is a number."""
        finite = self.gain is not None and math.isfinite(self.gain)
        return {"reason": reason, "gain_ratio": self.gain if finite else None}

    def judge(self, look: Look, proposed: Plan) -> tuple[bool, Plan | None]:
        """Whether the proposed plan is better by what the options ask for, and it where sites act on it."""
        assert self.plan is not None, "`look` saw one"
        by_gain = self.awareness.replanning == "gain"
        if by_gain and predicted_gain(self.plan, proposed, look.view) <= self.awareness.min_gain:
            return False, None
        return True, self.adopt(look, proposed)

    def detours(self, rates: Rates) -> list[list[int]] | None:
        """The paths with something to spare, [from, to, number] each; None when the sites know already."""
        if self.auxiliary.rule != "capacity" or self.plan is None:
            return None
        place = {site: k for k, site in enumerate(self._members)}
        paths = {
            (place[u], place[v]): tuple(tuple(place.get(site, -1) for site in path) for path in alternatives)
            for (u, v), alternatives in self._network.paths.items()
            if u in place and v in place
        }
        spare = spare_detours(self.plan, self._view(rates), paths, self.auxiliary.spare_ratio)
        if spare == self._detours:
            return None
        self._detours = spare
        return [[self._members[u], self._members[v], number] for u, v, number in sorted(spare)]

    def status(self, now: float) -> dict[str, Any]:
        """Plain values for `status` and results; measured rates by "from>to"."""
        names = self._network.topology.site_names
        return {
            "awareness": self.awareness.estimator,
            "auxiliary": self.auxiliary.rule,
            "reports": self.reports,
            "checks": self.checks,
            "replans": self.replans,
            "measured": {
                f"{names[u]}>{names[v]}": {"rate_bps": found.rate, "age_s": max(0.0, now - found.at)}
                for (u, v), found in self.matrix.estimates.items()
            },
            "links_down": ["-".join(self._network.topology.links[k].endpoints) for k in sorted(self.now.down)],
        }


def _unscored(plan: Plan) -> Plan:
    """A plan without what it was ranked by, which moves with every rate and which no site acts on."""
    return replace(plan, trees=tuple(replace(tree, score=0.0) for tree in plan.trees))
