"""The iterations of one simulated segment: what its workers compute, hand over and wait for, in virtual time.

A worker computes for its declared time, drawn as the emulated workers draw it, and then hands over its gradients.
With `overlap` they come in DDP's buckets, each when the backward pass has come so far (`agents.backward`), in the
class of its place; but for a turn's first iteration, where DDP does not know their order and has one bucket of all.
A site begins a collective when its last worker has handed over its part; a worker goes on when all results are there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from io import StringIO

from agents.backward import class_of, fill_buckets, share_of_time
from agents.compute import ComputeTime
from agents.planning.batches import next_batches
from agents.sync.spec import CollectiveSpec, allreduce
from testbed.experiments.manifest import WorkerRow
from testbed.experiments.models import gradient_sizes
from testbed.experiments.schema import Compute, Training
from testbed.experiments.spec import Segment
from testbed.simulation.world import SECOND, World

Handed = tuple[float, CollectiveSpec]
"""A collective of an iteration, and the share of the compute time that is over when it is handed over."""


class Iterations:
    """See the module's text.

    rows, traces  the workers by rank, and what each writes
    finished      sites that have done all iterations
    """

    def __init__(
        self,
        world: World,
        training: Training,
        segment: Segment,
        rows: Sequence[WorkerRow],
        traces: Sequence[StringIO],
    ) -> None:
        self.finished = 0
        self._world = world
        self._training = training
        self._segment = segment
        self._rows = rows
        self._traces = traces
        self._ranks: list[list[int]] = [[] for _ in range(world.n)]
        for row in rows:
            self._ranks[world.topology.index(row.site)].append(row.rank)
        self._at_once, self._in_buckets = _handed_over(training, segment)
        self._sizes = [(training.batch,) * len(rows)]  # samples of every rank, iteration by iteration
        # Of the iteration that each site is in:
        self._iteration = [0] * world.n
        self._start_ns = [0] * world.n
        self._open = [0] * world.n  # collectives without result
        self._ready_ns = [0] * len(rows)

    def begin(self) -> None:
        """All workers start their first iteration."""
        for site in range(self._world.n):
            self._begin(site)

    def completed(self, site: int) -> None:
        """A collective is complete at a site."""
        self._open[site] -= 1
        if self._open[site]:
            return
        now = self._world.clock.now_ns
        for rank in self._ranks[site]:
            record = {
                "segment": self._segment.label,
                "scheduler": self._segment.shown,
                "iteration": self._iteration[site],
                "start_ns": self._start_ns[site],
                "ready_ns": self._ready_ns[rank],
                "done_ns": now,
                "end_ns": now,
            }
            self._traces[rank].write(json.dumps(record) + "\n")
        self._iteration[site] += 1
        if self._iteration[site] < self._segment.iterations:
            self._begin(site)
        else:
            self.finished += 1

    def _begin(self, site: int) -> None:
        """All workers of a site start their next iteration."""
        clock, number = self._world.clock, self._iteration[site]
        began = self._start_ns[site] = clock.now_ns
        seconds = [self._compute_seconds(rank, number) for rank in self._ranks[site]]
        for rank, whole in zip(self._ranks[site], seconds, strict=True):
            self._ready_ns[rank] = began + round(whole * SECOND)
        handed = self._in_buckets if number else self._at_once
        self._open[site] = len(handed)
        for share, spec in handed:
            ready_ns = began + max(round(share * whole * SECOND) for whole in seconds)
            clock.at(ready_ns, partial(self._world.begin, site, spec))

    def _compute_seconds(self, rank: int, number: int) -> float:
        drawn = compute_seconds(self._training.compute, self._rows[rank].site, self._segment.seed, rank, number)
        return drawn * (self._batches(number)[rank] / self._training.batch)

    def _batches(self, number: int) -> tuple[int, ...]:
        """Samples of every rank in an iteration, divided as the emulated workers do it."""
        while len(self._sizes) <= number:
            sizes, last = self._sizes[-1], len(self._sizes) - 1
            if self._segment.batches == "split":
                sizes = next_batches(sizes, [self._compute_seconds(row.rank, last) for row in self._rows])
            self._sizes.append(sizes)
        return self._sizes[number]


def _handed_over(training: Training, segment: Segment) -> tuple[tuple[Handed, ...], tuple[Handed, ...]]:
    """What workers hand over in a segment's first iteration, and in each of the others."""
    at_once = ((1.0, allreduce(segment.elements)),)
    if not segment.overlap:
        return at_once, at_once
    buckets = fill_buckets(gradient_sizes(training.model), training.bucket_bytes)
    handed, done = [], 0
    for place, elements in enumerate(buckets):
        done += elements
        # Other libraries' sockets have no classes.
        spec = allreduce(elements, cls=0 if segment.library else class_of(place))
        handed.append((share_of_time(done, segment.elements) if place + 1 < len(buckets) else 1.0, spec))
    return at_once, tuple(handed)


def compute_seconds(compute: Compute, site: str, seed: int, rank: int, iteration: int) -> float:
    """The declared time of one worker's forward and backward pass, as the emulated workers draw it."""
    mean = compute.sites.get(site, compute.mean)
    if mean is None or mean.ns == 0:
        return 0.0
    return ComputeTime(mean_s=mean.seconds, cv=compute.cv).draw(seed, rank, iteration)
