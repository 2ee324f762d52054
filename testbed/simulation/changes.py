"""Links that change during a simulated run: its dynamics and timeline, played on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from testbed.experiments.spec import LoadedExperiment
from testbed.simulation.clock import SECOND
from testbed.simulation.world import World
from testbed.timeline import Step, steps
from topologies.model import DirectedLink


class LinkChanges:
    """Plays the changes of one experiment on a world.

    links    every directed link as it is now
    changed  told the rows of `changes.csv` whenever links have changed
    """

    def __init__(
        self, experiment: LoadedExperiment, world: World, changed: Callable[[list[dict[str, Any]]], None]
    ) -> None:
        self.links = list(experiment.topology.directed)
        self._experiment = experiment
        self._world = world
        self._changed = changed
        self._playing = 0  # counts the plays, so that an event of an earlier one is known

    def play(self, seed: int) -> None:
        """From now on dynamics and timeline change the links; see `testbed.timeline.steps`."""
        spec = self._experiment.spec
        began = self._world.clock.now_ns
        self._playing += 1
        playing = self._playing
        coming = steps(
            self._experiment.topology,
            spec.dynamics,
            spec.timeline,
            seed=seed,
            scale=spec.scale,
            folder=self._experiment.source.parent,
        )

        def next_one() -> None:
            step = next(coming, None)
            if step is None:
                return
            due = began + round(step.t_s * SECOND)
            if due <= self._world.clock.now_ns:
                apply(step)
            else:
                self._world.clock.at(due, lambda: apply(step))

        def apply(step: Step) -> None:
            if playing == self._playing:
                self._apply(step)
                next_one()

        next_one()

    def rewind(self) -> None:
        """Every link as declared again, and nothing more of what was to come."""
        self._playing += 1
        declared = self._experiment.topology.directed
        changed = {link.index for link in declared if self.links[link.index] != link}
        self._set(declared[index] for index in sorted(changed))
        rerouting = self._world.lanes.rerouting
        if rerouting is not None:
            cut = {kind: list(rerouting.cut[kind]) for kind in ("down", "blackhole")}
            self._world.cut(*(dict.fromkeys(links, False) for links in cut.values()))
            changed.update(*cut.values())
        if changed:
            self._tell(changed)

    def _apply(self, step: Step) -> None:
        if step.empty:
            return
        if step.down or step.blackhole:
            self._world.cut(step.down, step.blackhole)
        self._set(step.links.values())
        self._tell({*step.links, *step.down, *step.blackhole})

    def _tell(self, indices: Iterable[int]) -> None:
        """Say what these links are now."""
        rerouting = self._world.lanes.rerouting
        rows = []
        for index in sorted(indices):
            link = self.links[index]
            rows.append(
                {
                    "src": link.src_name,
                    "dst": link.dst_name,
                    "rate_bps": link.rate.bps,
                    "delay_s": link.delay.seconds,
                    "loss_ratio": link.loss.ratio,
                    "loss_burst": link.loss.burst,
                    "state": "up" if rerouting is None else rerouting.condition(index),
                }
            )
        self._changed(rows)

    def _set(self, links: Iterable[DirectedLink]) -> None:
        for link in links:
            self.links[link.index] = link
            self._world.network.set_rate(link.index, link.rate.bps)
            self._world.network.set_delay(link.index, link.delay.ns)
