"""A run's metrics as files, so that reports need no live Prometheus."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from testbed.telemetry.query import PrometheusClient, Series

# Everything of the project's own, and whether each target answered.
DEFAULT_SELECTORS = ('{__name__=~"stormbed_.+"}', "up")


def fetch_window(
    client: PrometheusClient, start: float, end: float, selectors: Sequence[str] = DEFAULT_SELECTORS
) -> tuple[Series, ...]:
    """The raw samples from `start` to `end` (unix times), ordered by their labels."""
    series = [one for selector in selectors for one in client.raw(selector, start, end)]
    return tuple(sorted(series, key=lambda one: sorted(one.labels.items())))


def write_json(path: Path, series: Sequence[Series], start: float, end: float) -> None:
    """`{"schema", "start_s", "end_s", "series": [{"labels": {...}, "samples": [[t_s, value], ...]}]}`."""
    document = {
        "schema": 1,
        "start_s": start,
        "end_s": end,
        "series": [
            {"labels": dict(one.labels), "samples": [list(sample) for sample in one.samples]}
            for one in series
        ],
    }
    path.write_text(json.dumps(document))


def write_csv(path: Path, series: Sequence[Series]) -> None:
    """One line a sample: time, value, metric, then one column for every label that occurs."""
    names = sorted({name for one in series for name in one.labels} - {"__name__"})
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["t_s", "value", "metric", *names])
        for one in series:
            labels = [one.labels.get(name, "") for name in names]
            for t, value in one.samples:
                writer.writerow([f"{t:.3f}", repr(value), one.labels.get("__name__", ""), *labels])


def export_window(
    client: PrometheusClient,
    start: float,
    end: float,
    directory: Path,
    selectors: Sequence[str] = DEFAULT_SELECTORS,
) -> tuple[Path, Path]:
    """Write metrics.json and metrics.csv of a run's window into its directory; returns both paths."""
    series = fetch_window(client, start, end, selectors)
    as_json, as_csv = directory / "metrics.json", directory / "metrics.csv"
    write_json(as_json, series, start, end)
    write_csv(as_csv, series)
    return as_json, as_csv
