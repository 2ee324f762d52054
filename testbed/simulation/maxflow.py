"""Maximum flows with exact integer capacities.

The bounds compare sums of rates in bit/s multiplied by numbers of sites. Those products leave 32 bits, to
which scipy's maximum_flow silently truncates, so this is a plain Dinic on Python integers.
"""

from __future__ import annotations

from collections import deque


class FlowGraph:
    """A directed graph on nodes 0..n-1, integer capacities. Arcs 2k and 2k+1 are each other's residual."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.head: list[list[int]] = [[] for _ in range(n)]
        self.to: list[int] = []
        self.left: list[int] = []

    def add(self, u: int, v: int, capacity: int, back: int = 0) -> None:
        """Add the arc u->v, and v->u with capacity `back` (an undirected edge when both are equal)."""
        self.head[u].append(len(self.to))
        self.to.append(v)
        self.left.append(capacity)
        self.head[v].append(len(self.to))
        self.to.append(u)
        self.left.append(back)

    def max_flow(self, source: int, sink: int) -> int:
        """Value of a maximum flow; the residual capacities stay behind for `reachable`."""
        total = 0
        while (level := self._levels(source, sink)) is not None:
            pointer = [0] * self.n
            while (pushed := self._augment(source, sink, level, pointer)) > 0:
                total += pushed
        return total

    def reachable(self, source: int) -> list[bool]:
        """After `max_flow`: the source side of the smallest minimum cut."""
        seen = [False] * self.n
        seen[source] = True
        stack = [source]
        while stack:
            u = stack.pop()
            for arc in self.head[u]:
                v = self.to[arc]
                if self.left[arc] > 0 and not seen[v]:
                    seen[v] = True
                    stack.append(v)
        return seen

    def _levels(self, source: int, sink: int) -> list[int] | None:
        level = [-1] * self.n
        level[source] = 0
        queue = deque([source])
        while queue:
            u = queue.popleft()
            for arc in self.head[u]:
                v = self.to[arc]
                if self.left[arc] > 0 and level[v] < 0:
                    level[v] = level[u] + 1
                    queue.append(v)
        return level if level[sink] >= 0 else None

    def _augment(self, source: int, sink: int, level: list[int], pointer: list[int]) -> int:
        path: list[int] = []
        u = source
        while u != sink:
            arcs = self.head[u]
            while pointer[u] < len(arcs):
                arc = arcs[pointer[u]]
                if self.left[arc] > 0 and level[self.to[arc]] == level[u] + 1:
                    break
                pointer[u] += 1
            else:
                if not path:
                    return 0
                level[u] = -1
                u = self.to[path.pop() ^ 1]
                continue
            path.append(arcs[pointer[u]])
            u = self.to[path[-1]]
        amount = min(self.left[arc] for arc in path)
        for arc in path:
            self.left[arc] -= amount
            self.left[arc ^ 1] += amount
        return amount
