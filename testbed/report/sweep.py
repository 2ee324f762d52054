"""A sweep's results as rows, a figure and a page. Pure: from the sweep's state alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from testbed.experiments.manifest import Manifest
from testbed.experiments.sweep import REPLICATES, label
from testbed.report import html_parts as parts
from testbed.report.figures import INK, Figure, Look, drawing, looks_of, themed, to_svg
from testbed.report.format import NONE, seconds
from testbed.report.stats import Summary, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS: Final = (
    *("scheduler", "synchronisation_s", "ci95_low_s", "ci95_high_s", "synchronisations"),
    *("iteration_s", "bound_s", "bound_ratio", "carried_bytes_per_iteration", "accuracy_ratio"),
    *("fidelity", "run"),
)
# More would be read by nobody; the table has them all.
MOST_PANELS: Final = 12
_LOG_RATIO: Final = 10.0

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One scheduler at one point, over the replicates; seconds."""

    place: float
    summary: Summary
    bound_s: float | None


def to_csv(axes: Sequence[str], rows: Sequence[Row]) -> str:
    """One line a finished point and scheduler: the values of the axes, then COLUMNS."""
    buffer = io.StringIO()
    write = csv.writer(buffer, lineterminator="\n").writerow
    write([*axes, *COLUMNS])
    for row in rows:
        for found in row.get("schedulers", ()):
            sync, iteration = found["synchronisation_s"] or {}, found["iteration_s"] or {}
            low, high = sync.get("ci95") or (None, None)
            write(
                [
                    *(label(row["values"][axis]) for axis in axes),
                    *(found["scheduler"], sync.get("mean"), low, high, sync.get("count")),
                    *(iteration.get("mean"), found["bound_s"], found["bound_ratio"]),
                    *(found["carried_bytes_per_iteration"], found["accuracy_ratio"]),
                    *(row["fidelity"], row["run"]),
                ]
            )
    return buffer.getvalue()


def cells(rows: Sequence[Row], axis: str) -> dict[tuple[str, str], list[Cell]]:
    """By the values of the other axes but the replicates' (in words), and by scheduler: the cells along `axis`.

    A cell's interval is that of the replicates' means; of a single one it is that of its synchronisations.
    """
    values = list(dict.fromkeys(label(row["values"][axis]) for row in rows))
    numbers = {label(row["values"][axis]): row["values"][axis] for row in rows}
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers.values())
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        rest = ", ".join(
            f"{key} {label(value)}" for key, value in row["values"].items() if key not in (axis, REPLICATES)
        )
        for scheduler in row.get("schedulers", ()):
            if scheduler["synchronisation_s"]:
                at = (rest, scheduler["scheduler"], label(row["values"][axis]))
                found.setdefault(at, []).append(scheduler)
    result: dict[tuple[str, str], list[Cell]] = {}
    for (rest, name, value), group in found.items():
        place = float(numbers[value]) if numeric else float(values.index(value))
        bounds = [scheduler["bound_s"] for scheduler in group if scheduler["bound_s"] is not None]
        bound_s = sum(bounds) / len(bounds) if len(bounds) == len(group) else None
        result.setdefault((rest, name), []).append(Cell(place, _over(group), bound_s))
    for line in result.values():
        line.sort(key=lambda cell: cell.place)
    return result


def _over(group: Sequence[Row]) -> Summary:
    times = [scheduler["synchronisation_s"] for scheduler in group]
    if len(times) == 1:
        only = times[0]
        interval = None if only["ci95"] is None else (only["ci95"][0], only["ci95"][1])
        return Summary(
            only["count"], only["mean"], only["median"], only["p95"], only["min"], only["max"], interval
        )
    summary = summarise([time["mean"] for time in times])
    assert summary is not None
    return summary


