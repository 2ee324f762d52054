"""A run's result: for each scheduler how long, how much, how exact, and how far from the bound. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from testbed.experiments.manifest import FidelityRow, Manifest, SegmentRow
from testbed.experiments.models import is_tensor
from testbed.report.accuracy import reached_s, target_of
from testbed.report.decisions import DecisionCounts
from testbed.report.links_over_time import LinkRates
from testbed.report.measurements import Iteration, LinkSample, Measurements
from testbed.report.overhead import Overhead
from testbed.report.searches import (
    PolicyResult,
    has_searches,
    read_searches,
    summarise_searches,
)
from testbed.report.stats import Summary, summarise

FLOAT_BYTES = 4

# Of a run: seconds that no scheduler can beat, the mean over these synchronisations, for so many bytes at every site;
# None where it is not known.
Bounds = Callable[[Measurements], Callable[[Sequence[Iteration], int], float | None]]


@dataclass(frozen=True)
class BusyLink:
    """The directed link that a scheduler loaded most, relative to its rate, over its whole turn."""

    src: str
    dst: str
    utilisation_ratio: float


@dataclass(frozen=True)
class SchedulerResult:
    """One scheduler over all repeats of a run. Times in seconds.

    `synchronisation` and `iteration` leave the warm-up out; `first_synchronisation_s` is each repeat's first
    one, warm-up or not: it includes the set-up of connections after the switch of schedulers, and their
    slow start. `speedup` is the first scheduler's mean synchronisation time over this one's, of those
    that hand over as many elements; `bound_s` is what no scheduler can beat, on links that change the mean
    over its synchronisations; None with `overlap`, where the time begins to count when most has been sent.
    `parameters_agree` is None where workers report no digest. `sums_checked` is whether every worker compared
    every element of every sum and the run ended well; None for models that are trained. `time_to_accuracy` is over
    the repeats that reached the run's `accuracy_target`, `reached` of them; None where nothing measured it.
    `idle` is how long a worker's gradients wait for the last worker's in an iteration, the mean over the workers;
    `idle_of` is by worker the mean over the iterations, `apart_s` the mean of the longest in each, 0 where a
    barrier has all begin together.
    `carried_bytes` has a value for each repeat, the mean of its iterations.
    """

    scheduler: str
    elements: int
    repeats: int
    completed_repeats: int
    measured: int
    warmup: int
    synchronisation: Summary | None
    first_synchronisation_s: tuple[float, ...]
    iteration: Summary | None
    carried_bytes_per_iteration: float | None
    dropped_packets: int | None
    busiest: BusyLink | None
    speedup: float | None
    bound_s: float | None
    bound_multiple: float | None
    loss: float | None
    accuracy: float | None
    parameters_agree: bool | None
    parameters_sha256: tuple[str, ...]
    disagreeing: tuple[str, ...] = ()
    sums_checked: bool | None = None
    carried_bytes: Summary | None = None
    time_to_accuracy: Summary | None = None
    reached: int = 0
    idle: Summary | None = None
    idle_of: Mapping[str, float] = field(default_factory=dict)
    apart_s: float = 0.0

    @property
    def head_start(self) -> float:
        """How much of the bound sites may have sent for, in the mean, when the last worker's gradients are ready and
        the time begins to count."""
        return self.apart_s / self.bound_s if self.bound_s else 0.0

    @property
    def bound_multiple_interval(self) -> tuple[float, float] | None:
        """The confidence interval of the mean's ratio to the bound, which itself has none."""
        if self.synchronisation is None or self.synchronisation.interval is None or not self.bound_s:
            return None
        low, high = self.synchronisation.interval
        return low / self.bound_s, high / self.bound_s


@dataclass(frozen=True)
class RunResult:
    """A run's result, as `testbed report` shows it; of searches there are policies instead of schedulers."""

    manifest: Manifest
    path: str
    schedulers: tuple[SchedulerResult, ...]
    fidelity: FidelityRow
    problems: tuple[str, ...]
    decisions: tuple[DecisionCounts, ...] = ()
    policies: tuple[PolicyResult, ...] = ()
    overhead: tuple[Overhead, ...] = ()
    accuracy_target: float | None = None

    def find(self, scheduler: str) -> SchedulerResult | None:
        return next((result for result in self.schedulers if result.scheduler == scheduler), None)


