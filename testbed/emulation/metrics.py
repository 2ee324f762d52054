"""The delay line's metrics, and what the kernel has counted on the links, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from testbed.emulation import counters
from testbed.emulation.impairment import LATENESS_BOUNDS_S
from testbed.emulation.wan import Wan
from testbed.telemetry.links import LinkReading
from topologies.errors import StormbedError

_ENDS = ("src", "dst")


class DelayLineCollector(Collector):
    """The delay line as it is at each scrape; a direction that the kernel carries has no series.

    Register it in a registry of its own.
    """

    def __init__(self, wan: Wan) -> None:
        self._wan = wan

    def describe(self) -> Iterable[Metric]:
        return _families()  # so that registering does not already ask

    def collect(self) -> Iterator[Metric]:
        up, cpu, frames, data, dropped, lateness, held = _families()
        try:
            info = self._wan.delay_line.call("info")
            lines = self._wan.delay_line.call("counters")
        except StormbedError:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        cpu.add_metric([], info["cpu_s"])
        for link in self._wan.links:
            line = lines.get(str(link.index))
            if line is None:
                continue
            ends = [link.src_name, link.dst_name]
            frames.add_metric(ends, line["frames"])
            data.add_metric(ends, line["bytes"])
            held.add_metric(ends, line["held_frames"])
            for reason, count in line["drops"].items():
                dropped.add_metric([*ends, reason], count)
            lateness.add_metric(ends, _cumulative(line["lateness"]), line["lateness_sum_s"])
        yield from (up, cpu, frames, data, dropped, lateness, held)


def _families() -> tuple[
    GaugeMetricFamily,
    CounterMetricFamily,
    CounterMetricFamily,
    CounterMetricFamily,
    CounterMetricFamily,
    HistogramMetricFamily,
    GaugeMetricFamily,
]:
    prefix = "stormbed_delay_line"
    return (
        GaugeMetricFamily(f"{prefix}_up", "Whether the delay line answers."),
        CounterMetricFamily(f"{prefix}_cpu_seconds", "CPU time the delay line has used."),
        CounterMetricFamily(
            f"{prefix}_frames", "Frames (segments of up to 64 KB) it has passed on.", labels=_ENDS
        ),
        CounterMetricFamily(f"{prefix}_bytes", "Bytes it has passed on.", labels=_ENDS),
        CounterMetricFamily(
            f"{prefix}_dropped_frames", "Frames it did not pass on, by reason.", labels=(*_ENDS, "reason")
        ),
        HistogramMetricFamily(
            f"{prefix}_lateness_seconds", "How long after its time a frame was passed on.", labels=_ENDS
        ),
        GaugeMetricFamily(f"{prefix}_held_frames", "Frames it holds now.", labels=_ENDS),
    )


def _cumulative(buckets: list[int]) -> list[tuple[str, float]]:
    """Counts per bucket as Prometheus has them: each with all those below it."""
    total, result = 0, []
    for bound, count in zip((*LATENESS_BOUNDS_S, float("inf")), buckets, strict=True):
        total += count
        result.append((floatToGoString(bound), float(total)))
    return result


def read_links(wan: Wan) -> list[LinkReading]:
    """Every direction as it is now, for the link exporter."""
    lines = wan.delay_line.call("counters")
    readings = []
    for state, counted in zip(wan.states, counters.read_links(wan.links), strict=True):
        link = state.link
        dropped = {"queue": counted.drops}
        line = lines.get(str(link.index))
        if line is not None:
            # What the delay line calls "queue" is the same drop as the kernel's, seen from the sender.
            dropped |= {reason: count for reason, count in line["drops"].items() if reason != "queue"}
        readings.append(
            LinkReading(
                src=link.src_name,
                dst=link.dst_name,
                up=not (state.down or state.blackhole),
                rate_bps=link.rate.bps,
                delay_s=link.delay.seconds,
                jitter_s=link.jitter.seconds,
                loss_ratio=link.loss.ratio,
                transmit_bytes=counted.bytes,
                queue_bytes=counted.backlog_bytes,
                dropped_frames=dropped,
            )
        )
    return readings
