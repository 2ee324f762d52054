"""The coflow coordinator as a pure state machine: what jobs and agents report goes in, maps of levels come out.

A stage is registered with its jobs; every synchronisation of a job is a coflow, which arrives when the last of
its sites is ready and completes when the last of them has all results. At each of these events, and when a
job or a stage ends, the ordering is asked anew and the map is published if it has changed. A job that is
killed is gone at once: its load counts no more and its place is free.

Times are seconds on any clock that only goes forward; the machine never reads one. Source: own; the ordering
loop is Beamer's: at each arrival and completion the stages are ordered anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from agents.coflow.base import Coflow, CoflowError, Job, Loads, Ordering, Ranking, Stage, View, largest
from agents.coflow.beamer import rank_jobs
from agents.coflow.levels import Enforcement, LevelMap, Place, place_classes, place_stages

# Weight of the newest compute time in its running mean.
COMPUTE_EMA = 0.3


@runtime_checkable
class StageOrdering(Protocol):
    """An ordering that ranks stages, whatever coflows are under way."""

    def rank_stages(self, view: View) -> list[Stage]: ...


@dataclass(frozen=True)
class JobNeeds:
    """A job of a stage as it is registered.

    name        the runner's name for the job
    iterations  to the stage's boundary
    loads       seconds on each directed link of one synchronisation
    size        bytes of all flows of one synchronisation
    sites       how many sites take part
    compute     seconds of computing before each synchronisation, as far as known
    """

    name: str
    iterations: int
    loads: Loads
    size: float
    sites: int
    compute: float = 0.0

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.sites < 1 or not self.size >= 0 or not self.compute >= 0:
            raise CoflowError(
                f"job {self.name}: {self.iterations} iterations of {self.size} bytes at {self.sites} sites",
                hint="at least one iteration and site, no negative sizes or times",
            )


@dataclass(frozen=True)
class CoflowTime:
    """A coflow that has completed. Seconds on the machine's clock.

    gate_wait_s  what its chunks waited at their senders, added up over the chunks
    """

    job: str
    seq: int
    arrival: float
    finish: float
    gate_wait_s: float
    chunks: int


@dataclass
class _Running:
    number: int
    needs: JobNeeds
    left: int
    compute: float
    seq: int = -1
    # Sites are ahead of one another: one may be ready for the next coflow before another has all of this one.
    ready: dict[int, set[int]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    coflow: int | None = None
    arrival: float = 0.0
    sent: dict[int, float] = field(default_factory=dict)
    wait: float = 0.0
    chunks: int = 0
    idle_since: float | None = None

    @property
    def part_left(self) -> float:
        """How much of the coflow under way is left, 0 to 1; its links are taken to empty alike."""
        size = self.needs.size
        return max(0.0, 1.0 - sum(self.sent.values()) / size) if size > 0 else 0.0

    @property
    def unsent(self) -> dict[int, float]:
        if self.coflow is None:
            return {}
        part = self.part_left
        return {link: load * part for link, load in self.needs.loads.items()}


@dataclass
class _Stage:
    number: int
    name: str
    release: float
    jobs: list[str]
    ahead: Loads
    ahead_alone: float


class CoflowMachine:
    """See the module's text.

    Args:
        ordering: who goes first.
        enforcement: written into the maps.

    Attributes:
        map: the newest one.
        coflows: those completed, in that order; `take_coflows` hands them over.
        deadline: the time at which `tick` should be called at the latest, or None.
    """

    def __init__(self, ordering: Ordering, enforcement: Enforcement, version: int = 0) -> None:
        self.ordering = ordering
        self.enforcement: Enforcement = enforcement
        self.map = LevelMap(version, enforcement)
        self.coflows: list[CoflowTime] = []
        self.deadline: float | None = None
        self._jobs: dict[str, _Running] = {}
        self._by_number: dict[int, str] = {}
        self._stages: dict[str, _Stage] = {}
        self._jobs_seen = self._stages_seen = self._coflows_seen = 0
        self._watch: Mapping[int, float] = {}
        self._late: dict[tuple[str, int], _Running] = {}

    # ---- what the runner says

    def stage(
        self,
        now: float,
        name: str,
        jobs: Sequence[JobNeeds],
        ahead: Loads | None = None,
        ahead_alone: float = 0.0,
    ) -> LevelMap | None:
        """A stage begins with all its jobs; the map, if it changed. CoflowError for one that makes no sense.

        `ahead` and `ahead_alone` are those of `Stage`.
        """
        if not jobs:
            raise CoflowError(f"stage {name} has no jobs", hint="a stage ends with its last job: give one")
        if name in self._stages:
            raise CoflowError(f"stage {name} is under way already")
        names = [needs.name for needs in jobs]
        taken = sorted({job for job in names if job in self._jobs or names.count(job) > 1})
        if taken:
            raise CoflowError(f"stage {name}: job {taken[0]} is in a stage already")
        for needs in jobs:
            self._jobs[needs.name] = _Running(self._jobs_seen, needs, needs.iterations, needs.compute, idle_since=now)
            self._by_number[self._jobs_seen] = needs.name
            self._jobs_seen += 1
        self._stages[name] = _Stage(self._stages_seen, name, now, names, ahead or {}, ahead_alone)
        self._stages_seen += 1
        return self._publish(now)

    def job_ended(self, now: float, job: str) -> LevelMap | None:
        """A job has done its iterations, or was killed: nothing of it counts any more."""
        running = self._jobs.pop(job, None)
        if running is None:
            return None
        del self._by_number[running.number]
        if running.coflow is not None:
            # Its runner may know of its end before the last site's word of it is here.
            self._late[job, running.seq] = running
        for stage in tuple(self._stages.values()):
            if job in stage.jobs:
                stage.jobs.remove(job)
                if not stage.jobs:
                    del self._stages[stage.name]
        return self._publish(now)

    # ---- what the agents say

    def ready(self, now: float, job: str, site: int, seq: int) -> LevelMap | None:
        """All workers of a site have called collective `seq`; with the last site the coflow arrives."""
        running = self._jobs.get(job)
        if running is None or seq <= running.seq:
            return None
        running.ready.setdefault(seq, set()).add(site)
        return self._arrive(now, running, seq)

    def _arrive(self, now: float, running: _Running, seq: int) -> LevelMap | None:
        """The coflow begins if all its sites are ready and the one before it is complete."""
        if running.coflow is not None or len(running.ready.get(seq, ())) < running.needs.sites:
            return None
        if running.idle_since is not None:
            took = max(now - running.idle_since, 0.0)
            first = running.compute == 0
            running.compute = took if first else (1 - COMPUTE_EMA) * running.compute + COMPUTE_EMA * took
        running.ready = {later: sites for later, sites in running.ready.items() if later > seq}
        running.seq, running.done = seq, set()
        running.coflow = self._coflows_seen
        self._coflows_seen += 1
        running.arrival, running.sent, running.idle_since = now, {}, None
        running.wait, running.chunks = 0.0, 0
        running.left = max(running.left - 1, 0)
        return self._publish(now)

    def sent(self, now: float, job: str, site: int, seq: int, nbytes: float) -> LevelMap | None:
        """What a site has handed to its kernel of the coflow `seq` so far."""
        running = self._jobs.get(job)
        if running is None or running.coflow is None or seq != running.seq:
            return None
        running.sent[site] = max(float(nbytes), running.sent.get(site, 0.0))
        limit = self._watch.get(running.coflow)
        if limit is not None and sum(running.sent.values()) >= limit:
            return self._publish(now)
        return None

    def done(
        self, now: float, job: str, site: int, seq: int, gate_wait_s: float = 0.0, chunks: int = 0
    ) -> LevelMap | None:
        """A site has all results of the coflow `seq`; with the last one it is complete."""
        running = self._jobs.get(job)
        if running is None or running.coflow is None or seq != running.seq:
            running = self._late.get((job, seq))
        if running is None or site in running.done:
            return None
        running.done.add(site)
        running.wait += gate_wait_s
        running.chunks += chunks
        if len(running.done) < running.needs.sites:
            return None
        self.coflows.append(CoflowTime(job, seq, running.arrival, now, running.wait, running.chunks))
        if self._late.pop((job, seq), None) is not None:
            return None
        running.coflow, running.idle_since = None, now
        return self._publish(now)

    def tick(self, now: float) -> LevelMap | None:
        """Time has passed."""
        return self._publish(now) if self.deadline is not None and now >= self.deadline else None

    def take_coflows(self) -> list[CoflowTime]:
        taken, self.coflows = self.coflows, []
        return taken

    # ---- ordering

    @property
    def stages(self) -> tuple[str, ...]:
        """Those under way."""
        return tuple(self._stages)

    def view(self, now: float) -> View:
        """What the ordering is shown: coflows under way, stages with what their jobs still have to do."""
        reads = self.ordering.reads_loads
        coflows = tuple(
            Coflow(
                running.coflow,
                running.unsent if reads else {},
                running.arrival,
                running.needs.size,
                sum(running.sent.values()),
                largest(running.needs.loads),
                job=running.number,
            )
            for running in self._jobs.values()
            if running.coflow is not None
        )
        return View(now, tuple(sorted(coflows, key=lambda coflow: coflow.id)), self._live_stages())

    def _live_stages(self) -> tuple[Stage, ...]:
        stages = []
        for stage in self._stages.values():
            jobs = tuple(self._job(self._jobs[name]) for name in stage.jobs)
            stages.append(
                Stage(stage.number, jobs, stage.release, ahead=stage.ahead, ahead_alone=stage.ahead_alone)
            )
        return tuple(stages)

    def _job(self, running: _Running) -> Job:
        return Job(running.number, running.left, running.compute, running.needs.loads, running.unsent)

    def _publish(self, now: float) -> LevelMap | None:
        """Ask the ordering; the new map if it differs from the last."""
        self.deadline, self._watch = None, {}
        places = self._places(now)
        if places == self.map.places:
            return None
        self.map = LevelMap(self.map.version + 1, self.enforcement, places)
        return self.map

    def _places(self, now: float) -> dict[str, Place]:
        if isinstance(self.ordering, StageOrdering):
            # Also jobs that compute now have their place, so that they need no new map when they are ready.
            ranked = self.ordering.rank_stages(View(now, (), self._live_stages())) if self._stages else []
            return place_stages([[self._by_number[job] for job in rank_jobs([stage])] for stage in ranked])
        if self.ordering.name == "fair":
            # Nobody goes before anybody: the lowest class, where packets of others are too.
            return {job: Place(0, 0, shared=True) for job in self._jobs}
        ranking = self.ordering.order(self.view(now))
        self._remember(ranking)
        owners = {running.coflow: name for name, running in self._jobs.items() if running.coflow is not None}
        classes: Iterable[list[str]] = (
            [owners[number] for number in members if number in owners] for members in ranking.classes
        )
        return place_classes(classes, shared=self.ordering.name == "fifo_lm")

    def _remember(self, ranking: Ranking) -> None:
        self._watch = {number: float(amount) for number, amount in ranking.watch.items()}
        self.deadline = None if ranking.until is None else float(ranking.until)
