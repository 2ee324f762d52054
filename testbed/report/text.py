"""A run's result as tables for people. Pure: it returns what rich can print."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from statistics import median

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from testbed.report.compare import Comparison
from testbed.report.format import NONE, interval, reached, seconds, with_interval
from testbed.report.overhead import Overhead
from testbed.report.summary import RunResult, SchedulerResult
from testbed.report.text_searches import policy_comparison, policy_table

_VERDICT_STYLE = {
    "faithful": "green",
    "exact": "green",
    "unknown": "yellow",
    "degraded": "yellow",
    "saturated": "red",
}
_STATUS_STYLE = {
    "completed": "green",
    "failed": "red",
    "interrupted": "yellow",
    "abandoned": "yellow",
    "running": "cyan",
}
BUSY_RATIO = 0.9
HEAD_START = 0.1
"""Of the bound; what less than it gives a scheduler is within the spread of its times."""
"""From here on workers and agents wait for processors often enough for times to show it."""

SCHEDULER_COLUMNS = (
    *("syncs", "sync mean s", "95 % CI", "median", "p95"),
    *("iteration s", "WAN MB/iter", "speed-up"),
)
COMPARISON_COLUMNS = (
    *("A sync s", "B sync s", "B / A"),
    *("A iteration s", "B iteration s", "B / A"),
    *("A speed-up", "B speed-up"),
)


def render_report(result: RunResult) -> RenderableType:
    """The report of one run: what it was, one row a scheduler, then what qualifies the numbers."""
    table = policy_table(result.policies) if result.policies else _scheduler_table(result)
    parts: list[RenderableType] = [_heading(result), Text(), table]
    spent = [row for row in result.overhead if row.replans or row.report_count]
    if spent:
        parts += [Text(), _overhead_table(spent)]
    notes = _notes(result)
    if notes:
        parts += [Text(), *notes]
    return Group(*parts)


def _heading(result: RunResult) -> Text:
    manifest = result.manifest
    sites = len({worker.site for worker in manifest.workers})
    scale = "" if manifest.scale == 1 else f", rates x {manifest.scale:g}"
    text = Text()
    text.append(manifest.id, style="bold")
    text.append("  ")
    text.append(manifest.status, style=_STATUS_STYLE.get(manifest.status, ""))
    text.append(f"  {manifest.world}: {manifest.topology}{scale}, ")
    text.append(f"{sites} sites, {len(manifest.workers)} workers")
    elements = {segment.elements for segment in manifest.segments}
    if len(elements) == 1 and not result.policies:
        text.append(f", {elements.pop():,} parameters")
    return text


def _scheduler_table(result: RunResult) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("scheduler", no_wrap=True)
    for column in SCHEDULER_COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    with_bound = any(scheduler.bound_s is not None for scheduler in result.schedulers)
    if with_bound:
        table.add_column("x bound", justify="right", no_wrap=True)
    table.add_column("busiest link", no_wrap=True)
    with_accuracy = any(scheduler.accuracy is not None for scheduler in result.schedulers)
    if with_accuracy:
        table.add_column("accuracy", justify="right", no_wrap=True)
    target = result.accuracy_target
    if target is not None:
        table.add_column(f"s to {target:.1%}", justify="right", no_wrap=True)
    table.add_column("workers agree", no_wrap=True)
    for scheduler in result.schedulers:
        sync = scheduler.synchronisation
        cells = [
            scheduler.scheduler,
            _count(scheduler),
            seconds(sync.mean if sync else None),
            interval(sync),
            seconds(sync.median if sync else None),
            seconds(sync.p95 if sync else None),
            with_interval(scheduler.iteration),
            _megabytes(scheduler.carried_bytes_per_iteration),
            _times(scheduler.speedup),
        ]
        if with_bound:
            cells.append(_times(scheduler.bound_multiple))
        busiest = scheduler.busiest
        cells.append(f"{busiest.src}>{busiest.dst} {busiest.utilisation_ratio:.0%}" if busiest else NONE)
        if with_accuracy:
            cells.append(_accuracy(scheduler))
        if target is not None:
            cells.append(reached(scheduler.time_to_accuracy, scheduler.reached, scheduler.repeats))
        cells.append(_agreement(scheduler))
        table.add_row(*cells)
    return table


def _overhead_table(spent: Sequence[Overhead]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("planned anew", no_wrap=True)
    for column in ("policies", "for", "gain predicted", "reports", "control", "probes", "agents' CPU"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in spent:
        control, cpu = row.share(sum(row.control.values())), row.cpu_s.get("agent")
        table.add_row(
            row.scheduler,
            str(sum(row.policies.values())),
            overhead_reasons(row),
            overhead_gain(row),
            str(row.report_count),
            NONE if control is None else f"{control:.2%}",
            NONE if row.share(row.probe_bytes) is None else f"{row.share(row.probe_bytes):.2%}",
            NONE if cpu is None else f"{seconds(cpu)} s of {seconds(row.wall_s)}",
        )
    return table


def overhead_reasons(row: Overhead) -> str:
    """Why plans were made anew, and how often."""
    return ", ".join(f"{reason} {n}" for reason, n in sorted(row.policies.items()) if reason != "start") or NONE


def overhead_gain(row: Overhead) -> str:
    """The median of the gains that new plans promised."""
    return f"{median(row.gains):+.0%}" if row.gains else NONE


def _count(scheduler: SchedulerResult) -> str:
    warmup = f" + {scheduler.warmup} warm-up" if scheduler.warmup else ""
    return f"{scheduler.measured}{warmup}"


def _agreement(scheduler: SchedulerResult) -> str:
    if scheduler.sums_checked:
        return "every sum exact"
    return {True: "yes", False: "NO", None: NONE}[scheduler.parameters_agree]


def _accuracy(scheduler: SchedulerResult) -> str:
    """With the number of iterations behind it, because schedulers may run different ones."""
    if scheduler.accuracy is None:
        return NONE
    return f"{scheduler.accuracy:.1%} after {(scheduler.measured + scheduler.warmup) // scheduler.repeats}"


def _range(values: Collection[float]) -> str:
    """The least and the greatest, or one where they read the same."""
    return " to ".join(dict.fromkeys(seconds(value) for value in (min(values), max(values))))


def _notes(result: RunResult) -> list[Text]:
    notes: list[Text] = []
    manifest = result.manifest
    if manifest.failure is not None:
        notes.append(Text(f"failed: {manifest.failure.message}", style="red"))
    if manifest.status == "abandoned":
        notes.append(Text("abandoned: its process ended without finishing it", style="yellow"))
    bounds = {scheduler.bound_s for scheduler in result.schedulers if scheduler.bound_s is not None}
    if bounds and not manifest.links_changed:
        notes.append(Text(f"bound: {_range(bounds)} s; no scheduler can be faster on these links"))
    elif bounds:
        notes.append(
            Text(
                f"bound: {_range(bounds)} s, the mean over a scheduler's own "
                "synchronisations, each at the rates that the links had while it went on"
            )
        )
    early = [scheduler.scheduler for scheduler in result.schedulers if scheduler.head_start > HEAD_START]
    if early:
        notes.append(
            Text(
                f"x bound: without a barrier ({', '.join(early)}) sites send what they have before the last worker "
                "is ready, which does not count in the time, so that less than 1 is possible"
            )
        )
    if manifest.changed_by_hand:
        notes.append(
            Text(
                f"links were changed by others during the run ({manifest.changed_by_hand} times, see changes.csv)",
                style="yellow",
            )
        )
    verdict = Text("fidelity: ")
    verdict.append(result.fidelity.verdict, style=_VERDICT_STYLE.get(result.fidelity.verdict, ""))
    if result.fidelity.reasons:
        verdict.append(f": {'; '.join(result.fidelity.reasons)}")
    notes.append(verdict)
    busy = (result.fidelity.run or {}).get("cpu_busy_ratio")
    if busy is not None and busy >= BUSY_RATIO:
        notes.append(
            Text(f"processors {busy:.0%} busy during the run: times include waiting for them", style="yellow")
        )
    firsts = [
        f"{scheduler.scheduler} {', '.join(seconds(value) for value in scheduler.first_synchronisation_s)} s"
        for scheduler in result.schedulers
        if scheduler.first_synchronisation_s
    ]
    if firsts:
        notes.append(Text(f"first synchronisation, with the set-up of connections: {'; '.join(firsts)}"))
    notes += [Text(str(counts)) for counts in result.decisions]
    notes += [
        Text(f"parameters differ: {', '.join(scheduler.disagreeing)}", style="red")
        for scheduler in result.schedulers
        if scheduler.disagreeing
    ]
    notes += [Text(f"note: {problem}", style="yellow") for problem in result.problems]
    return notes


MOST_TIMES = 4
"""Of so many schedulers the list of runs tells the time; the fastest come first."""


def render_runs(results: Sequence[RunResult], unreadable: Sequence[str] = ()) -> RenderableType:
    """The list of runs, newest last: id, status, topology, and the fastest schedulers' mean synchronisation
    times. On a narrow screen the cells of a run take several lines, so that none is cut off."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("run", "began (UTC)", "status", "network", "synchronisation s", "fidelity"):
        table.add_column(column, overflow="fold")
    for result in results:
        manifest = result.manifest
        means = [
            (scheduler.synchronisation.mean, scheduler.scheduler)
            for scheduler in result.schedulers
            if scheduler.synchronisation
        ]
        times = [f"{name} {seconds(mean)}" for mean, name in sorted(means)[:MOST_TIMES]]
        if len(means) > MOST_TIMES:
            times.append(f"{len(means) - MOST_TIMES} more")
        times += [f"{row.policy} SCT {seconds(row.stage.mean)}" for row in result.policies if row.stage]
        scale = "" if manifest.scale == 1 else f" x {manifest.scale:g}"
        table.add_row(
            manifest.id,
            datetime.fromtimestamp(manifest.started_s, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            Text(manifest.status, style=_STATUS_STYLE.get(manifest.status, "")),
            f"{manifest.world} {manifest.topology}{scale}",
            ", ".join(times) or NONE,
            result.fidelity.verdict,
        )
    return Group(table, *(Text(f"note: {problem}", style="yellow") for problem in unreadable))


def render_comparison(comparison: Comparison) -> RenderableType:
    """Two runs side by side, one row a scheduler of either."""
    lines = [
        Text(f"{letter}: {run.manifest.id}  {_where(run)}, {run.fidelity.verdict}")
        for letter, run in (("A", comparison.a), ("B", comparison.b))
    ]
    differences = [Text(f"differs: {difference}", style="yellow") for difference in comparison.differences]
    tables = [_scheduler_comparison(comparison)] if comparison.rows or not comparison.policies else []
    tables += [policy_comparison(comparison.policies)] if comparison.policies else []
    return Group(*lines, Text(), *tables, *([Text(), *differences] if differences else []))


def _scheduler_comparison(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("scheduler", no_wrap=True)
    for column in COMPARISON_COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for row in comparison.rows:
        table.add_row(
            row.scheduler,
            seconds(row.synchronisation_a_s),
            seconds(row.synchronisation_b_s),
            _ratio(row.synchronisation_ratio),
            seconds(row.iteration_a_s),
            seconds(row.iteration_b_s),
            _ratio(row.iteration_ratio),
            _times(row.speedup_a),
            _times(row.speedup_b),
        )
    return table


def _where(result: RunResult) -> str:
    manifest = result.manifest
    scale = "" if manifest.scale == 1 else f" x {manifest.scale:g}"
    return f"{manifest.world} {manifest.topology}{scale}"


def _times(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}x"


def _ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _megabytes(value: float | None) -> str:
    return NONE if value is None else f"{value / 1e6:.1f}"