def summarise_run(
    measurements: Measurements,
    bounds: Bounds | None = None,
    decisions: tuple[DecisionCounts, ...] = (),
    overhead: tuple[Overhead, ...] = (),
) -> RunResult:
    """Compute a run's result from what its files say."""
    manifest = measurements.manifest
    if has_searches(manifest):
        problems = list(measurements.problems)
        found = read_searches(measurements.directory, problems)
        return RunResult(
            manifest=manifest,
            path=str(measurements.directory),
            schedulers=(),
            fidelity=manifest.fidelity,
            problems=(*manifest.notes, *problems),
            policies=summarise_searches(manifest, found, measurements.links),
        )
    names = dict.fromkeys(segment.scheduler for segment in manifest.segments)
    turns = [measurements.iterations.get(segment.label, ()) for segment in manifest.segments]
    target = target_of(manifest.experiment, turns)
    rates = LinkRates(manifest, measurements.changes) if manifest.links_changed else None
    schedulers = [_summarise_scheduler(name, measurements, target, rates) for name in names]
    bound = None if bounds is None else bounds(measurements)
    baselines: dict[int, float | None] = {}
    for scheduler in schedulers:
        baselines.setdefault(scheduler.elements, _mean_synchronisation(scheduler))
    return RunResult(
        manifest=manifest,
        path=str(measurements.directory),
        schedulers=tuple(
            _relate(
                scheduler,
                baselines[scheduler.elements],
                _bound_of(scheduler, measurements, bound),
            )
            for scheduler in schedulers
        ),
        fidelity=manifest.fidelity,
        problems=(*manifest.notes, *measurements.problems),
        decisions=decisions,
        overhead=overhead,
        accuracy_target=target,
    )


def _bound_of(
    result: SchedulerResult,
    measurements: Measurements,
    bound: Callable[[Sequence[Iteration], int], float | None] | None,
) -> float | None:
    segments = [s for s in measurements.manifest.segments if s.scheduler == result.scheduler]
    # With overlap most has been sent when the time of a synchronisation begins to count.
    if bound is None or any(segment.overlap for segment in segments):
        return None
    counted = [
        iteration
        for segment in segments
        for iteration in measurements.iterations.get(segment.label, ())
        if not iteration.warmup and iteration.synchronisation_s is not None
    ]
    return bound(counted, result.elements * FLOAT_BYTES)


def _mean_synchronisation(result: SchedulerResult) -> float | None:
    return result.synchronisation.mean if result.synchronisation else None


def _relate(result: SchedulerResult, baseline: float | None, bound_s: float | None) -> SchedulerResult:
    mean = _mean_synchronisation(result)
    if not mean:
        return replace(result, bound_s=bound_s)
    return replace(
        result,
        bound_s=bound_s,
        speedup=baseline / mean if baseline else None,
        bound_multiple=mean / bound_s if bound_s else None,
    )


def _summarise_scheduler(
    name: str, measurements: Measurements, target: float | None, rates: LinkRates | None
) -> SchedulerResult:
    segments = [segment for segment in measurements.manifest.segments if segment.scheduler == name]
    by_segment = [measurements.iterations.get(segment.label, ()) for segment in segments]
    synchronisation = _summarise_times(by_segment, lambda iteration: iteration.synchronisation_s)
    first = [iterations[0].synchronisation_s for iterations in by_segment if iterations]
    labels = {segment.label for segment in segments}
    samples = [sample for sample in measurements.links if sample.segment in labels]
    finished = sum(iteration.complete for iterations in by_segment for iteration in iterations)
    carried = sum(sample.carried_bytes for sample in samples) / finished if samples and finished else None
    agree, digests, disagreeing = _compare_parameters(segments, measurements)
    times = [] if target is None else [reached_s(iterations, target) for iterations in by_segment]
    reached = [time for time in times if time is not None]
    return SchedulerResult(
        scheduler=name,
        elements=segments[0].elements,
        repeats=len(segments),
        completed_repeats=sum(segment.status == "completed" for segment in segments),
        measured=synchronisation.count if synchronisation else 0,
        warmup=sum(iteration.warmup for iterations in by_segment for iteration in iterations),
        synchronisation=synchronisation,
        first_synchronisation_s=tuple(value for value in first if value is not None),
        iteration=_summarise_times(by_segment, lambda iteration: iteration.iteration_s),
        carried_bytes_per_iteration=carried,
        dropped_packets=sum(sample.dropped_packets for sample in samples) if samples else None,
        busiest=busiest_link(samples, rates),
        speedup=None,
        bound_s=None,
        bound_multiple=None,
        loss=_last(by_segment, lambda iteration: iteration.loss),
        accuracy=_last(by_segment, lambda iteration: iteration.accuracy),
        parameters_agree=agree,
        parameters_sha256=digests,
        disagreeing=disagreeing,
        sums_checked=_sums_checked(measurements.manifest, segments, by_segment),
        carried_bytes=summarise(_carried_per_iteration(segments, measurements)),
        time_to_accuracy=summarise(reached),
        reached=len(reached),
        idle=_summarise_times(by_segment, lambda i: fmean(i.idle_s.values()) if i.idle_s else None),
        idle_of=_idle_of(by_segment, measurements.manifest),
        apart_s=fmean([max(idle.values()) for idle in _idle(by_segment)] or [0.0])
        if any(segment.ahead for segment in segments)
        else 0.0,
    )


