"""What a tree means to each of its sites: who is above, who is below, and what passes."""

from __future__ import annotations

from dataclasses import dataclass

from agents.planning.base import Tree


@dataclass(frozen=True, slots=True)
class Role:
    """What one site does for the chunks of one tree with given contributors and targets.

    own            this site contributes
    up_from        bit mask of the children that send a partial sum
    up_to          where the partial sum goes; None at the root, or when nothing comes together here
    down_from      who sends the result; None at the root, or when no result passes here
    down_to        children that get the result from here
    deliver        this site wants the result
    merges         something comes together here (own or from below), so there is a partial sum to wait for
    """

    own: bool
    up_from: int
    up_to: int | None
    down_from: int | None
    down_to: tuple[int, ...]
    deliver: bool
    merges: bool


class Relation:
    """One tree seen by all sites: children, depths and subtrees of the push and the pull direction.

    push_children[v], pull_children[v]   ascending
    depth[v]                             hops from v up to the root
    below_push[v], below_pull[v]         bit mask of the sites of the subtree at v, v included
    """

    def __init__(self, tree: Tree) -> None:
        self.root = tree.root
        self.push_parents = tree.parents
        self.pull_parents = tree.down_parents
        self.push_children, self.below_push, self.depth = _derive(tree.root, tree.parents)
        self.pull_children, self.below_pull, _ = _derive(tree.root, tree.down_parents)
        self._roles: dict[tuple[int, int, int], Role] = {}

    def role(self, site: int, contributors: int, targets: int) -> Role:
        """The role of `site` when the bit masks `contributors` and `targets` say who gives and who wants."""
        key = (site, contributors, targets)
        role = self._roles.get(key)
        if role is None:
            role = self._roles[key] = self._make_role(site, contributors, targets)
        return role

    def _make_role(self, site: int, contributors: int, targets: int) -> Role:
        if not targets:
            contributors = 0  # nobody wants it, so nothing moves
        own = bool(contributors >> site & 1)
        up_from = 0
        for child in self.push_children[site]:
            if self.below_push[child] & contributors:
                up_from |= 1 << child
        merges = own or up_from != 0
        at_root = site == self.root
        down_to = tuple(c for c in self.pull_children[site] if self.below_pull[c] & targets)
        passes = bool(self.below_pull[site] & targets)
        return Role(
            own=own,
            up_from=up_from,
            up_to=self.push_parents[site] if merges else None,
            down_from=self.pull_parents[site] if passes and not at_root else None,
            down_to=down_to,
            deliver=bool(targets >> site & 1),
            merges=merges,
        )


def _derive(
    root: int, parents: tuple[int | None, ...]
) -> tuple[tuple[tuple[int, ...], ...], list[int], list[int]]:
    n = len(parents)
    children: list[list[int]] = [[] for _ in range(n)]
    for v, parent in enumerate(parents):
        if parent is not None:
            children[parent].append(v)
    order = [root]
    depth = [0] * n
    for u in order:
        for v in children[u]:
            depth[v] = depth[u] + 1
            order.append(v)
    below = [1 << v for v in range(n)]
    for v in reversed(order):
        parent = parents[v]
        if parent is not None:
            below[parent] |= below[v]
    return tuple(tuple(c) for c in children), below, depth
