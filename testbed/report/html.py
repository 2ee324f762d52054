"""A run as one page of its own: figures, tables, and the commands that make it again.

The page asks nothing of the network: its figures are inline SVG, its style is in its head, and it has no
script. It is made from the run directory's files alone.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from agents.control_classes import CLASSES
from testbed.dashboard.replay import read_replay
from testbed.events import read_events
from testbed.experiments.manifest import EXPERIMENT, RESOLVED, TOPOLOGY, TRACE, Manifest
from testbed.report import figures_run
from testbed.report import html_parts as parts
from testbed.report.figures import BLACK, Figure, standalone, style_of
from testbed.report.figures_links import utilisation
from testbed.report.format import NONE, reached, seconds, with_interval
from testbed.report.measurements import Measurements, read_run
from testbed.report.overhead import Overhead, read_overhead
from testbed.report.summary import Bounds, RunResult, SchedulerResult, summarise_run
from testbed.report.text import overhead_gain, overhead_reasons
from testbed.report.text_searches import COLUMNS
from topologies import drawing
from topologies.load import topology_from_dict

PAGE = "report.html"
_TONES = {
    "completed": "good",
    "faithful": "good",
    "exact": "good",
    "unknown": "warn",
    "degraded": "warn",
    "interrupted": "warn",
    "abandoned": "warn",
    "saturated": "bad",
    "failed": "bad",
}
_MOST_WORKERS = 48
_MOST_EVENTS = 500


def render_page(directory: Path, bounds: Bounds | None = None) -> str:
    """The page of a run.

    Args:
        directory: the run directory; nothing else is read.
        bounds: what no scheduler can beat, as `summarise_run` takes it.

    Raises:
        InvalidFileError: the manifest or the topology is missing or damaged.
    """
    run = read_run(directory)
    result = summarise_run(run, bounds)
    replay = read_replay(directory)
    drawn = {figure.name: figure for figure in draw(directory, run, result, replay)}
    sections = [
        ("result", "Result", _result(run, result)),
        *(
            (figure.name, figure.title, parts.figure_block(figure))
            for figure in drawn.values()
            if figure.name != "fidelity"
        ),
        ("overhead", "Policies and control", _overhead(read_overhead(run))),
        ("fidelity", "Fidelity", _fidelity(run.manifest, drawn.get("fidelity"))),
        ("network", "Network", _network(directory, run.manifest)),
        ("events", "Events", _events(replay["events"])),
        ("experiment", "Experiment", _experiment(directory, run.manifest)),
        ("reproduce", "Make it again", _reproduce(run.manifest)),
    ]
    sections = [section for section in sections if section[2]]
    title = f"{run.manifest.name}: {run.manifest.topology}, {run.manifest.world}"
    body = [
        _header(run.manifest),
        '<nav aria-label="Sections">'
        + "".join(f'<a href="#{anchor}">{escape(title)}</a>' for anchor, title, _ in sections)
        + "</nav><main>",
        *(parts.card(*section) for section in sections),
        f"</main><footer>stormbed {escape(run.manifest.versions.get('stormbed', ''))}, from the files of "
        f"<code>{escape(run.manifest.id)}</code></footer>",
    ]
    return parts.page(title, body)


def draw(directory: Path, run: Measurements, result: RunResult, replay: dict[str, Any]) -> list[Figure]:
    """Every figure that the run's files are enough for."""
    figures: list[Figure | None] = [
        figures_run.synchronisation_times(run, result),
        figures_run.accuracy(run, result),
        utilisation(run),
        figures_run.gantt(run, _traces(directory, run.manifest)),
        figures_run.timeline(run, replay),
        figures_run.fidelity(run),
    ]
    return [figure for figure in figures if figure is not None]


def write_figures(directory: Path, out: Path, bounds: Bounds | None = None) -> list[Path]:
    """Write each figure of a run as an SVG file of its own, for a paper or a slide; returns the files.

    A run that measured nothing has no figures; then nothing is written.

    Raises:
        InvalidFileError: as `render_page`.
        OSError: `out` cannot be written.
    """
    run = read_run(directory)
    figures = draw(directory, run, summarise_run(run, bounds), read_replay(directory))
    paths: list[Path] = []
    if figures:
        out.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        paths.append(out / f"{figure.name}.svg")
        paths[-1].write_text(standalone(figure.svg), encoding="utf-8")
    return paths


