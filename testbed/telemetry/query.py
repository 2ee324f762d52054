"""Asking a testbed's Prometheus. Two of its HTTP endpoints are enough."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from topologies.errors import DeadlineError, StormbedError

# A query returns raw samples of at most this many seconds, so that no answer grows without bound.
WINDOW_S = 600.0


class PrometheusError(StormbedError):
    """Prometheus is not reachable or refused a query."""


@dataclass(frozen=True)
class Series:
    """One time series: its labels (`__name__` among them where it has one) and its samples (unix time in s,
    value).
    """

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        return self.samples[-1][1]


class PrometheusClient:
    """A client of one testbed's Prometheus.

    Args:
        url: "http://10.199.0.253:9090".
        timeout: seconds that one query may take.
    """

    def __init__(self, url: str, *, timeout: float = 5.0) -> None:
        self.url = url
        # The testbed is on this machine: a proxy of the environment must not be asked.
        self._http = httpx.Client(base_url=url, timeout=timeout, trust_env=False)

    def instant(self, query: str, at: float | None = None) -> tuple[Series, ...]:
        """The value of an expression now, or at a unix time."""
        return self._query("/api/v1/query", {"query": query, **({} if at is None else {"time": at})})

    def range(self, query: str, start: float, end: float, step: float = 1.0) -> tuple[Series, ...]:
        """An expression evaluated every `step` seconds from `start` to `end` (unix times)."""
        return self._query("/api/v1/query_range", {"query": query, "start": start, "end": end, "step": step})

    def raw(self, selector: str, start: float, end: float) -> tuple[Series, ...]:
        """The samples as scraped, not resampled, from `start` to `end` inclusive."""
        found: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        left = start
        while left <= end:
            right = min(left + WINDOW_S, end)
            # A range selector includes both its ends; one millisecond is Prometheus's own resolution.
            span_ms = max(1, round((right - left) * 1000))
            for series in self.instant(f"{selector}[{span_ms}ms]", at=right):
                found.setdefault(tuple(sorted(series.labels.items())), []).extend(series.samples)
            left = right + 0.001
        return tuple(Series(dict(labels), tuple(samples)) for labels, samples in found.items())

    def targets_up(self) -> dict[tuple[str, str], bool]:
        """(job, instance) of every target to whether its last scrape succeeded; a target not yet scraped is
        absent.
        """
        return {(s.labels["job"], s.labels["instance"]): s.last == 1.0 for s in self.instant("up")}

    def wait_all_up(self, count: int, seconds: float) -> None:
        """Wait until `count` targets are up.

        Raises:
            DeadlineError: naming the targets that are down.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                up = self.targets_up()
            except PrometheusError:
                up = {}
            if sum(up.values()) >= count:
                return
            if time.monotonic() >= deadline:
                down = ", ".join(
                    f"{job} of {instance}" for (job, instance), well in sorted(up.items()) if not well
                )
                raise DeadlineError(
                    f"{count} targets of Prometheus at {self.url}",
                    seconds,
                    hint=f"down: {down or 'none was scraped'}",
                )
            time.sleep(0.2)  # the pace of asking again, not a wait for the condition itself

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _query(self, path: str, parameters: dict[str, Any]) -> tuple[Series, ...]:
        try:
            answer = self._http.post(path, data=parameters).json()
        except (httpx.HTTPError, ValueError) as error:
            raise PrometheusError(f"Prometheus at {self.url} does not answer: {error}") from None
        if answer.get("status") != "success":
            raise PrometheusError(
                f"Prometheus at {self.url} refused {parameters['query']!r}: {answer.get('error')}"
            )
        return parse_result(answer["data"])


def parse_result(data: Mapping[str, Any]) -> tuple[Series, ...]:
    """The `data` part of an answer as series, whatever its result type."""
    kind, result = data["resultType"], data["result"]
    if kind in ("scalar", "string"):
        return (Series({}, ((float(result[0]), float(result[1])),)),)
    return tuple(
        Series(
            dict(item["metric"]),
            tuple((float(t), float(v)) for t, v in (item["values"] if kind == "matrix" else [item["value"]])),
        )
        for item in result
    )