@themed
def figure(axes: Sequence[str], rows: Sequence[Row], manifest: Manifest) -> Figure | None:
    """Synchronisation time along the first axis that is not the replicates'; a panel for each combination of the
    others.
    """
    axis = next((key for key in axes if key != REPLICATES), None)
    if axis is None:
        return None
    lines = cells([row for row in rows if row["status"] == "completed"], axis)
    panels = list(dict.fromkeys(rest for rest, _ in lines))[:MOST_PANELS]
    if not panels:
        return None
    made, plots = drawing(2.7 * len(panels) + 0.3, len(panels), sharex=True)
    categories = _categories(rows, axis)
    looks = looks_of((name for _, name in lines), manifest)
    for plot, panel in zip(plots, panels, strict=True):
        shown = {name: line for (rest, name), line in lines.items() if rest == panel}
        for name, line in shown.items():
            _draw(plot, name, line, looks[name])
        bounds = {cell.place: cell.bound_s for line in shown.values() for cell in line if cell.bound_s}
        if bounds:
            places = sorted(bounds)
            # A line needs two ends; where there is one value the bound is a short one across it.
            alone: dict[str, Any] = {}
            if len(places) == 1:
                alone = {"marker": "_", "markersize": 18, "markeredgewidth": 1.2}
            heights = [bounds[place] for place in places]
            plot.plot(places, heights, "--", color=INK, linewidth=1.2, label="bound", **alone)
        plot.set_title(panel)
        plot.set_ylabel("synchronisation, s")
        _scale(plot, shown, bounds, categories)
    plots[-1].set_xlabel(axis)
    plots[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8.5)
    return Figure(
        "sweep",
        "Synchronisation time",
        "Mean and 95 % confidence interval"
        + (" over the seeds." if REPLICATES in axes else " of each point's synchronisations.")
        + " Dashed: the time that no scheduler can beat on these links.",
        to_svg(made, "sweep", f"Synchronisation time of each scheduler against {axis}"),
    )


def _draw(plot: Axes, name: str, line: Sequence[Cell], style: Look) -> None:
    places, means = [cell.place for cell in line], [cell.summary.mean for cell in line]
    low = [mean - (cell.summary.interval or (mean,))[0] for cell, mean in zip(line, means, strict=True)]
    plot.errorbar(
        places, means, yerr=low, label=name, linestyle=style.line,
        markersize=11 if style.marker == "*" else 7, capsize=3, linewidth=1.8, **style.marks,
    )  # fmt: skip


def _scale(
    plot: Axes, shown: Mapping[str, Sequence[Cell]], bounds: Mapping[float, float], categories: Sequence[str] | None
) -> None:
    """Logarithmic axes where values are far apart; words where the axis has no numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    times = [cell.summary.mean for line in shown.values() for cell in line] + list(bounds.values())
    if min(times) > 0 and max(times) / min(times) > _LOG_RATIO:
        plot.set_yscale("log")
        plot.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        plot.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        plot.yaxis.set_minor_locator(NullLocator())
    else:
        plot.set_ylim(0, max(times) * 1.15)
    if categories is not None:
        plot.set_xticks(range(len(categories)), list(categories))
        plot.set_xlim(-0.5, len(categories) - 0.5)
        return
    places = sorted({cell.place for line in shown.values() for cell in line})
    if places[0] > 0 and places[-1] / places[0] > _LOG_RATIO:
        plot.set_xscale("log")
    plot.set_xticks(places, [f"{place:,g}" if abs(place) < 1e4 else f"{place:,.0f}" for place in places])
    plot.xaxis.set_minor_locator(NullLocator())


def _categories(rows: Sequence[Row], axis: str) -> list[str] | None:
    values = [row["values"][axis] for row in rows]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return None
    return list(dict.fromkeys(label(value) for value in values))


def table_rows(axes: Sequence[str], rows: Sequence[Row]) -> list[list[str]]:
    """One row a point: its values, then each scheduler's mean synchronisation time in seconds, in the order of
    `schedulers_of`; or the point's state.
    """
    names = schedulers_of(rows)
    result = []
    for row in rows:
        found = {s["scheduler"]: s["synchronisation_s"] for s in row.get("schedulers", ())}
        times = [seconds(found[name]["mean"]) if found.get(name) else NONE for name in names]
        state = row["status"] if row["status"] != "completed" else row["fidelity"]
        result.append([*(label(row["values"][axis]) for axis in axes), *times, state])
    return result


def schedulers_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(s["scheduler"] for row in rows for s in row.get("schedulers", ())))


def render_page(name: str, axes: Sequence[str], rows: Sequence[Row], drawn: Figure | None) -> str:
    """One self-contained page: the figure and the table."""
    done = sum(row["status"] == "completed" for row in rows)
    columns = [*axes, *(f"{name}, s" for name in schedulers_of(rows)), "state"]
    content = [[escape(cell) for cell in row] for row in table_rows(axes, rows)]
    failures = "".join(
        f'<p class="note bad">{escape(", ".join(f"{k} {label(v)}" for k, v in row["values"].items()))}: '
        f"{escape(row['failure'])}</p>"
        for row in rows
        if row["status"] == "failed"
    )
    body = [
        f"<header><h1>{escape(name)}</h1><p>{done} of {len(rows)} points</p></header><main>",
        parts.card(drawn.name, drawn.title, parts.figure_block(drawn)) if drawn else "",
        parts.card("points", "Points", parts.table(columns, content, range(len(axes), len(columns) - 1)) + failures),
        "</main>",
    ]
    return parts.page(f"sweep {name}", body)