def _idle_of(by_segment: Sequence[Sequence[Iteration]], manifest: Manifest) -> dict[str, float]:
    """Mean idle seconds of each worker over the measured iterations."""
    counted = _idle(by_segment)
    if not counted:
        return {}
    return {
        f"{worker.site}-{worker.worker}": fmean(idle[worker.rank] for idle in counted)
        for worker in manifest.workers
    }


def _idle(by_segment: Sequence[Sequence[Iteration]]) -> list[Mapping[int, float]]:
    return [i.idle_s for iterations in by_segment for i in iterations if i.idle_s and not i.warmup]


def _carried_per_iteration(segments: Sequence[SegmentRow], measurements: Measurements) -> list[float]:
    """Bytes that all links together carried in a mean iteration of each repeat."""
    found = []
    for segment in segments:
        carried = [sample.carried_bytes for sample in measurements.links if sample.segment == segment.label]
        finished = sum(iteration.complete for iteration in measurements.iterations.get(segment.label, ()))
        if carried and finished:
            found.append(sum(carried) / finished)
    return found


def _sums_checked(
    manifest: Manifest, segments: Sequence[SegmentRow], by_segment: Sequence[Sequence[Iteration]]
) -> bool | None:
    # Their workers know what every sum must be, and one wrong bit fails the run.
    model = str(manifest.experiment.get("training", {}).get("model", ""))
    if manifest.world != "emulated" or not is_tensor(model):
        return None
    # A segment of which no sum is known shows nothing, whatever its status.
    summed = all(any(iteration.complete for iteration in iterations) for iterations in by_segment)
    return summed and all(segment.status == "completed" for segment in segments)


def _summarise_times(
    by_segment: Sequence[Sequence[Iteration]], time_of: Callable[[Iteration], float | None]
) -> Summary | None:
    groups = [
        [time for i in iterations if not i.warmup and (time := time_of(i)) is not None]
        for iterations in by_segment
    ]
    return summarise([time for group in groups for time in group], groups)


def _last(
    by_segment: Sequence[Sequence[Iteration]], value_of: Callable[[Iteration], float | None]
) -> float | None:
    """The latest value there is: not every iteration measures everything."""
    for iterations in reversed(by_segment):
        for iteration in reversed(iterations):
            if (value := value_of(iteration)) is not None:
                return value
    return None


def busiest_link(samples: Iterable[LinkSample], rates: LinkRates | None = None) -> BusyLink | None:
    """The link that carried the highest share of what its rate allowed over all the intervals.

    A sample knows the rate at its interval's end; `rates`, where given, knows what it was in between.
    """
    could: dict[tuple[str, str], float] = {}
    did: dict[tuple[str, str], float] = {}
    for sample in samples:
        key = (sample.src, sample.dst)
        allowed = None if rates is None else rates.bits(*key, sample.t_s - sample.interval_s, sample.t_s)
        could[key] = could.get(key, 0.0) + (sample.configured_bps * sample.interval_s if allowed is None else allowed)
        did[key] = did.get(key, 0.0) + sample.carried_bytes * 8
    ratios = {key: did[key] / could[key] for key in could if could[key] > 0}
    if not ratios:
        return None
    (src, dst), ratio = max(ratios.items(), key=lambda item: item[1])
    return BusyLink(src, dst, ratio)


def _compare_parameters(
    segments: Sequence[SegmentRow], measurements: Measurements
) -> tuple[bool | None, tuple[str, ...], tuple[str, ...]]:
    """Whether all workers ended each repeat with the same parameters; the digests; who differs."""
    workers = {worker.rank: f"{worker.site}-{worker.worker}" for worker in measurements.manifest.workers}
    agree: bool | None = None
    digests: list[str] = []
    disagreeing: list[str] = []
    for segment in segments:
        found = measurements.parameters.get(segment.label, {})
        if not found:
            continue
        kinds = set(found.values())
        # The first worker's digest stands for the repeat; a worker without one is a disagreement too,
        # unless the repeat did not finish.
        reference = found[min(found)]
        digests.append(reference)
        absent = set(workers) - set(found) if segment.status == "completed" else set()
        odd = sorted(absent | {rank for rank, digest in found.items() if digest != reference})
        disagreeing += [f"{segment.label}: {workers.get(rank, f'rank {rank}')}" for rank in odd]
        agree = (agree is not False) and len(kinds) == 1 and not odd
    return agree, tuple(digests), tuple(disagreeing)
