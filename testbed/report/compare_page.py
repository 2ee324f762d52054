"""Two runs beside each other as one page of its own. Pure: from what the runs' files say."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Final

from testbed.report import html_parts as parts
from testbed.report.compare import Comparison
from testbed.report.figures import BLACK, CARD, INK, Figure, drawing, style_of, themed, to_svg
from testbed.report.format import NONE, seconds
from testbed.report.summary import RunResult
from testbed.report.text_searches import COMPARISON_COLUMNS, comparison_cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW_IN: Final = 0.62
_LOG_RATIO: Final = 30.0
_RUN_COLUMNS: Final = ("", "run", "topology", "world", "fidelity", "began")


def render_compare_page(comparison: Comparison) -> str:
    """The page: the figure, a table of schedulers or of policies, and in what the two experiments differ."""
    a, b = comparison.a, comparison.b
    columns = [
        "scheduler",
        *("A, s", "B, s", "B / A"),
        *("A iteration, s", "B iteration, s", "B / A"),
        *("A speed-up", "B speed-up"),
    ]
    rows = [
        [
            parts.key(row.scheduler, _colour(row.scheduler, a, b)),
            seconds(row.synchronisation_a_s),
            seconds(row.synchronisation_b_s),
            _two(row.synchronisation_ratio),
            seconds(row.iteration_a_s),
            seconds(row.iteration_b_s),
            _two(row.iteration_ratio),
            _two(row.speedup_a, "x"),
            _two(row.speedup_b, "x"),
        ]
        for row in comparison.rows
    ]
    table = parts.table(columns, rows, range(1, len(columns)))
    figure = times(comparison)
    differences = "".join(f"<li>{escape(difference)}</li>" for difference in comparison.differences)
    body = [
        f"<header><h1>{escape(a.manifest.name)} against {escape(b.manifest.name)}</h1></header><main>",
        parts.card("runs", "Runs", parts.table(_RUN_COLUMNS, [_describe("A", a), _describe("B", b)])),
        parts.card(figure.name, figure.title, parts.figure_block(figure)) if figure else "",
        parts.card("table", "Synchronisation time", table) if rows else "",
        _policies(comparison),
        parts.card("differences", "What differs", f"<ul>{differences}</ul>") if differences else "",
        parts.card("again", "Make it again", f"<pre>testbed compare {a.manifest.id} {b.manifest.id} --html</pre>"),
        "</main>",
    ]
    return parts.page(f"{a.manifest.id} against {b.manifest.id}", body)


def _policies(comparison: Comparison) -> str:
    """The policies of two runs of searches, as the text has them."""
    if not comparison.policies:
        return ""
    columns = ("policy", *COMPARISON_COLUMNS)
    rows = [[escape(row.policy), *comparison_cells(row)] for row in comparison.policies]
    return parts.card("policies", "Stage completion time", parts.table(columns, rows, range(1, len(columns))))


@themed
def times(comparison: Comparison) -> Figure | None:
    """Mean synchronisation time of each scheduler in either run, with its interval and the bound."""
    shown = [row.scheduler for row in comparison.rows if row.synchronisation_a_s or row.synchronisation_b_s]
    if not shown:
        return None
    made, (axes,) = drawing(1.1 + _ROW_IN * len(shown))
    found: list[float] = []
    for place, name in enumerate(shown):
        for run, height, hollow in ((comparison.a, place - 0.15, False), (comparison.b, place + 0.15, True)):
            found += _draw(axes, run, name, height, hollow)
    axes.set_yticks(range(len(shown)), shown)
    axes.set_ylim(len(shown) - 0.45, -0.6)
    axes.grid(visible=False, axis="y")
    if max(found) / min(found) > _LOG_RATIO:
        axes.set_xscale("log")
        axes.set_xlim(right=max(found) * 1.5)
    else:
        axes.set_xlim(0, max(found) * 1.14)
    axes.set_xlabel("synchronisation time, s")
    return Figure(
        "times",
        "Synchronisation time, both runs",
        "Upper, filled: A. Lower, hollow: B. Bars: 95 % confidence interval of the mean. Dashed: the time that no "
        "scheduler can beat on the links of that run.",
        to_svg(made, "compare", "Mean synchronisation time of each scheduler in both runs"),
    )


def _draw(axes: Axes, run: RunResult, name: str, height: float, hollow: bool) -> list[float]:
    """One scheduler of one run; returns the times that must fit on the axis."""
    result = run.find(name)
    if result is None or result.synchronisation is None:
        return []
    style, summary = style_of(name, run.manifest), result.synchronisation
    if summary.interval is not None:
        axes.plot(summary.interval, (height, height), "-", color=style.colour, linewidth=2)
    axes.plot(
        *(summary.mean, height),
        style.marker,
        color=style.colour,
        markersize=12 if style.marker == "*" else 8,
        markerfacecolor=CARD if hollow else style.colour,
        markeredgecolor=style.colour if hollow else CARD,
    )
    axes.annotate(
        f"{'B' if hollow else 'A'} {seconds(summary.mean)}", (summary.mean, height), (8, -3),
        textcoords="offset points", fontsize=8,
    )  # fmt: skip
    if result.bound_s is None:
        return [summary.mean]
    axes.plot([result.bound_s] * 2, (height - 0.15, height + 0.15), "--", color=INK, linewidth=1.1)
    return [summary.mean, result.bound_s]


def _colour(name: str, a: RunResult, b: RunResult) -> str:
    colour = style_of(name, a.manifest if a.find(name) else b.manifest).colour
    return "var(--black)" if colour == BLACK else colour


def _describe(letter: str, run: RunResult) -> list[str]:
    manifest = run.manifest
    scale = "" if manifest.scale == 1 else f", rates x {manifest.scale:g}"
    began = datetime.fromtimestamp(manifest.started_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    cells = (letter, manifest.id, f"{manifest.topology}{scale}", manifest.world, run.fidelity.verdict, began)
    return [escape(cell) for cell in cells]


def _two(value: float | None, unit: str = "") -> str:
    return NONE if value is None else f"{value:.2f}{unit}"
