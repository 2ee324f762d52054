"""Has the testbed change its links during a run, and keeps what was changed when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from testbed.client import SupervisorClient
from testbed.experiments.rundir import RunDirectory
from testbed.experiments.spec import LoadedExperiment
from topologies.errors import RunFailedError

LATE_S: Final = 0.1
"""A change later than this is worth a note; an epoch of the shortest experiments lasts seconds."""
RETURN_S: Final = 5.0
"""The controller takes a mended cable for whole after half a second; a busy machine may take longer to tell."""
POLL_S: Final = 0.05


class LinkChanges:
    """The dynamics and the timeline of one run; nothing where the experiment has neither.

    `began_ns` is where the times of `links.csv` count from, to be set before anything changes.
    """

    def __init__(self, experiment: LoadedExperiment, client: SupervisorClient, run: RunDirectory) -> None:
        self._experiment = experiment
        self._client = client
        self._run = run
        self._latest_s = 0.0
        self.began_ns = 0

    @contextmanager
    def over(self, replay: str, segment: str, seed: int) -> Iterator[None]:
        """Links change while the block runs, if the experiment says so of `replay` (segment or run)."""
        spec = self._experiment.spec
        if not self._experiment.changes or spec.dynamics.replay != replay:
            yield
            return
        fields = spec.model_dump(mode="json", include={"dynamics", "timeline"})
        folder = str(self._experiment.source.parent.absolute())
        self._client.call("dynamics_start", seed=seed, scale=spec.scale, folder=folder, **fields)
        try:
            yield
        finally:
            played = self._client.call("dynamics_stop")
            for step in played["applied"]:
                self._latest_s = max(self._latest_s, step["late_s"])
                self._tell(step, segment)
            if played["restored"] is not None:
                self._tell(played["restored"], "")  # of no turn: how long a turn lasts is the scheduler's doing
        if played["failure"] is not None:
            raise RunFailedError(f"links could not be changed any more: {played['failure']}")

    def _tell(self, step: Mapping[str, Any], segment: str) -> None:
        self._run.add_changes((step["applied_ns"] - self.began_ns) / 1e9, segment, step["links"])

    def await_return(self, links_down: Callable[[], list[str]]) -> None:
        """Between two turns: wait until the coordinator knows which cables are cut, so that the next turn is not
        planned without those that the one before had cut.

        `links_down` asks the coordinator, which names a link by its ends, joined by a hyphen.
        """
        spec = self._experiment.spec
        if spec.dynamics.replay != "segment" or all(entry.action != "link-down" for entry in spec.timeline):
            return
        states = {(row["src"], row["dst"]): row["state"] for row in self._client.call("links")}
        ends = ((link.endpoints[0], link.endpoints[1]) for link in self._experiment.topology.links)
        cut = {"-".join(pair) for pair in ends if states[pair] == "down"}
        deadline, pause = time.monotonic() + RETURN_S, threading.Event()
        while set(links_down()) != cut:
            if time.monotonic() > deadline:
                self._run.note(f"a turn began {RETURN_S:g} s after cables were mended, of which nobody had told it")
                return
            pause.wait(POLL_S)

    def note_lateness(self) -> None:
        """Tell the run's readers when changes came late."""
        if self._latest_s > LATE_S:
            self._run.note(
                f"links were changed up to {self._latest_s * 1e3:.0f} ms late: the machine was busy"
            )
