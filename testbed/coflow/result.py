"""What a run over a trace gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from agents.coflow.base import Allocation
from agents.coflow.fabric import Fabric
from agents.coflow.fifo import FifoLm
from agents.coflow.registry import OrderingSpec, get_ordering
from testbed.coflow.demand import Array
from testbed.coflow.simulator import Done, Simulation
from testbed.coflow.trace import Trace, TraceWorkload


@dataclass(frozen=True)
class TraceResult:
    """Coflow completion times of one policy over one trace.

    cadence_s      seconds between renewals of rates; 0 = at every end of a flow, None = only when coflows
                   arrive and end
    mean_slowdown  of completion time over isolation time
    """

    policy: str
    allocation: Allocation
    cadence_s: float | None
    coflows: int
    mean_cct_s: float
    p95_cct_s: float
    mean_slowdown: float
    p95_slowdown: float


def run_trace(
    trace: Trace,
    policy: OrderingSpec,
    rate: float,
    *,
    allocation: Allocation | None = None,
    refresh_s: float | None = None,
    at_once: bool = False,
) -> tuple[TraceResult, dict[int, Done]]:
    """Run a trace through a switch whose ports carry `rate` bytes/s; the result, and what became of each id.

    `at_once` lets all coflows arrive at 0. A threshold of FIFO-LM that is not given comes from the trace's
    sizes.
    """
    ordering = get_ordering(policy)
    if isinstance(ordering, FifoLm):
        ordering = ordering.with_sizes([coflow.demand.bytes for coflow in trace.coflows])
    workload = TraceWorkload(trace.coflows, at_once=at_once)
    simulation = Simulation(Fabric.switch(trace.ports, rate), ordering, workload, allocation, refresh_s)
    simulation.run()
    done = {workload.ids[number]: entry for number, entry in simulation.done.items()}
    cadence = None if simulation.refresh_s == inf else simulation.refresh_s
    return _summary(ordering.name, simulation.allocation, cadence, done.values()), done


def _summary(
    policy: str, allocation: Allocation, cadence_s: float | None, done: Iterable[Done]
) -> TraceResult:
    entries = list(done)
    times = np.array([entry.cct for entry in entries])
    slowdown = np.array([entry.cct / entry.isolation for entry in entries])
    return TraceResult(
        policy,
        allocation,
        cadence_s,
        len(entries),
        float(times.mean()),
        percentile(times, 95),
        float(slowdown.mean()),
        percentile(slowdown, 95),
    )


def percentile(values: Sequence[float] | Array, per_cent: float) -> float:
    """The least of the values that so many per cent of all do not exceed (nearest rank)."""
    return float(np.percentile(np.asarray(values), per_cent, method="inverted_cdf"))
