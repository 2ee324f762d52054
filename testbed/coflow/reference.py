"""The simulator once more, small and exact: for hand-computed vectors and to check the fast engines.

Any numbers, rationals too; rates are renewed at every arrival and every end of a flow, the order as in the
simulator. Rankings that are over at a time (Sincronia's epochs) are not renewed then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agents.coflow.base import (
    TIE,
    Allocation,
    Coflow,
    CoflowError,
    Job,
    Number,
    Ordering,
    Ranking,
    Stage,
    View,
    largest,
)
from agents.coflow.fabric import Fabric, Flow, merged
from agents.coflow.rates import Backlog, greedy, max_min

# A flow: its coflow's place, its own place in it.
FlowId = tuple[int, int]


@dataclass(frozen=True)
class Arrival:
    """A coflow that arrives. With a stage given, its job has this one synchronisation to do."""

    flows: tuple[Flow, ...]
    time: Number = 0
    stage: int | None = None


def completion_times(
    fabric: Fabric,
    arrivals: Sequence[Arrival],
    ordering: Ordering,
    allocation: Allocation | None = None,
) -> dict[int, Number]:
    """When each coflow ends, by its place in `arrivals`, which is its id too. Fair or greedy rates."""
    if (allocation or ordering.allocation) == "madd":
        raise CoflowError("the reference gives fair and greedy rates only")
    flows = [merged(arrival.flows) for arrival in arrivals]
    left: dict[FlowId, Number] = {
        (k, f): flow.size for k, members in enumerate(flows) for f, flow in enumerate(members)
    }
    route = {
        (k, f): fabric.route(flow.src, flow.dst) for k, own in enumerate(flows) for f, flow in enumerate(own)
    }
    finish: dict[int, Number] = {}
    now: Number = 0
    ranked: list[int] | None = None
    ranking = Ranking(())
    while len(finish) < len(arrivals):
        active = [k for k, arrival in enumerate(arrivals) if arrival.time <= now and k not in finish]
        passed = any(not _short(k, amount, flows, left) for k, amount in ranking.watch.items())
        if active != ranked or passed:
            ranking, ranked = ordering.order(_view(fabric, arrivals, flows, left, active, now)), active
        free = dict(enumerate(fabric.capacity))
        rates: dict[FlowId, Number] = {}
        for members in ranking.classes:
            backlog = [
                Backlog((k, f), left[k, f], route[k, f]) for k in members for f in range(len(flows[k]))
            ]
            shared = len(members) > 1 or (allocation or ordering.allocation) == "fair"
            rates |= max_min(backlog, free) if shared else greedy(backlog, free)
        moments = [now + left[flow] / rate for flow, rate in rates.items() if rate > 0]
        moments += [arrival.time for arrival in arrivals if arrival.time > now]
        moments += [
            now + (amount - _sent(k, flows, left)) / speed
            for k, amount in ranking.watch.items()
            if (speed := sum(rate for (owner, _), rate in rates.items() if owner == k)) > 0
            and _short(k, amount, flows, left)
        ]
        if not moments:
            raise CoflowError(f"coflows {active} are stuck at {now}")
        then = min(moments)
        for flow, rate in rates.items():
            ends = now + left[flow] / rate <= then if rate > 0 else False
            left[flow] = 0 if ends else left[flow] - rate * (then - now)
        now = then
        for k in active:
            if all(left[k, f] == 0 for f in range(len(flows[k]))):
                finish[k] = now
    return finish


def _sent(k: int, flows: Sequence[Sequence[Flow]], left: Mapping[FlowId, Number]) -> Number:
    return sum(flow.size - left[k, f] for f, flow in enumerate(flows[k]))


def _short(k: int, amount: Number, flows: Sequence[Sequence[Flow]], left: Mapping[FlowId, Number]) -> bool:
    """Whether more than rounding is missing until a coflow has sent so much."""
    return bool((amount - _sent(k, flows, left)) * TIE > amount)


def _view(
    fabric: Fabric,
    arrivals: Sequence[Arrival],
    flows: Sequence[Sequence[Flow]],
    left: Mapping[FlowId, Number],
    active: Sequence[int],
    now: Number,
) -> View:
    coflows = []
    stages: dict[int, list[Job]] = {}
    for k in active:
        own = [Flow(flow.src, flow.dst, left[k, f]) for f, flow in enumerate(flows[k])]
        loads = {link: load for link, load in fabric.loads(own).items() if load > 0}
        size = sum(flow.size for flow in flows[k])
        coflows.append(
            Coflow(
                k,
                loads,
                arrivals[k].time,
                size,
                _sent(k, flows, left),
                largest(fabric.loads(flows[k])),
                job=k,
            )
        )
        stage = arrivals[k].stage
        if stage is not None:
            stages.setdefault(stage, []).append(Job(k, 0, unsent=loads))
    return View(now, tuple(coflows), tuple(Stage(number, tuple(jobs)) for number, jobs in stages.items()))
