"""`testbed status`: links, sites and the current run, once or live."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from testbed.cli.list import age
from testbed.cli.output import SCHEMA, Format, FormatOption, console, count, make_table, mbps, print_json
from testbed.cli.scroll import QUIT, Scroll, Window
from testbed.cli.select import NameArgument, NameOption, attach, one_name
from testbed.emulation.waiting import wait_for
from testbed.standing import standing
from testbed.status import JobStatus, LinkStatus, SiteStatus, Snapshot, StatusReader
from topologies.errors import DeadlineError, StormbedError

INTERVAL_S = 1.0
# Long enough for a rate to mean something, short enough not to be noticed.
FIRST_WINDOW_S = 0.5
BUSY_RATIO = 0.9
# How long `down` may take from the supervisor's end until its files are gone: a second, and on a busy machine more.
GOING_S = 20.0
# The width from which the links stand beside the sites.
SIDE_BY_SIDE = 126


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    name: NameArgument = None,
    named: NameOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Redraw each second; arrows scroll, q or Ctrl-C ends.")
    ] = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Show configured and achieved rates, sites, agents, and the scheduler and iteration of the current
    run.
    """
    testbed = attach(one_name(name, named), "status")
    reader = StatusReader(testbed)
    try:
        reader.read()
        if watch:
            _watch(reader, format)
            return
        _pause(FIRST_WINDOW_S)
        snapshot = reader.read()
    except KeyboardInterrupt:
        if not watch:
            raise
        return  # the usual way to end it, wherever it happened to be
    finally:
        reader.close()
    if format is Format.JSON:
        print_json(snapshot.as_dict())
    else:
        console().print(render(snapshot))


# --- Live -------------------------------------------------------------------------------------------------


def _watch(reader: StatusReader, format: Format) -> None:
    scroll = Scroll()
    snapshots = _each_second(reader, scroll)
    if format is Format.JSON:
        for snapshot in snapshots:
            typer.echo(json.dumps({"schema": SCHEMA, **snapshot.as_dict()}))
    elif not sys.stdout.isatty():
        for snapshot in snapshots:
            console().print(render(snapshot), "")
    else:
        screen = Console(highlight=False)
        with Live(console=screen, screen=True, auto_refresh=False) as live:
            for snapshot in snapshots:
                # Not moved: a picture made for the screen. Moved: a part of the whole one.
                picture = render(snapshot, None if scroll.top else screen.size)
                live.update(Window(picture, screen.height, scroll), refresh=True)


def _each_second(reader: StatusReader, scroll: Scroll) -> Iterator[Snapshot]:
    """A snapshot a second, and the same one again when a key has moved it, until q, Ctrl-C, or the testbed's
    end."""
    snapshot: Snapshot | None = None
    try:
        with _keys() as pressed:
            due = time.monotonic() + FIRST_WINDOW_S
            while True:
                key = pressed(max(0.0, due - time.monotonic()))
                if key in QUIT:
                    return
                if key and snapshot is not None and scroll.press(key):
                    yield snapshot
                if time.monotonic() >= due:
                    due = time.monotonic() + INTERVAL_S
                    snapshot = reader.read()
                    yield snapshot
    except StormbedError as error:
        if not _goes_down(reader.name):
            raise
        typer.echo(f"testbed {reader.name} is down ({error.message})", err=True)


