"""What a run over a trace gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from agents.coflow.base import Allocation
from agents.coflow.fabric import Fabric
from agents.coflow.fifo import FifoLm
from agents.coflow.registry import OrderingSpec, get_ordering
from testbed.coflow.bounds import trace_bound
from testbed.coflow.demand import Array
from testbed.coflow.madd import Backfill
from testbed.coflow.simulator import Done, Simulation, Watch
from testbed.coflow.trace import Trace, TraceWorkload


@dataclass(frozen=True)
class TraceResult:
    """Coflow completion times of one policy over one trace.

    cadence_s      seconds between renewals of rates; 0 = at every end of a flow, None = only when coflows
                   arrive and end
    mean_slowdown  of completion time over isolation time
    mean_wait_s    in which nothing of a coflow was sent
    busiest_link_ratio  of the time until the last end in which the link that carries most was busy
    bound_s        mean completion time that no schedule can beat (`testbed.coflow.bounds.trace_bound`)
    bound_ratio    mean_cct_s over bound_s
    """

    policy: str
    allocation: Allocation
    cadence_s: float | None
    coflows: int
    mean_cct_s: float
    p95_cct_s: float
    mean_slowdown: float
    p95_slowdown: float
    mean_wait_s: float
    makespan_s: float
    busiest_link_ratio: float
    bound_s: float
    bound_ratio: float


def run_trace(
    trace: Trace,
    policy: OrderingSpec,
    rate: float,
    *,
    allocation: Allocation | None = None,
    refresh_s: float | None = None,
    at_once: bool = False,
    backfill: Backfill = "ranked",
    watch: Watch | None = None,
) -> tuple[TraceResult, dict[int, Done]]:
    """Run a trace through a switch whose ports carry `rate` bytes/s; the result, and what became of each id.

    `at_once` lets all coflows arrive at 0. A threshold of FIFO-LM that is not given comes from the trace's
    sizes.
    """
    ordering = get_ordering(policy)
    if isinstance(ordering, FifoLm):
        ordering = ordering.with_sizes([coflow.demand.bytes for coflow in trace.coflows])
    workload = TraceWorkload(trace.coflows, at_once=at_once)
    fabric = Fabric.switch(trace.ports, rate)
    simulation = Simulation(fabric, ordering, workload, allocation, refresh_s, backfill, watch)
    simulation.run()
    done = {workload.ids[number]: entry for number, entry in simulation.done.items()}
    cadence = None if simulation.refresh_s == inf else simulation.refresh_s
    loads = [coflow.demand.loads(simulation.fabric) for coflow in trace.coflows]
    bound = trace_bound([0.0 if at_once else coflow.arrival_s for coflow in trace.coflows], loads)
    return _summary(simulation, cadence, bound / len(loads)), done


def _summary(simulation: Simulation, cadence_s: float | None, bound_s: float) -> TraceResult:
    entries = list(simulation.done.values())
    times = np.array([entry.cct for entry in entries])
    slowdown = np.array([entry.cct / entry.isolation for entry in entries])
    return TraceResult(
        simulation.ordering.name,
        simulation.allocation,
        cadence_s,
        len(entries),
        float(times.mean()),
        percentile(times, 95),
        float(slowdown.mean()),
        percentile(slowdown, 95),
        float(np.mean([entry.waited for entry in entries])),
        simulation.now,
        max(simulation.utilisation().values()),
        bound_s,
        float(times.mean()) / bound_s,
    )


def percentile(values: Sequence[float] | Array, per_cent: float) -> float:
    """The least of the values that so many per cent of all do not exceed (nearest rank)."""
    return float(np.percentile(np.asarray(values), per_cent, method="inverted_cdf"))