def _traces(directory: Path, manifest: Manifest) -> list[tuple[str, list[dict[str, Any]]]]:
    """Every worker's records; with many workers, each site's first one stands for its site."""
    workers = [worker for worker in manifest.workers if worker.worker == 0]
    if len(manifest.workers) <= _MOST_WORKERS:
        workers = list(manifest.workers)
    several = {worker.site for worker in workers if worker.worker > 0}
    return [
        (
            f"{worker.site}-{worker.worker}" if worker.site in several else worker.site,
            list(read_events(directory / worker.directory / TRACE)),
        )
        for worker in workers[:_MOST_WORKERS]
    ]


def _header(manifest: Manifest) -> str:
    verdict = manifest.fidelity.verdict
    workers, sites = len(manifest.workers), len({worker.site for worker in manifest.workers})
    scale = "" if manifest.scale == 1 else f", rates x {manifest.scale:g}"
    began = datetime.fromtimestamp(manifest.started_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    took = "" if manifest.finished_s is None else f", took {manifest.finished_s - manifest.started_s:.0f} s"
    failure = ""
    if manifest.failure is not None:
        failure = f'<p class="note bad">Failed: {escape(manifest.failure.message)}</p>'
    return (
        f"<header><h1>{escape(manifest.name)}</h1>{_chip(manifest.status)}"
        f"{_chip(verdict, f'fidelity: {verdict}')}"
        f"<p>{escape(manifest.topology)}{scale}, {manifest.world}; {sites} sites, {workers} workers; "
        f"began {began}{took}</p>{failure}</header>"
    )


def _chip(word: str, text: str = "") -> str:
    return f'<span class="chip {_TONES.get(word, "plain")}">{escape(text or word)}</span>'


def _result(run: Measurements, result: RunResult) -> str:
    if result.policies:
        return _policies(result)
    rows = result.schedulers
    columns: list[tuple[str, Callable[[SchedulerResult], str]]] = [
        ("synchronisations", lambda row: str(row.measured)),
        ("mean, s", lambda row: seconds(row.synchronisation.mean if row.synchronisation else None)),
        ("95 % interval", _interval),
        ("median", lambda row: seconds(row.synchronisation.median if row.synchronisation else None)),
        ("p95", lambda row: seconds(row.synchronisation.p95 if row.synchronisation else None)),
        ("iteration, s", lambda row: with_interval(row.iteration)),
        ("idle, s", lambda row: seconds(row.idle.mean if row.idle else None)),
        ("WAN MB per iteration", lambda row: _number(row.carried_bytes_per_iteration, 1e-6)),
        ("speed-up", lambda row: _number(row.speedup, 1, "x")),
        ("x bound", lambda row: _number(row.bound_multiple, 1, "x")),
        ("busiest link", _busiest),
        ("accuracy", lambda row: _number(row.accuracy, 100, " %")),
        (
            f"s to {result.accuracy_target or 0:.1%}",
            lambda row: (
                NONE
                if result.accuracy_target is None
                else reached(row.time_to_accuracy, row.reached, row.repeats)
            ),
        ),
        ("workers agree", _agreement),
    ]
    # A column in which nobody has anything would only be in the way.
    columns = [column for column in columns if any(column[1](row) != NONE for row in rows)]
    table = parts.table(
        ["scheduler", *(name for name, _ in columns)],
        [[_key(row.scheduler, run.manifest), *(escape(cell(row)) for _, cell in columns)] for row in rows],
        numeric=range(1, len(columns) + 1),
    )
    notes = [f'<p class="note">{escape(problem)}</p>' for problem in result.problems]
    notes += [
        f'<p class="note bad">Parameters differ: {escape(", ".join(row.disagreeing))}</p>'
        for row in rows
        if row.disagreeing
    ]
    return table + "".join(notes)


def _policies(result: RunResult) -> str:
    table = parts.table(
        ["policy", *(name for name, _ in COLUMNS)],
        [[escape(row.policy), *(escape(cell(row)) for _, cell in COLUMNS)] for row in result.policies],
        numeric=range(1, len(COLUMNS) + 1),
    )
    return table + "".join(f'<p class="note">{escape(problem)}</p>' for problem in result.problems)


def _key(scheduler: str, manifest: Manifest) -> str:
    colour = style_of(scheduler, manifest).colour
    shown = "var(--black)" if colour == BLACK else colour
    return parts.key(scheduler, shown)


def _interval(row: SchedulerResult) -> str:
    interval = row.synchronisation.interval if row.synchronisation else None
    return NONE if interval is None else f"±{seconds((interval[1] - interval[0]) / 2)}"


def _busiest(row: SchedulerResult) -> str:
    if row.busiest is None:
        return NONE
    return f"{row.busiest.src} > {row.busiest.dst} {row.busiest.utilisation_ratio:.0%}"


def _agreement(row: SchedulerResult) -> str:
    if row.sums_checked:
        return "every sum exact"
    return {True: "yes", False: "NO", None: NONE}[row.parameters_agree]


def _number(value: float | None, factor: float = 1.0, unit: str = "") -> str:
    return NONE if value is None else f"{value * factor:.1f}{unit}"


def _fidelity(manifest: Manifest, figure: Figure | None) -> str:
    found = manifest.fidelity
    reasons = "".join(f'<p class="note">{escape(reason)}</p>' for reason in found.reasons)
    facts: list[tuple[str, str]] = []
    if found.calibration:
        carried, declared = found.calibration.get("carried_bps"), found.calibration.get("declared_bps")
        if carried and declared:
            text = f"{carried / 1e6:,.0f} of {declared / 1e6:,.0f} Mbit/s"
            facts.append(("carried at bring-up, all links loaded", text))
    if found.run:
        for key, name, factor, unit in (
            ("cpu_busy_ratio", "processors busy during the run", 100, " %"),
            ("cpu_steal_ratio", "taken by other machines", 100, " %"),
            ("lateness_p99_s", "lateness of frames, p99", 1e3, " ms"),
        ):
            if found.run.get(key) is not None:
                facts.append((name, _number(float(found.run[key]), factor, unit)))
        facts.append(("packets dropped by full queues", f"{found.run.get('queue_drops', 0):,}"))
    return f"<p>{_chip(found.verdict)}</p>{reasons}{parts.facts(facts)}{parts.figure_block(figure) if figure else ''}"


def _overhead(spent: Sequence[Overhead]) -> str:
    """What following the network took, where the run kept it."""
    if not any(row.control or row.replans for row in spent):
        return ""
    columns: list[tuple[str, Callable[[Overhead], str]]] = [
        ("policies", lambda row: str(sum(row.policies.values()))),
        ("planned anew", overhead_reasons),
        ("gain predicted, median", overhead_gain),
        ("reports", lambda row: str(row.report_count)),
        *((f"{kind}, kB", partial(_kilobytes, kind)) for kind in CLASSES),
        ("control of all carried", lambda row: _percent(row.share(sum(row.control.values())))),
        ("probes of all carried", lambda row: _percent(row.share(row.probe_bytes))),
        ("agents, CPU s", lambda row: _cpu(row, "agent")),
        ("coordinator, CPU s", lambda row: _cpu(row, "coordinator")),
        ("controller, CPU s", lambda row: _cpu(row, "controller")),
        ("of, s", lambda row: _number(row.wall_s)),
    ]
    empty = {NONE, "0", "0.0", _percent(0.0)}
    columns = [column for column in columns if any(column[1](row) not in empty for row in spent)]
    rows = [[escape(row.scheduler), *(escape(cell(row)) for _, cell in columns)] for row in spent]
    return parts.table(["scheduler", *(name for name, _ in columns)], rows, numeric=range(1, len(columns) + 1))


def _kilobytes(kind: str, row: Overhead) -> str:
    return _number(row.control[kind] * 1e-3)


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.2%}"