def _goes_down(name: str) -> bool:
    """Whether a testbed whose supervisor has stopped answering is gone, or goes within a moment."""
    try:
        wait_for(lambda: all(info.name != name for info in standing()), f"testbed {name} to go", GOING_S)
    except DeadlineError:
        return False
    return True


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key and returns it, or "" when none was pressed."""
    if not sys.stdin.isatty():
        yield _pause
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        # An arrow is three bytes or four, which arrive together.
        return os.read(terminal, 8).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(terminal)
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _pause(seconds: float) -> str:
    """Let a window of measurement pass."""
    time.sleep(seconds)
    return ""


# --- Drawing ----------------------------------------------------------------------------------------------


def render(snapshot: Snapshot, size: tuple[int, int] | None = None) -> RenderableType:
    """The whole picture.

    Args:
        snapshot: what to draw.
        size: width and height of the screen, whose last line is taken. Links and sites that would not fit are
            then left out, the least busy first, and a wide screen has links beside sites. Without it nothing
            is left out.
    """
    head = _head(snapshot)
    jobs = _jobs(snapshot.jobs)
    if size is None:
        return Group(*head, "", jobs, "", _sites(snapshot.sites), "", _links(snapshot.links, len(snapshot.links)))
    width, height = size
    # A table's column heads, the blank lines between the parts, and the line that tells what is left out.
    room = height - len(head) - max(1, len(snapshot.jobs)) - 6
    if width < SIDE_BY_SIDE:
        # Sites may have half of what is left, and all that the links do not need.
        left = room - 3
        for_sites = min(len(snapshot.sites), max(left // 2, left - len(snapshot.links)))
        sites = _sites(snapshot.sites, max(1, for_sites))
        return Group(*head, "", jobs, "", sites, "", _links(snapshot.links, max(1, left - for_sites)))
    beside = Table.grid(padding=(0, 4, 0, 0))
    beside.add_row(_links(snapshot.links, max(1, room)), _sites(snapshot.sites, max(1, room)))
    return Group(*head, "", jobs, "", beside)


def _head(snapshot: Snapshot) -> list[Text]:
    state = Text("up" if snapshot.healthy else "unhealthy", style="green" if snapshot.healthy else "red")
    first = Text.assemble(
        (snapshot.name, "bold"), f" ({snapshot.topology}) ", state, f" for {age(snapshot.up_s)}"
    )
    verdict = (snapshot.fidelity or {}).get("verdict")
    if verdict:
        first.append(f", {verdict}")
    lines = [
        first,
        Text(f"Prometheus {snapshot.prometheus_url}   ssh -F {snapshot.ssh_config} SITE", style="dim"),
        *([Text(f"live page {snapshot.page_url}", style="dim")] if snapshot.page_url else []),
    ]
    if snapshot.dynamics:
        lines.append(_changing(snapshot.dynamics))
    if snapshot.ended_processes:
        lines.append(Text(f"ended: {', '.join(snapshot.ended_processes)}", style="red"))
    if not snapshot.prometheus_up:
        lines.append(Text("Prometheus does not answer: agents and iterations are not known", style="yellow"))
    return lines


def _changing(dynamics: Mapping[str, Any]) -> Text:
    whose = " (of the run)" if dynamics["owner"] == "run" else ""
    if dynamics["failure"] is not None:
        return Text(f"links no longer change by themselves: {dynamics['failure']}", style="red")
    steps = count(range(dynamics["steps"]), "step")
    return Text(f"links change by themselves{whose}: {dynamics['text']}, {steps} so far")


def _jobs(jobs: Sequence[JobStatus]) -> RenderableType:
    if not jobs:
        return Text("no run is going on", style="dim")
    return make_table(
        ("run", "segment", "scheduler", "iteration", "sync s", "policy"),
        [
            (
                job.job,
                job.segment,
                job.scheduler,
                job.iteration,
                "-" if job.synchronisation_s is None else f"{job.synchronisation_s:.3f}",
                job.policy_version,
            )
            for job in jobs
        ],
    )


def _sites(sites: Sequence[SiteStatus], room: int | None = None) -> RenderableType:
    shown = list(sites)
    if room is not None and len(shown) > room:
        busiest = sorted(sites, key=lambda site: site.cpu_ratio or 0.0, reverse=True)[:room]
        shown = [site for site in sites if site in busiest]
    table = _site_table(shown)
    if len(shown) == len(sites):
        return table
    return Group(table, Text(f"and {len(sites) - len(shown)} less busy ones", style="dim"))


def _site_table(sites: Sequence[SiteStatus]) -> Table:
    words = {
        True: Text("up", style="green"),
        False: Text("down", style="red"),
        None: Text("?", style="yellow"),
    }
    return make_table(
        ("site", "agent", "workers", "cores", "MB", "WAN", "management"),
        [
            (
                site.site,
                words[site.agent_up],
                site.workers,
                "-" if site.cpu_ratio is None else f"{site.cpu_ratio:.2f}",
                f"{site.rss_bytes / 1e6:.0f}",
                site.wan_ip,
                site.mgmt_ip,
            )
            for site in sites
        ],
    )


def _links(links: Sequence[LinkStatus], room: int) -> RenderableType:
    shown = list(links)
    if len(shown) > room:
        busiest = sorted(links, key=lambda link: link.utilisation_ratio or 0.0, reverse=True)[:room]
        shown = [link for link in links if link in busiest]
    # Most networks lose nothing and have no jitter; then no column is spent on them.
    lossy, jittery = (any(values) for values in ([s.loss_ratio for s in shown], [s.jitter_s for s in shown]))
    extra = (*(("jitter",) if jittery else ()), *(("loss %",) if lossy else ()))
    table = make_table(
        ("from", "to", "", "Mbit/s", "achieved", "used", "delay ms", *extra, "queue kB", "drops"),
        [_link(link, lossy=lossy, jittery=jittery) for link in shown],
    )
    if len(shown) == len(links):
        return table
    return Group(table, Text(f"and {len(links) - len(shown)} less busy ones", style="dim"))


def _link(link: LinkStatus, *, lossy: bool, jittery: bool) -> tuple[str | Text, ...]:
    used = Text("-")
    if link.utilisation_ratio is not None:
        used = Text(
            f"{link.utilisation_ratio:.0%}", style="yellow" if link.utilisation_ratio >= BUSY_RATIO else ""
        )
    return (
        link.src,
        link.dst,
        Text(link.state, style="" if link.state == "up" else "red"),
        mbps(link.configured_bps),
        "-" if link.achieved_bps is None else mbps(link.achieved_bps),
        used,
        f"{link.delay_s * 1e3:g}",
        *((_or_dash(link.jitter_s * 1e3),) if jittery else ()),
        *((_or_dash(link.loss_ratio * 100, link.loss_burst),) if lossy else ()),
        f"{link.backlog_bytes / 1e3:.0f}",
        Text(str(link.drops), style="red" if link.drops_per_s else ""),
    )


def _or_dash(value: float, burst: float | None = None) -> str:
    return f"{value:g}" + (f" burst {burst:g}" if burst else "") if value else "-"
