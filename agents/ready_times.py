"""How long after the first each site had its gradients the last time: what a planner may expect. Pure."""

from __future__ import annotations

from agents.sync.messages import Ready


class ReadyTimes:
    """Of one job's sites, by the coordinator's clock in seconds. Several collectives may be under way.

    seconds  by site, 0 for the first; empty before every site has been ready for an all-reduce
    """

    def __init__(self, n_sites: int) -> None:
        self.seconds: tuple[float, ...] = ()
        self._n_sites = n_sites
        self._latest = -1  # the last all-reduce for which all sites were ready
        self._at: dict[int, dict[int, float]] = {}

    def heard(self, message: Ready, now_s: float) -> None:
        """A site is ready; only all-reduces are gradients."""
        if not message.summary.startswith("allreduce") or message.seq <= self._latest:
            return
        at = self._at.setdefault(message.seq, {})
        at.setdefault(message.site, now_s)
        if len(at) == self._n_sites:
            first = min(at.values())
            self.seconds = tuple(since - first for _, since in sorted(at.items()))
            self._latest = message.seq
            self._at = {seq: times for seq, times in self._at.items() if seq > self._latest}

    def forget(self) -> None:
        """A segment begins, in which other times may hold."""
        self.seconds = ()