def _cpu(row: Overhead, part: str) -> str:
    return _number(row.cpu_s.get(part))


def _network(directory: Path, manifest: Manifest) -> str:
    path = directory / TOPOLOGY
    topology = topology_from_dict(json.loads(path.read_text(encoding="utf-8")), source=str(path))
    picture = base64.b64encode(drawing.as_svg(topology).encode()).decode()
    links = [
        [
            escape(link.src),
            escape(link.dst),
            f"{link.rate_bps / 1e6:.4g}",
            f"{link.delay_s * 1e3:.4g}",
            f"{link.jitter_s * 1e3:.4g}",
            f"{link.loss_ratio * 100:.3g}" + (f" in bursts of {link.loss_burst:g}" if link.loss_burst else ""),
        ]
        for link in manifest.links
    ]
    columns = ["from", "to", "Mbit/s", "delay, ms", "jitter, ms", "loss, %"]
    return (
        f'<figure class="map"><img alt="Drawing of the network {escape(topology.name, quote=True)}" '
        f'src="data:image/svg+xml;base64,{picture}"></figure>'
        f"<details><summary>{len(links)} directed links</summary>"
        f'<div class="tall">{parts.table(columns, links, numeric=range(2, 6))}</div></details>'
    )


def _events(events: Sequence[dict[str, Any]]) -> str:
    if not events:
        return ""
    rows = [[f"{event['t']:.2f}", escape(event["level"]), escape(event["text"])] for event in events[:_MOST_EVENTS]]
    more = len(events) - len(rows)
    table = parts.table(["seconds", "level", "what happened"], rows, numeric=(0,))
    cut = f'<p class="reading">and {more} more in events.jsonl and changes.csv</p>' if more > 0 else ""
    return f'<div class="tall">{table}</div>{cut}'


