"""What a simulated run has to say about itself: which of an experiment's wishes it does not simulate. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from testbed.experiments.manifest import FidelityRow
from testbed.experiments.spec import LoadedExperiment, Segment
from testbed.simulation.options import WorldOptions
from topologies.dynamics import Changes

LOOK_AHEAD = 10_000
"""How many changes of a trace are searched for losses, which are not simulated."""


def fidelity(experiment: LoadedExperiment, options: WorldOptions) -> FidelityRow:
    """The verdict of every simulated run, with what is left out."""
    reasons = [
        "simulated: fluid links shared max-min fairly, no loss and no slow start; payload gets "
        f"{options.efficiency:.0%} of every rate",
        *_computation(experiment),
    ]
    if any(segment.overlap for segment in experiment.segments):
        reasons.append("a third of a declared compute time is the forward pass, the rest goes by parameters")
    limited = sum(site.cpu is not None for site in experiment.topology.sites.values())
    if limited:
        reasons.append(f"the declared cpu of {limited} sites is not simulated; declared compute times are")
    lossy = sum(link.loss.ratio > 0 for link in experiment.topology.directed)
    if lossy:
        reasons.append(f"the declared loss of {lossy} directed links, in bursts or not, is not simulated")
    if _losses_to_come(experiment):
        reasons.append("losses that dynamics or timeline set are not simulated")
    if any(link.jitter.ns for link in experiment.topology.directed):
        reasons.append("declared jitter is not simulated")
    if cuts(experiment):
        reasons.append("a cut link costs TCP its retransmission timers, nothing else")
    if any(measured(segment) for segment in experiment.segments):
        reasons.append("planning takes no virtual time")
    return FidelityRow(verdict="exact", reasons=tuple(reasons))


def fidelity_of_searches(experiment: LoadedExperiment, options: WorldOptions) -> FidelityRow:
    """The verdict of searches, whose synchronisations are coflows on the same links."""
    reasons = [
        f"simulated: fluid links, payload gets {options.efficiency:.0%} of every rate; an order of coflows holds at "
        "once and for every flow",
        *_computation(experiment),
    ]
    return FidelityRow(verdict="exact", reasons=tuple(reasons))


def cuts(experiment: LoadedExperiment) -> bool:
    """Whether links are cut, so that the network has to know other ways."""
    return any(entry.action != "link-set" for entry in experiment.spec.timeline)


def measured(segment: Segment) -> bool:
    """Whether its sites measure links, or take other paths than the plan's."""
    return segment.awareness.on or segment.auxiliary.on


def _computation(experiment: LoadedExperiment) -> Iterator[str]:
    if experiment.spec.training.compute.real:
        yield "computation counts as no time, because the experiment declares none"


def _losses_to_come(experiment: LoadedExperiment) -> bool:
    spec = experiment.spec
    changes: Iterator[Changes] = iter(())
    if spec.dynamics.kind == "trace":  # no other kind changes losses
        changes = spec.dynamics.changes(
            experiment.topology, seed=spec.seed, scale=spec.scale, folder=experiment.source.parent
        )
    ahead = (change.loss for _, changed in islice(changes, LOOK_AHEAD) for change in changed.values())
    return any(loss is not None and loss.ratio for loss in (*(entry.loss for entry in spec.timeline), *ahead))
