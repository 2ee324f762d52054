"""Reads the links' counters each second while a run goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from testbed.client import SupervisorClient
from testbed.experiments.fidelity import FidelityWatch, Window
from testbed.experiments.links import LinkCounters, LinkMeter
from testbed.experiments.manifest import FidelityRow
from testbed.experiments.rundir import RunDirectory
from topologies.errors import StormbedError

PERIOD_S = 1.0
# A supervisor whose machine trains on all cores may answer late; one that is gone refuses at once.
ANSWER_S = 60.0


class LinkRecorder:
    """Writes `links.csv` and gathers what the fidelity verdict needs, from its own thread.

    Used as a context manager around the run. `problem` says why the supervisor no longer answers, if so;
    `failure` is why nothing can be recorded any more.
    """

    def __init__(self, client: SupervisorClient, run: RunDirectory) -> None:
        self._client = client
        self._run = run
        self._segment = ""
        self._meter: LinkMeter | None = None
        self._watch = FidelityWatch()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._record, name="links", daemon=True)
        self._cpu: dict[tuple[str, str | None, int], float] = {}
        self._cpu_before: dict[tuple[str, str | None, int], float] = {}
        self.problem: str | None = None
        self.failure: StormbedError | None = None
        self.ended_ns = 0
        """When it stopped recording, on the monotonic clock."""

    def __enter__(self) -> Self:
        self.read()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.ended_ns = time.monotonic_ns()

    @property
    def began_ns(self) -> int:
        """Where `t_s` counts from, on the monotonic clock."""
        return 0 if self._meter is None else self._meter.began_ns

    def begin(self, segment: str) -> None:
        """From now on what links carry counts to this segment; what they carried so far to the one before."""
        self.read()
        self._segment = segment
        self._cpu_before = dict(self._cpu)

    def cpu_s(self) -> dict[str, float]:
        """Seconds of CPU of the testbed's own processes since the last `begin`, by name, all sites together.

        To be read before the next `begin`, and after a `read`.
        """
        spent: dict[str, float] = {}
        for process, seconds in self._cpu.items():
            spent[process[0]] = spent.get(process[0], 0.0) + seconds - self._cpu_before.get(process, 0.0)
        return {name: round(seconds, 3) for name, seconds in sorted(spent.items())}

    def read(self) -> None:
        """Take one sample now."""
        with self._lock:
            if self.problem is not None:
                return
            try:
                sample = self._client.call("sample", timeout=ANSWER_S)
            except StormbedError as error:
                self.problem = str(error)
                self._run.events.write("problem", text=f"link counters: {error}")
                return
            if self._meter is None:
                self._meter = LinkMeter(sample["monotonic_ns"])
            self._watch.add(sample)
            self._cpu = {(p["name"], p["site"], p["pid"]): p["cpu_s"] for p in sample.get("processes", ())}
            counters = [_counters(link) for link in sample["links"]]
            self._run.add_links(self._meter.advance(sample["monotonic_ns"], self._segment, counters))

    def _record(self) -> None:
        while not self._stop.wait(PERIOD_S):
            try:
                self.read()
            except StormbedError as error:
                self.failure = error
                return

    def fidelity(
        self,
        calibration: Mapping[str, Any] | None,
        synchronisations: Sequence[Window],
        interference: Sequence[str] = (),
    ) -> FidelityRow:
        """The verdict so far; see `FidelityWatch.judge`."""
        return self._watch.judge(calibration, synchronisations, interference)


def _counters(link: Mapping[str, Any]) -> LinkCounters:
    line = link.get("delay_line") or {}
    lost = sum(line.get("drops", {}).values())
    return LinkCounters(link["src"], link["dst"], link["rate_bps"], link["bytes"], link["drops"] + lost)