def _experiment(directory: Path, manifest: Manifest) -> str:
    training = manifest.experiment.get("training", {})
    facts = [
        ("run", manifest.id),
        ("topology", manifest.topology),
        ("rates scaled by", f"{manifest.scale:g}"),
        ("model", str(training.get("model", NONE))),
        ("data", str(training.get("data", NONE))),
        ("batch per worker", str(training.get("batch", NONE))),
        (
            "parameters",
            ", ".join(f"{count:,}" for count in dict.fromkeys(s.elements for s in manifest.segments)),
        ),
        ("elements per chunk", f"{training.get('chunk_elements', 0):,}"),
        ("repeats", str(manifest.experiment.get("repeats", 1))),
        ("seed", str(manifest.seeds.get("experiment", NONE))),
        ("machine", _machine(manifest)),
        ("kernel", str(manifest.machine.get("kernel", NONE))),
        *sorted(manifest.versions.items()),
    ]
    try:
        text = (directory / EXPERIMENT).read_text(encoding="utf-8")
    except OSError:
        return parts.facts(facts)
    return f"{parts.facts(facts)}<details><summary>{EXPERIMENT}</summary><pre>{escape(text)}</pre></details>"


def _machine(manifest: Manifest) -> str:
    machine = manifest.machine
    memory = machine.get("memory_bytes")
    size = f", {memory / 2**30:.0f} GiB" if memory else ""
    return f"{machine.get('cpu_count', '?')} x {machine.get('cpu', '?')}{size}"


def _reproduce(manifest: Manifest) -> str:
    lines: list[str] = []
    if manifest.git and manifest.git.get("commit"):
        changed = "  # the checkout had changes of its own" if manifest.git.get("changed") else ""
        lines.append(f"git checkout {manifest.git['commit']}{changed}")
    if manifest.command:
        lines += ["# the command of this run", shlex.join(["testbed", *manifest.command[1:]])]
    lines += ["# the same from the run directory, every default and override written out"]
    lines += [f"testbed run {RESOLVED}", "testbed report last --html", f"testbed compare {manifest.id} last"]
    return f"<pre>{escape(chr(10).join(lines))}</pre>"
