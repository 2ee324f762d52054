"""Max-min fair rates with strict priority classes, kept up to date as flows come, go and links change.

A rate vector is max-min fair exactly when every flow crosses a full link on which no flow of its class is
faster (its bottleneck; Bertsekas and Gallager, Data Networks, 6.5.2). An update frees only the flows whose
bottleneck was touched, fills the links for them alone, checks that condition on the links it touched, frees
whoever breaks it, and repeats: the work follows the change, not the size of the network.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# Relative to a link's capacity: differences below this are rounding.
EPSILON = 1e-9


@dataclass(eq=False)
class Share:
    """One flow's claim: the links it crosses, in order, and its present rate in bit/s."""

    number: int
    route: tuple[int, ...]
    rate: float = 0.0
    bottleneck: int = -1


@dataclass
class _Class:
    """The flows of one priority class and what the classes above leave to it on every link."""

    capacity: list[float]
    on_link: list[dict[int, Share]]
    used: list[float]
    fresh: dict[int, Share] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)


class FairShares:
    """Rates of flows on links. Class numbers are any integers; a higher class is served first."""

    def __init__(self, capacities: Sequence[float]) -> None:
        self.capacity = [float(c) for c in capacities]
        self._classes: dict[int, _Class] = {}
        self._order: list[int] = []
        self._count = 0
        self.solved = 0

    def add(self, route: Sequence[int], cls: int = 0) -> Share:
        """A new flow; its rate is valid after the next `update`. The route must name at least one link."""
        if not route:
            raise ValueError("a flow needs at least one link")
        level = self._level(cls)
        self._count += 1
        share = Share(self._count, tuple(dict.fromkeys(route)))
        for link in share.route:
            level.on_link[link][share.number] = share
        level.fresh[share.number] = share
        return share

    def remove(self, share: Share, cls: int = 0) -> None:
        level = self._level(cls)
        for link in share.route:
            del level.on_link[link][share.number]
            level.touched.add(link)
        level.fresh.pop(share.number, None)
        share.rate, share.bottleneck = 0.0, -1

    def set_capacity(self, link: int, capacity: float) -> None:
        self.capacity[link] = float(capacity)
        if self._order:
            self._classes[self._order[0]].touched.add(link)

    def update(self) -> list[Share]:
        """Bring all rates up to date; returns the flows whose rate changed, in order of their numbers."""
        changed: dict[int, Share] = {}
        passed_down: set[int] = set()
        for position, cls in enumerate(self._order):
            level = self._classes[cls]
            level.touched |= passed_down
            if not level.touched and not level.fresh:
                continue
            above = self._classes[self._order[position - 1]] if position else None
            for link in level.touched:
                left = self.capacity[link] if above is None else above.capacity[link] - above.used[link]
                # What the classes above leave by rounding is nothing.
                level.capacity[link] = left if left > EPSILON * self.capacity[link] else 0.0
            passed_down = self._solve(level, changed) | level.touched
            level.touched = set()
            level.fresh = {}
        return [changed[number] for number in sorted(changed)]

    def _level(self, cls: int) -> _Class:
        level = self._classes.get(cls)
        if level is None:
            links = len(self.capacity)
            level = _Class([0.0] * links, [{} for _ in range(links)], [0.0] * links)
            level.touched = set(range(links))
            self._classes[cls] = level
            self._order = sorted(self._classes, reverse=True)
            # The class below now has another neighbour above it.
            for other in self._order[self._order.index(cls) + 1 :]:
                self._classes[other].touched = set(range(links))
        return level

    def _solve(self, level: _Class, changed: dict[int, Share]) -> set[int]:
        """Re-share one class; returns the links whose use changed."""
        free: dict[int, Share] = dict(level.fresh)
        for link in level.touched:
            members = level.on_link[link].values()
            too_much = sum(share.rate for share in members) > level.capacity[link] * (1 + EPSILON)
            for share in members:
                if share.bottleneck == link or too_much:
                    free[share.number] = share
        before = {number: share.rate for number, share in free.items()}
        touched = set(level.touched)
        while free:
            self.solved += len(free)
            links = self._fill(level, free)
            touched |= links
            joined = self._broken(level, free, links)
            if not joined:
                break
            for share in joined:
                before[share.number] = share.rate
                free[share.number] = share
        for number, share in free.items():
            if share.rate != before[number] or number in level.fresh:
                changed[number] = share
        moved = set()
        for link in touched:
            used = sum(share.rate for share in level.on_link[link].values())
            if used != level.used[link]:
                level.used[link] = used
                moved.add(link)
        return moved

    def _fill(self, level: _Class, free: dict[int, Share]) -> set[int]:
        """Raise the free flows together, each until one of its links is full; the others keep their rates."""
        left: dict[int, float] = {}
        waiting: dict[int, dict[int, Share]] = {}
        for number in sorted(free):
            share = free[number]
            for link in share.route:
                waiting.setdefault(link, {})[number] = share
        for link, members in waiting.items():
            kept = sum(s.rate for n, s in level.on_link[link].items() if n not in members)
            left[link] = max(level.capacity[link] - kept, 0.0)
        heap = [(left[link] / len(members), link) for link, members in waiting.items()]
        heapq.heapify(heap)
        while heap:
            fair, link = heapq.heappop(heap)
            members = waiting[link]
            if not members:
                continue
            now = max(left[link], 0.0) / len(members)
            if now > fair:
                heapq.heappush(heap, (now, link))
                continue
            fair = now
            others: set[int] = set()
            for number, share in list(members.items()):
                share.rate, share.bottleneck = fair, link
                for crossed in share.route:
                    del waiting[crossed][number]
                    left[crossed] -= fair
                    if crossed != link:
                        others.add(crossed)
            for crossed in sorted(others):
                if waiting[crossed]:
                    heapq.heappush(heap, (max(left[crossed], 0.0) / len(waiting[crossed]), crossed))
        return set(waiting)

    @staticmethod
    def _broken(level: _Class, free: dict[int, Share], links: Iterable[int]) -> list[Share]:
        """Flows that kept their rate although a touched link no longer justifies it."""
        joined: dict[int, Share] = {}
        for link in links:
            slack = EPSILON * level.capacity[link]
            used, fastest, held = 0.0, 0.0, -1.0
            others: list[Share] = []
            for number, share in level.on_link[link].items():
                used += share.rate
                if number in free:
                    fastest = max(fastest, share.rate)
                    if share.bottleneck == link:
                        held = max(held, share.rate)
                else:
                    others.append(share)
            if not others:
                continue
            full = used >= level.capacity[link] - slack
            for share in others:
                was_here = share.bottleneck == link
                if (was_here and (not full or fastest > share.rate + slack)) or (
                    held >= 0 and share.rate > held + slack
                ):
                    joined[share.number] = share
        return [joined[number] for number in sorted(joined)]
