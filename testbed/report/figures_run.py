"""The figures of one run, from its files alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from testbed.report.figures import (
    BED,
    CARD,
    DOWN,
    GOOD,
    INK,
    LEVELS,
    QUIET,
    WARN,
    Figure,
    drawing,
    looks_of,
    style_of,
    themed,
    to_svg,
)
from testbed.report.format import seconds
from testbed.report.measurements import Iteration, Measurements
from testbed.report.summary import RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NS: Final = 1e-9
_ROW_IN: Final = 0.42
# A logarithmic axis where one scheduler takes this many times as long as another.
_LOG_RATIO: Final = 30.0
_MOST_DOTS: Final = 400
_EVENT_LANES: Final = (
    ("change", "link changes", "|", WARN),
    ("failure", "failures", "X", DOWN),
    ("warning", "warnings", "^", WARN),
)


# Why a policy came into force, and how its mark looks.
_REASONS: Final = (("start", GOOD, "none"), ("every", GOOD, "none"), ("rates", GOOD, "full"), ("links", DOWN, "full"))


@themed
def synchronisation_times(run: Measurements, result: RunResult) -> Figure | None:
    """Every measured synchronisation, the mean with its interval, and the bound."""
    shown = [scheduler for scheduler in result.schedulers if scheduler.synchronisation]
    if not shown:
        return None
    made, (axes,) = drawing(0.9 + _ROW_IN * len(shown))
    values = [_measured(run, scheduler.scheduler) for scheduler in shown]
    looks = looks_of((scheduler.scheduler for scheduler in shown), run.manifest)
    for row, (scheduler, times) in enumerate(zip(shown, values, strict=True)):
        style, summary = looks[scheduler.scheduler], scheduler.synchronisation
        assert summary is not None
        some = times[:: max(1, len(times) // _MOST_DOTS)]
        # Spread below the mean in the order in which they came, so that equal ones do not hide each other.
        heights = [row + 0.2 + 0.14 * k / max(1, len(some) - 1) for k in range(len(some))]
        axes.plot(some, heights, ".", color=style.colour, markersize=4, alpha=0.55, zorder=2)
        if summary.interval is not None:
            axes.plot(summary.interval, (row, row), "-", color=style.colour, linewidth=2.5, zorder=3)
            axes.plot(summary.interval, (row, row), "|", color=style.colour, markersize=11, markeredgewidth=2)
        axes.plot(
            *(summary.mean, row),
            linestyle="none",
            markersize=13 if style.marker == "*" else 9,
            zorder=4,
            **style.marks,
        )
        half = 0.0 if summary.interval is None else summary.interval[1] - summary.mean
        # Of a simulated run all may be equal, and then there is no spread to tell.
        spread = f" ±{seconds(half)}" if half > 5e-4 * summary.mean else ""
        axes.annotate(
            f"{seconds(summary.mean)} s{spread}", (summary.mean, row), (0, 8), textcoords="offset points",
            ha="center", fontsize=8.5, zorder=5,
        )  # fmt: skip
        if scheduler.bound_s is not None:
            axes.plot([scheduler.bound_s] * 2, (row - 0.5, row + 0.5), "--", color=INK, linewidth=1.2)
    bounds = {scheduler.bound_s for scheduler in shown if scheduler.bound_s is not None}
    if bounds:
        least = min(bounds)
        text = f"bound {seconds(least)} s" if len(bounds) == 1 else "bound"
        axes.annotate(text, (least, -0.5), (0, 2), textcoords="offset points", ha="center", fontsize=8.5)
    axes.set_ylim(len(shown) - 0.5, -0.62)
    axes.set_yticks(range(len(shown)), [scheduler.scheduler for scheduler in shown])
    axes.grid(visible=False, axis="y")
    everything = [time for times in values for time in times] + sorted(bounds)
    ends = [scheduler.synchronisation.interval for scheduler in shown if scheduler.synchronisation]
    longest = max(everything + [interval[1] for interval in ends if interval is not None])
    if min(everything) > 0 and longest / min(everything) > _LOG_RATIO:
        axes.set_xscale("log")
        axes.set_xlim(right=longest * 1.4)
    else:
        axes.set_xlim(0, longest * 1.1)
    axes.set_xlabel("synchronisation time, s")
    return Figure(
        "synchronisation",
        "Synchronisation time",
        "From the last gradient that is ready at any worker to the last result at any worker. Dots: single "
        "synchronisations without the warm-up. Large marker and bar: mean and its 95 % confidence interval. "
        + ("Dashed: the time that no scheduler can beat on these links." if bounds else ""),
        to_svg(made, "sync", "Synchronisation time of each scheduler, with confidence intervals"),
    )


@themed
def accuracy(run: Measurements, result: RunResult) -> Figure | None:
    """The accuracy, else the loss, against the time since the scheduler's turn began."""
    for key, title, unit in (
        ("accuracy", "Accuracy against time", "accuracy"),
        ("loss", "Loss against time", "loss"),
    ):
        curves = [
            (segment, points)
            for segment in run.manifest.segments
            if len(points := _curve(run.iterations.get(segment.label, ()), key, segment.started_ns)) > 1
        ]
        if not curves:
            continue
        made, (axes,) = drawing(3.2)
        named: set[str] = set()
        looks = looks_of((segment.scheduler for segment in run.manifest.segments), run.manifest)
        for segment, points in curves:
            style = looks[segment.scheduler]
            label = segment.scheduler if segment.scheduler not in named else None
            named.add(segment.scheduler)
            axes.plot(
                *zip(*points, strict=True), linestyle=style.line, label=label, markersize=5,
                markevery=max(1, len(points) // 25), **style.marks | {"markeredgewidth": 0.6 * (1 + style.hollow)},
            )  # fmt: skip
        if key == "accuracy":
            from matplotlib.ticker import PercentFormatter

            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set(xlabel="seconds since the scheduler's turn began", ylabel=unit, xlim=(0, None))
        axes.legend(loc="best", fontsize=9)
        return Figure(
            "accuracy",
            title,
            f"The {unit} that workers measured, at the moment of the result that it was measured on. Steps "
            "cost every scheduler the same; only their duration differs.",
            to_svg(made, "acc", f"{title} for each scheduler"),
        )
    return None


@themed
def gantt(run: Measurements, workers: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> Figure | None:
    """One synchronisation of each scheduler, worker by worker.

    Args:
        run: the run.
        workers: name and trace records of each worker, in the order of the rows.
    """
    panels: list[tuple[str, Iteration]] = []
    for scheduler in dict.fromkeys(segment.scheduler for segment in run.manifest.segments):
        typical = _typical(run, scheduler)
        if typical is not None:
            panels.append((scheduler, typical))
    if not panels or not workers:
        return None
    row_in = 0.19 if len(workers) <= 20 else 0.13
    made, axes = drawing(0.4 + len(panels) * (0.6 + row_in * len(workers)), len(panels), sharex=True)
    for panel, (scheduler, chosen) in zip(axes, panels, strict=True):
        _gantt_panel(panel, chosen, workers, style_of(scheduler, run.manifest).colour)
        time = "" if chosen.synchronisation_s is None else f", {seconds(chosen.synchronisation_s)} s"
        panel.set_title(f"{scheduler}: iteration {chosen.iteration} of {chosen.segment}{time}")
    axes[-1].set_xlabel("seconds since the first worker began the iteration")
    axes[-1].set_xlim(left=0)
    return Figure(
        "gantt",
        "One synchronisation, worker by worker",
        "Each scheduler's synchronisation of median length. Pale: gradients are computed. Full: from the "
        "worker's own gradient to its last result. Dashed: the last gradient and the last result anywhere, "
        "between which the synchronisation time lies.",
        to_svg(made, "gantt", "When each worker computed and waited for the network in one synchronisation"),
    )


def _gantt_panel(
    axes: Axes, chosen: Iteration, workers: Sequence[tuple[str, Sequence[dict[str, Any]]]], colour: str
) -> None:
    rows = [
        (row, record)
        for row, (_, trace) in enumerate(workers)
        for record in trace
        if record.get("segment") == chosen.segment and record.get("iteration") == chosen.iteration
    ]
    zero = min((int(record["start_ns"]) for _, record in rows), default=0)
    for row, record in rows:
        start, ready, done = ((int(record[key]) - zero) * _NS for key in ("start_ns", "ready_ns", "done_ns"))
        axes.barh(row, ready - start, left=start, height=0.62, color=LEVELS[0])
        axes.barh(row, done - ready, left=ready, height=0.62, color=colour)
    for moment in (chosen.ready_ns, chosen.done_ns):
        axes.axvline((moment - zero) * _NS, color=INK, linewidth=1, linestyle="--")
    axes.set_ylim(len(workers) - 0.4, -0.6)
    axes.set_yticks(range(len(workers)), [name for name, _ in workers], fontsize=8)
    axes.grid(visible=False, axis="y")


@themed
def timeline(run: Measurements, replay: dict[str, Any]) -> Figure | None:
    """Turns, policies and what happened to the network, on one axis."""
    segments = [segment for segment in replay["segments"] if segment["t1"] is not None]
    if not segments:
        return None
    lanes = ["turns"]
    policies = replay["policies"]
    if policies:
        lanes.append("policy versions")
    lanes += [text for level, text, _, _ in _EVENT_LANES if _at(replay["events"], level)]
    syncs = replay["syncs"]
    if syncs:
        lanes.append("synchronisations")
    made, (axes,) = drawing(0.8 + 0.36 * len(lanes))
    end = max(segment["t1"] for segment in segments)
    for segment in segments:
        colour = style_of(segment["scheduler"], run.manifest).colour
        axes.barh(0, segment["t1"] - segment["t0"], left=segment["t0"], height=0.66, color=colour, edgecolor=CARD)
    for row, lane in enumerate(lanes):
        for level, text, marker, colour in _EVENT_LANES:
            if lane == text:
                times = _at(replay["events"], level)
                axes.plot(
                    times, [row] * len(times), marker, color=colour, markersize=8, markeredgewidth=1.4,
                    clip_on=False,
                )  # fmt: skip
        if lane == "policy versions":
            for reason, colour, fill in _REASONS:
                times = [policy["t"] for policy in policies if policy.get("reason", "start") == reason]
                axes.plot(
                    times, [row] * len(times), "D", color=colour, markersize=5, fillstyle=fill, clip_on=False,
                )  # fmt: skip
        if lane == "synchronisations":
            for segment in segments:
                times = [sync["t"] for sync in syncs if sync["segment"] == segment["label"]]
                colour = style_of(segment["scheduler"], run.manifest).colour
                axes.plot(times, [row] * len(times), "|", color=colour, markersize=9, markeredgewidth=1.2)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.45, -0.55)
    axes.set_xlim(0, max(end, *(event["t"] for event in replay["events"]), 1e-9))
    axes.grid(visible=False, axis="y")
    names = dict.fromkeys(segment["scheduler"] for segment in segments)
    if len(names) <= 10:
        from matplotlib.patches import Patch

        patches = [Patch(color=style_of(name, run.manifest).colour, label=name) for name in names]
        axes.legend(
            handles=patches, loc="lower left", bbox_to_anchor=(0, 1), ncols=min(8, len(names)), fontsize=9,
            borderaxespad=0.2, handlelength=1.1, handleheight=0.8,
        )  # fmt: skip
    axes.set_xlabel("seconds since the run began")
    return Figure(
        "timeline",
        "Policies and events",
        "Which scheduler had its turn, when each synchronisation ended, when a policy came into force (open: "
        "without a reason in the network; full green: for measured rates; full red: for links that failed or "
        "returned), and what became of the network meanwhile. The events are listed below.",
        to_svg(made, "time", "Turns, policies and events of the run on one time axis"),
    )


@themed
def fidelity(run: Measurements) -> Figure | None:
    """What each link carried of its declared rate, at bring-up and while data waited during the run."""
    found = run.manifest.fidelity
    calibrated = {
        f"{link['src']}>{link['dst']}": float(link["ratio"])
        for link in (found.calibration or {}).get("links", ())
        if link.get("ratio") is not None
    }
    waiting = {
        link: float(measure["carried_ratio"]) for link, measure in (found.run or {}).get("waiting_links", {}).items()
    }
    names = list(dict.fromkeys([*calibrated, *waiting]))
    if not names:
        return None
    made, (axes,) = drawing(2.9)
    place = {name: k for k, name in enumerate(names)}
    axes.axhspan(0.90, 0.97, color=BED, zorder=0)
    axes.plot(
        [place[name] for name in calibrated], list(calibrated.values()), "o", color=QUIET, markersize=6,
        label="bring-up, all links loaded",
    )  # fmt: skip
    axes.plot(
        [place[name] for name in waiting], list(waiting.values()), "D", color=WARN, markersize=6,
        markeredgecolor=CARD, label="run, while data waited",
    )  # fmt: skip
    from matplotlib.ticker import PercentFormatter

    values = [*calibrated.values(), *waiting.values()]
    axes.set_ylim(min(0.7, min(values) - 0.05), max(1.05, max(values) + 0.03))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    step = max(1, len(names) // 40)
    axes.set_xticks(range(0, len(names), step), names[::step], rotation=60, ha="right", fontsize=8)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("of the declared rate")
    axes.legend(loc="lower left", ncols=2, fontsize=9)
    return Figure(
        "fidelity",
        "Fidelity",
        "What each directed link carried of its declared rate; the band from 90 % to 97 % is what a faithful "
        "link reaches in payload. A link is judged during the run only where data waited for it long enough.",
        to_svg(made, "fid", "Share of its declared rate that each link carried"),
    )


def _measured(run: Measurements, scheduler: str) -> list[float]:
    return [
        iteration.synchronisation_s
        for segment in run.manifest.segments
        if segment.scheduler == scheduler
        for iteration in run.iterations.get(segment.label, ())
        if not iteration.warmup and iteration.synchronisation_s is not None
    ]


def _typical(run: Measurements, scheduler: str) -> Iteration | None:
    """The measured iteration whose synchronisation took the median time."""
    found = [
        iteration
        for segment in run.manifest.segments
        if segment.scheduler == scheduler
        for iteration in run.iterations.get(segment.label, ())
        if not iteration.warmup and iteration.synchronisation_s is not None
    ]
    if not found:
        return None
    middle = statistics.median_low([iteration.synchronisation_s or 0.0 for iteration in found])
    return next(iteration for iteration in found if iteration.synchronisation_s == middle)


def _curve(iterations: Sequence[Iteration], key: str, started_ns: int | None) -> list[tuple[float, float]]:
    if started_ns is None:
        return []
    return [
        ((iteration.done_ns - started_ns) * _NS, value)
        for iteration in iterations
        if (value := getattr(iteration, key)) is not None
    ]


def _at(events: Iterable[dict[str, Any]], level: str) -> list[float]:
    return [event["t"] for event in events if event["level"] == level]
