"""Random plans and collectives for trials of the protocol, and what the collectives must come to."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt

from agents.chunks import Chunk
from agents.planning.base import Plan, Tree
from agents.planning.transfers import Transfers
from agents.planning.tsengine import TsEngine
from agents.sync.spec import CollectiveSpec, Part

Array = npt.NDArray[Any]


def random_plan(rng: random.Random, n: int) -> Plan:
    """One to four random trees over all sites, some with a pull tree of their own; three plans in ten decide
    large all-reduces per transfer, with leases that no fault of a trial outlasts.
    """
    trees = []
    weights = [rng.random() + 0.05 for _ in range(rng.randint(1, 4))]
    for weight in weights:
        root = rng.randrange(n)
        pull = _random_parents(rng, n, root) if rng.random() < 0.4 else None
        trees.append(Tree(root, weight / sum(weights), rng.random(), _random_parents(rng, n, root), pull))
    transfers = None
    if rng.random() < 0.3:
        rule = TsEngine(server=rng.randrange(n), seed=rng.randrange(1000), lease_s=rng.choice((1.0, 30.0)))
        transfers = Transfers(rule.server, rule)
    return Plan("random", tuple(trees), rng.choice(("fifo", "index")), transfers=transfers)


def _random_parents(rng: random.Random, n: int, root: int) -> tuple[int | None, ...]:
    others = [v for v in range(n) if v != root]
    rng.shuffle(others)
    parents: list[int | None] = [None] * n
    placed = [root]
    for v in others:
        parents[v] = rng.choice(placed)
        placed.append(v)
    return tuple(parents)


def random_spec(rng: random.Random, n: int) -> CollectiveSpec:
    """A collective of any kind; sizes from nothing to a few hundred elements."""
    everyone = frozenset(range(n))
    sizes = (0, 1, rng.randint(2, 50), rng.randint(50, 400))
    dtype = rng.choice(("float32", "float32", "float64", "int64", "uint8"))
    one = rng.randrange(n)
    ranks = sorted([*range(n), *(rng.randrange(n) for _ in range(rng.randrange(3)))])
    match rng.choice(
        ("allreduce",) * 6 + ("reduce", "broadcast", "allgather", "gather", "scatter", "barrier")
    ):
        case "allreduce":
            op = rng.choice(("sum", "sum", "max", "min"))
            return CollectiveSpec("allreduce", op, dtype, (Part(rng.choice(sizes)),))
        case "reduce":
            return CollectiveSpec("reduce", "sum", dtype, (Part(rng.choice(sizes), None, frozenset({one})),))
        case "broadcast":
            part = Part(rng.choice(sizes), frozenset({one}), everyone - {one})
            return CollectiveSpec("broadcast", None, dtype, (part,))
        case "allgather":
            size = rng.choice(sizes)
            parts = tuple(Part(size, frozenset({site}), everyone - {site}) for site in ranks)
            return CollectiveSpec("allgather", None, dtype, parts)
        case "gather":
            size = rng.choice(sizes)
            parts = tuple(Part(size, frozenset({site}), frozenset({one}) - {site}) for site in ranks)
            return CollectiveSpec("gather", None, dtype, parts)
        case "scatter":
            size = rng.choice(sizes)
            parts = tuple(Part(size, frozenset({one}), frozenset({site}) - {one}) for site in ranks)
            return CollectiveSpec("scatter", None, dtype, parts)
    return CollectiveSpec("barrier", "max", "uint8", (Part(1),))


def contribution(site: int, seq: int, chunk: Chunk, dtype: str) -> Array:
    """Small integers, so that sums are exact in every element type."""
    index = np.arange(chunk.offset, chunk.offset + chunk.size)
    return ((index * 7 + site * 13 + seq * 5 + chunk.part) % 17).astype(dtype)


def expected_result(contributors: list[int], seq: int, chunk: Chunk, spec: CollectiveSpec) -> Array:
    """The combination, computed without the protocol."""
    rows = np.stack([contribution(site, seq, chunk, spec.dtype) for site in contributors])
    match spec.op:
        case "max":
            return rows.max(axis=0)
        case "min":
            return rows.min(axis=0)
    return rows.sum(axis=0, dtype=rows.dtype)
