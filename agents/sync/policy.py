"""A versioned plan, and what each site derives from it.

A policy is issued by the coordinator with the release of a collective and holds from that collective on.
Every site derives the same relations (who is above and below it in each tree) and the same chunk tables from
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agents.chunks import Chunk, allocate, cut_smoothly, on_one_tree, place_keys
from agents.planning.base import Plan, Timing, Tree
from agents.planning.transfers import Transfers
from agents.sync import order
from agents.sync.relations import Relation
from agents.sync.spec import CollectiveSpec, is_floating, item_size
from topologies.paths import Path, direct_path_number

LEAST_FITTED = 4_096
"""Elements of the smallest chunk that is chosen by itself."""


def hop_paths_of(
    plan: Plan, path_sets: Mapping[tuple[int, int], tuple[Path, ...]]
) -> dict[tuple[int, int], int]:
    """The path number of every hop of a plan: the direct link between neighbours, else the primary (0)."""
    numbers: dict[tuple[int, int], int] = {}
    for tree in plan.trees:
        for site, (up, down) in enumerate(zip(tree.parents, tree.down_parents, strict=True)):
            if up is not None:
                numbers[site, up] = direct_path_number(path_sets, site, up) or 0
            if down is not None:
                numbers[down, site] = direct_path_number(path_sets, down, site) or 0
    return numbers


@dataclass(frozen=True)
class Policy:
    """version         1, 2, ... in the order of issue
    from_seq        the first collective that runs under it
    plan            trees and shares
    chunk_elements  C, the largest chunk
    hop_paths       network path number for (sender, receiver); absent = 0, the primary
    """

    version: int
    from_seq: int
    plan: Plan
    chunk_elements: int
    hop_paths: Mapping[tuple[int, int], int] = field(default_factory=dict)

    @property
    def n_sites(self) -> int:
        return self.plan.n_sites

    @cached_property
    def relations(self) -> tuple[Relation, ...]:
        """One relation per tree of the plan."""
        return tuple(Relation(tree) for tree in self.plan.trees)

    def path(self, src: int, dst: int) -> int:
        return self.hop_paths.get((src, dst), 0)

    def chunk_table(self, spec: CollectiveSpec) -> tuple[Chunk, ...]:
        """The chunks of a collective, the same at every site.

        All-reduces of floating type and more than one chunk are spread over the trees by their shares;
        everything else takes the main tree. A plan that places keys places all-reduces of any size: what tells
        one from another here is the collective's fingerprint, so a tensor keeps its server from one iteration
        to the next.
        """
        sizes = tuple(part.elements for part in spec.parts)
        if not self.spreads(spec) or self.plan.transfers is not None:
            return on_one_tree(sizes, self.chunk_elements, self.plan.main_tree)
        if self.plan.cut == "keys":
            trees, key = len(self.plan.trees), int(spec.digest, 16)
            return place_keys(sizes, self.chunk_elements, trees, self.plan.big_array, key)
        spread = cut_smoothly if self.plan.cut == "smooth" else allocate
        return spread(sizes, self.largest_chunk(spec), self.plan.shares)

    def rest_table(self, spec: CollectiveSpec, before: tuple[Chunk, ...]) -> tuple[Chunk, ...]:
        """The chunks of what is left of a spread collective after the chunks `before`, numbered on from them.

        Positions start again from 0 for the rest.
        """
        last = before[-1]
        sizes = [part.elements for part in spec.parts]
        done = [0] * last.part + [last.offset + last.size]
        for part in range(last.part):
            sizes[part] = 0
        sizes[last.part] -= done[last.part]
        spread = cut_smoothly if self.plan.cut == "smooth" else allocate
        table = spread(tuple(sizes), self.largest_chunk(spec), self.plan.shares)
        return tuple(
            Chunk(
                chunk.part,
                chunk.index + len(before),
                chunk.offset + (done[last.part] if chunk.part == last.part else 0),
                chunk.size,
                chunk.tree,
                chunk.position,
            )
            for chunk in table
        )

    def spreads(self, spec: CollectiveSpec) -> bool:
        """Whether a collective is spread over all trees."""
        largest = max((part.elements for part in spec.parts), default=0)
        enough = largest > (0 if self.plan.cut == "keys" else self.largest_chunk(spec))
        return spec.kind == "allreduce" and is_floating(spec.dtype) and enough

    def per_transfer(self, spec: CollectiveSpec) -> bool:
        """Whether transfers of a collective are decided one by one: all-reduces of floating type, any size,
        from everyone for everyone.
        """
        return (
            self.plan.transfers is not None
            and spec.kind == "allreduce"
            and is_floating(spec.dtype)
            and any(part.elements for part in spec.parts)
            and all(part.contributors is None and part.targets is None for part in spec.parts)
        )

    def link_key(
        self, seq: int, spec: CollectiveSpec, *, bits: float | None = None, due_s: float = 0.0
    ) -> order.Key:
        """The sort key of the chunks of one collective that wait at a sender: smallest first, equal ones in
        FIFO order. A function of the policy alone, so every site computes it without clock or message.

        bits, due_s  of the rest that runs under this policy after a switch: its size, and when the chunk
                     before it was due
        """
        match self.plan.link_order:
            case "slack":
                total = 8.0 * spec.nbytes if bits is None else bits
                return order.slack_key(seq, self.plan, self.relations, self.chunk_bits(spec), total, due_s)
            case "index":
                return lambda chunk, direction, src, dst: (float(seq), chunk.index)
        return lambda chunk, direction, src, dst: (0.0, 0)

    def window(self, spec: CollectiveSpec) -> int | None:
        """How many chunks ahead of its results a site contributes where it is a leaf; None = no limit."""
        if not self.spreads(spec):
            return None
        return order.window(self.plan, self.relations, self.chunk_bits(spec))

    def span_s(self, bits: float) -> float:
        """Seconds that the plan is expected to take for so many bits; 0 where it has no timing."""
        timing = self.plan.timing
        return 0.0 if timing is None or not timing.rate_bps else bits / timing.rate_bps

    def chunk_bits(self, spec: CollectiveSpec) -> float:
        """Bits of a full chunk of a collective."""
        return 8.0 * self.largest_chunk(spec) * item_size(spec.dtype)

    def largest_chunk(self, spec: CollectiveSpec) -> int:
        """Elements of a full chunk of a spread collective: C, or fewer where the plan fits them to its size."""
        plan = self.plan
        if plan.message_s is None:
            return self.chunk_elements
        bits = order.fitted_chunk_bits(plan, self.relations, 8.0 * spec.nbytes, plan.message_s)
        fitted = bits / (8 * item_size(spec.dtype))
        # Below some size a message is nothing but overhead, whatever the model says.
        return min(self.chunk_elements, max(LEAST_FITTED, round(min(fitted, self.chunk_elements))))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire (msgpack or JSON), sites as indexes; the inverse of `from_dict`."""
        timing = self.plan.timing
        return {
            "version": self.version,
            "from_seq": self.from_seq,
            "scheduler": self.plan.scheduler,
            "link_order": self.plan.link_order,
            "cut": self.plan.cut,
            "run_ahead": self.plan.run_ahead,
            "big_array": self.plan.big_array,
            "message_s": self.plan.message_s,
            "server": None if self.plan.transfers is None else self.plan.transfers.server,
            "timing": None
            if timing is None
            else {"rate_bps": timing.rate_bps, "hops": [list(hop) for hop in timing.hops]},
            "trees": [tree.to_dict() for tree in self.plan.trees],
            "chunk_elements": self.chunk_elements,
            "hop_paths": [[u, v, path] for (u, v), path in sorted(self.hop_paths.items())],
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Policy:
        timing = plain["timing"]
        plan = Plan(
            plain["scheduler"],
            tuple(Tree.from_dict(tree) for tree in plain["trees"]),
            plain["link_order"],
            plain["cut"],
            plain["run_ahead"],
            None
            if timing is None
            else Timing(timing["rate_bps"], tuple((u, v, a, b) for u, v, a, b in timing["hops"])),
            None if plain["server"] is None else Transfers(plain["server"]),
            plain["big_array"],
            plain["message_s"],
        )
        return cls(
            version=plain["version"],
            from_seq=plain["from_seq"],
            plan=plan,
            chunk_elements=plain["chunk_elements"],
            hop_paths={(u, v): path for u, v, path in plain["hop_paths"]},
        )
