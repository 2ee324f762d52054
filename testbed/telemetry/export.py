"""A run's metrics as files, so that reports need no live Prometheus.

Compressed, because a sample a second of everything is 200 MB in eighteen minutes of nine sites; so it is 11.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, TextIO, cast

from testbed.telemetry.query import PrometheusClient, Series

# Everything of the project's own, and whether each target answered.
DEFAULT_SELECTORS = ('{__name__=~"stormbed_.+"}', "up")

JSON_FILE: Final = "metrics.json.gz"
CSV_FILE: Final = "metrics.csv.gz"
_LEVEL: Final = 2  # a third of the time of the usual 9, and a quarter more bytes


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
    with open_packed(path, "wt") as file:
        file.write(json.dumps(document))  # all at once: json.dump goes piece by piece, ten times slower


def write_csv(path: Path, series: Sequence[Series]) -> None:
    """One line a sample: time, value, metric, then one column for every label that occurs."""
    names = sorted({name for one in series for name in one.labels} - {"__name__"})
    with open_packed(path, "wt") as file:
        writer = csv.writer(file)
        writer.writerow(["t_s", "value", "metric", *names])
        for one in series:
            rest = io.StringIO()
            csv.writer(rest).writerow([one.labels.get(name, "") for name in ("__name__", *names)])
            file.write("".join(f"{t:.3f},{value!r},{rest.getvalue()}" for t, value in one.samples))


def export_window(
    client: PrometheusClient,
    start: float,
    end: float,
    directory: Path,
    selectors: Sequence[str] = DEFAULT_SELECTORS,
) -> tuple[Path, Path]:
    """Write both files of a run's window into its directory; returns their paths."""
    series = fetch_window(client, start, end, selectors)
    as_json, as_csv = directory / JSON_FILE, directory / CSV_FILE
    write_json(as_json, series, start, end)
    write_csv(as_csv, series)
    return as_json, as_csv


def open_packed(path: Path, mode: Literal["rt", "wt"]) -> TextIO:
    """A gzip file of text."""
    return cast(TextIO, gzip.open(path, mode, compresslevel=_LEVEL, encoding="utf-8", newline=""))
