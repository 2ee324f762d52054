"""Networks, plans and collectives that a seed draws, among them some that no scheduler would think of."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from agents.planning.base import NetworkView, Plan, Tree
from agents.planning.registry import get_scheduler
from agents.planning.timing import timing_of
from agents.sync import spec as collectives
from agents.sync.spec import CollectiveSpec


def names(n: int) -> tuple[str, ...]:
    return tuple(f"dc{k + 1}" for k in range(n))


def random_view(rng: random.Random, n: int) -> NetworkView:
    """A connected random graph with directed rates, many of them equal."""
    rates: dict[tuple[int, int], float] = {}
    for v in range(1, n):
        u = rng.randrange(v)
        rates[u, v], rates[v, u] = (rng.choice((20, 50, 100)) * 1e6 for _ in range(2))
    for _ in range(rng.randrange(n + 1)):
        u, v = rng.randrange(n), rng.randrange(n)
        if u != v:
            rates[u, v], rates[v, u] = (rng.choice((20, 50, 100)) * 1e6 for _ in range(2))
    return NetworkView(n, rates, names(n))


def random_parents(rng: random.Random, n: int, root: int) -> tuple[int | None, ...]:
    order = [v for v in range(n) if v != root]
    rng.shuffle(order)
    parents: list[int | None] = [None] * n
    placed = [root]
    for v in order:
        parents[v] = rng.choice(placed)
        placed.append(v)
    return tuple(parents)


def random_plan(rng: random.Random, n: int) -> Plan:
    """What a scheduler makes of a random network, or trees that no scheduler would think of."""
    view = random_view(rng, n)
    if rng.random() < 0.5:
        name = rng.choice(("netstorm", "star-first", "star-best", "star-all", "mlnet", "ring", "tsengine"))
        spec: dict[str, Any] = {"name": name}
        if name == "tsengine":
            spec["options"] = {"server": rng.choice(names(n)), "seed": rng.randrange(100)}
        return varied(rng, get_scheduler(spec, names(n)).plan(view), view)
    weights = [rng.randint(1, 5) for _ in range(rng.randint(1, 4))]
    trees = []
    for weight in weights:
        root = rng.randrange(n)
        pull = random_parents(rng, n, root) if rng.random() < 0.5 else None
        trees.append(Tree(root, weight / sum(weights), 0.0, random_parents(rng, n, root), pull))
    return varied(rng, Plan("random", tuple(trees)), view)


def varied(rng: random.Random, plan: Plan, view: NetworkView) -> Plan:
    """The same trees with any cut, order on the links and run-ahead, even the narrowest window."""
    return replace(
        plan,
        cut=rng.choice(("quota", "smooth")),
        link_order=rng.choice(("fifo", "index", "slack")),
        run_ahead=rng.choice((None, 0.0, 0.5)),
        timing=timing_of(plan.trees, view),
    )


def random_spec(rng: random.Random, n: int, chunk_elements: int) -> CollectiveSpec:
    c = chunk_elements
    elements = rng.choice((0, 1, max(c - 1, 1), c, c + 1, 2 * c, 5 * c + 2))
    dtype = rng.choice(("float32", "float64", "int64", "int32", "uint8"))
    ranks = [rng.randrange(n) for _ in range(rng.randint(1, 5))]
    kind = rng.choice(collectives.KINDS)
    if kind == "allreduce":
        op = rng.choice(collectives.OPS if dtype[0] != "f" else collectives.OPS[:4])
        return collectives.allreduce(elements, dtype, op)
    if kind == "reduce":
        return collectives.reduce(elements, rng.randrange(n), dtype)
    if kind == "broadcast":
        return collectives.broadcast(elements, rng.randrange(n), n, dtype)
    if kind == "gather":
        return collectives.gather(elements, rng.randrange(n), ranks, dtype)
    if kind == "scatter":
        return collectives.scatter(elements, rng.randrange(n), ranks, dtype)
    if kind == "allgather":
        return collectives.allgather(elements, ranks, n, dtype)
    return collectives.barrier()
