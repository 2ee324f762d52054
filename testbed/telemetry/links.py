"""The metrics of the WAN's links, and the HTTP server that offers a process's metrics.

Rates are in bytes per second, as Prometheus users expect even of networks; every direction of a link is one
series with the labels `src` and `dst`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Thread
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True)
class LinkReading:
    """One direction of a link at one moment.

    Args:
        src, dst: names of the two sites.
        up: whether it carries frames.
        rate_bps, delay_s, jitter_s, loss_ratio: as configured now.
        transmit_bytes: what has left it since the testbed came up.
        queue_bytes: what waits in its shaper.
        dropped_frames: reason (queue, loss, down, ...) to a count since the testbed came up.
    """

    src: str
    dst: str
    up: bool
    rate_bps: float
    delay_s: float
    jitter_s: float
    loss_ratio: float
    transmit_bytes: int
    queue_bytes: int
    dropped_frames: Mapping[str, int] = field(default_factory=dict)


class LinkCollector(Collector):
    """Turns readings into metrics at each scrape; register it in a registry of its own.

    Args:
        read: returns the present reading of every direction.
    """

    def __init__(self, read: Callable[[], Iterable[LinkReading]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return _families()  # so that registering does not already read

    def collect(self) -> Iterator[Metric]:
        up, rate, delay, jitter, loss, sent, queue, dropped = _families()
        for link in self._read():
            labels = [link.src, link.dst]
            up.add_metric(labels, float(link.up))
            rate.add_metric(labels, link.rate_bps / 8)
            delay.add_metric(labels, link.delay_s)
            jitter.add_metric(labels, link.jitter_s)
            loss.add_metric(labels, link.loss_ratio)
            sent.add_metric(labels, link.transmit_bytes)
            queue.add_metric(labels, link.queue_bytes)
            for reason, count in link.dropped_frames.items():
                dropped.add_metric([*labels, reason], count)
        yield from (up, rate, delay, jitter, loss, sent, queue, dropped)


def _families() -> tuple[
    GaugeMetricFamily,
    GaugeMetricFamily,
    GaugeMetricFamily,
    GaugeMetricFamily,
    GaugeMetricFamily,
    CounterMetricFamily,
    GaugeMetricFamily,
    CounterMetricFamily,
]:
    ends = ("src", "dst")
    return (
        GaugeMetricFamily("stormbed_link_up", "Whether the direction carries frames.", labels=ends),
        GaugeMetricFamily(
            "stormbed_link_configured_bytes_per_second", "The rate it is shaped to.", labels=ends
        ),
        GaugeMetricFamily(
            "stormbed_link_configured_delay_seconds", "The one-way delay it adds.", labels=ends
        ),
        GaugeMetricFamily("stormbed_link_configured_jitter_seconds", "The jitter it adds.", labels=ends),
        GaugeMetricFamily(
            "stormbed_link_configured_loss_ratio", "The share of frames it drops.", labels=ends
        ),
        CounterMetricFamily("stormbed_link_transmit_bytes", "Bytes that have left it.", labels=ends),
        GaugeMetricFamily("stormbed_link_queue_bytes", "Bytes that wait in its shaper.", labels=ends),
        CounterMetricFamily(
            "stormbed_link_dropped_frames", "Frames it dropped, by reason.", labels=(*ends, "reason")
        ),
    )


class MetricsServer:
    """Serves a registry at http://address:port/metrics until it is closed.

    Unlike prometheus-client's own function it can be closed and opened again in one process.
    """

    def __init__(self, registry: CollectorRegistry, address: str, port: int) -> None:
        self._server, self._thread = start_http_server(port, addr=address, registry=registry)

    @property
    def port(self) -> int:
        """The port it listens on, also when 0 was asked for."""
        return int(self._server.server_port)

    @property
    def thread(self) -> Thread:
        return self._thread

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
