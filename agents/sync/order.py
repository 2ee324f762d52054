"""Which waiting chunk a link takes next, how far contributions may run ahead of results, and how large chunks are.

All gradients of a collective are ready at once, so where a site is a leaf of a tree the whole share of that
tree waits for the link at once. First in, first out, a chunk of another tree that passes through waits behind
all of it, though the plan gave it its part of the rate there; the links after it idle now and must carry it
in one lump later. Two other orders:

* by index: chunks are numbered in the order in which they are due (smooth round robin over the trees);
* by slack: the chunk first that must start first to be in time. With T0 = bits / rate of the plan, a chunk at
  position p is due everywhere at T0 p. A partial sum that waits at v still has the way up to the root and
  down to the farthest leaf before it, a result that goes to v the way down from v:
      tail_down(v) = max over pull children c of  hop(v, c) + tail_down(c)          (0 at leaves)
      tail_up(root) = tail_down(root);   tail_up(v) = hop(v, parent) + tail_up(parent)
      key = T0 p - tail_up(v) for sums sent by v;   key = T0 p - tail_down(v) for results sent to v.
  Rounded to a nanosecond; the lowest chunk wins ties.

Keys depend on the policy alone, so every site computes them without clock or message. Nothing starves: the
chunks of a collective are finite, and an earlier collective goes first. Source: own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from agents.chunks import Chunk
from agents.planning.base import Plan, Timing
from agents.sync.relations import Relation

Priority = tuple[float, int]
Key = Callable[[Chunk, str, int, int], Priority]
"""(chunk, direction, sender, receiver) -> sort key of the waiting message, smallest first."""

FILL = 1.1
"""Measured: what a synchronisation takes beyond bits over rate, in mean latencies of the trees."""
_INDEX_BITS = 32


class Tails:
    """up[v], down[v] of one tree in seconds, as the module's text defines them; latency = their sum at the
    root: the time of a chunk from the farthest leaf to the farthest leaf.
    """

    def __init__(self, relation: Relation, hop: dict[tuple[int, int], float]) -> None:
        n = len(relation.push_parents)
        self.down = [0.0] * n
        self.up = [0.0] * n
        for v in reversed(_from_root(relation.root, relation.pull_children)):
            self.down[v] = max((hop[v, c] + self.down[c] for c in relation.pull_children[v]), default=0.0)
        order = _from_root(relation.root, relation.push_children)
        self.up[relation.root] = self.down[relation.root]
        for v in order[1:]:
            parent = relation.push_parents[v]
            assert parent is not None, "only the root has no parent"
            self.up[v] = hop[v, parent] + self.up[parent]
        self.latency = max(self.up)


def _from_root(root: int, children: tuple[tuple[int, ...], ...]) -> list[int]:
    order = [root]
    for v in order:
        order.extend(children[v])
    return order


def slack_key(
    seq: int,
    plan: Plan,
    relations: tuple[Relation, ...],
    chunk_bits: float,
    total_bits: float,
    due_s: float = 0.0,
) -> Key:
    """The order by slack of one collective of `total_bits`, cut into chunks of at most `chunk_bits`, of which
    the first is due after `due_s`.
    """
    timing = _timing(plan)
    hop = timing.hop_seconds(chunk_bits)
    tails = [Tails(relation, hop) for relation in relations]
    span = total_bits / timing.rate_bps if timing.rate_bps else 0.0

    def key(chunk: Chunk, direction: str, src: int, dst: int) -> Priority:
        tail = tails[chunk.tree]
        slack = due_s + span * chunk.position - (tail.up[src] if direction == "up" else tail.down[dst])
        # One number, because a sort key is (collective, rank): nanoseconds first, then the chunk.
        return float(seq), (round(slack * 1e9) << _INDEX_BITS) + chunk.index

    return key


def window(plan: Plan, relations: tuple[Relation, ...], chunk_bits: float) -> int | None:
    """W: a site offers its own contribution to chunk g where it is a leaf once g < results it has + W.

    W = max(2 trees, ceil(run_ahead rate L / chunk bits)), L the trees' mean latency weighted by share. The
    lowest chunk without result at a site is always offered, so a window holds nothing up for ever. None where
    the plan sets no limit.
    """
    if plan.run_ahead is None:
        return None
    timing = _timing(plan)
    hop = timing.hop_seconds(chunk_bits)
    pairs = zip(plan.trees, relations, strict=True)
    latency = math.fsum(tree.share * Tails(relation, hop).latency for tree, relation in pairs)
    return max(2 * len(plan.trees), math.ceil(plan.run_ahead * timing.rate_bps * latency / chunk_bits))


def fitted_chunk_bits(plan: Plan, relations: tuple[Relation, ...], total_bits: float, message_s: float) -> float:
    """The chunk size that a synchronisation of `total_bits` is predicted to be shortest with.

    Filling the trees takes about 1.1 times their mean latency, which grows with the chunk; each message takes
    `message_s` of a link, of which there are the more the smaller the chunks. With b the mean rate of the hops
    and k the mean latency in seconds per bit of a chunk,
        T(C) = total / rate (1 + message_s b / C) + 1.1 k C  is least at C = sqrt(total message_s b / (1.1 k rate)).
    Infinite for a single site, which sends nothing.
    """
    timing = _timing(plan)
    if not timing.hops or not timing.rate_bps:
        return math.inf
    per_bit = {(u, v): seconds for u, v, seconds, _ in timing.hops}
    mean_bps = math.fsum(1 / seconds for seconds in per_bit.values()) / len(per_bit)
    pairs = zip(plan.trees, relations, strict=True)
    latency = math.fsum(tree.share * Tails(relation, per_bit).latency for tree, relation in pairs)
    return math.sqrt(total_bits * message_s * mean_bps / (FILL * latency * timing.rate_bps))


def _timing(plan: Plan) -> Timing:
    assert plan.timing is not None, "checked by Plan"
    return plan.timing
