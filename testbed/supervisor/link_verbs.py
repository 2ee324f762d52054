"""What a supervisor can be asked about links: their values and counters, changing them by hand and by themselves."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from testbed.emulation import counters, shaping
from testbed.emulation.link_test import measure_route
from testbed.emulation.routes import routes_between
from testbed.supervisor.player import Player
from testbed.supervisor.registry import Progress, verb
from testbed.supervisor.state import Supervisor
from testbed.timeline import RunDynamics, TimelineEntry, steps
from topologies.errors import UsageError
from topologies.model import DirectedLink
from topologies.units import Delay, Loss, Rate, Size
from topologies.validation import validated


@verb()
def links(supervisor: Supervisor, progress: Progress) -> list[dict[str, Any]]:
    """Every direction: as declared, as it is now, who carries it, and what it has carried."""
    wan = supervisor.wan
    kernel = counters.read_links(wan.links)
    line = wan.delay_line.counters()
    result = []
    for declared, state, counted in zip(supervisor.topology.directed, wan.states, kernel, strict=True):
        link = state.link
        result.append(
            _values(link)
            | {
                "index": link.index,
                "src": link.src_name,
                "dst": link.dst_name,
                "declared": _values(declared),
                "state": state.condition,
                "carrier": state.carrier,
                "device": shaping.egress_device(link),
                "counters": counted.to_dict(),
                "delay_line": line.get(str(link.index)),
            }
        )
    return result


def _values(link: DirectedLink) -> dict[str, Any]:
    return {
        "rate_bps": link.rate.bps,
        "delay_s": link.delay.seconds,
        "jitter_s": link.jitter.seconds,
        "loss_ratio": link.loss.ratio,
        "loss_burst": link.loss.burst,
        "queue_bytes": link.queue.bytes if link.queue is not None else None,
    }


# Read each second of a run: on a machine whose processors are all taken by the switches it may come late.
@verb(seconds=60)
def sample(supervisor: Supervisor, progress: Progress) -> dict[str, Any]:
    """Cumulative counters of every direction, of the machine's CPU and of the testbed's own processes; the
    difference of two is a window.
    """
    wan = supervisor.wan
    now = {"t_s": time.time(), "monotonic_ns": time.monotonic_ns()}
    kernel = counters.read_links(wan.links)
    line = wan.delay_line.counters()
    entries = [
        {"src": link.src_name, "dst": link.dst_name, "rate_bps": link.rate.bps}
        | counted.to_dict()
        | {"delay_line": line.get(str(link.index))}
        for link, counted in zip(wan.links, kernel, strict=True)
    ]
    processes = [
        {"name": process.spec.name, "site": process.spec.site, "pid": process.pid, "cpu_s": seconds}
        for process in supervisor.processes.all()
        if process.status is None and (seconds := counters.read_process_cpu(process.pid)) is not None
    ]
    return {
        "schema": 1,
        **now,
        "cpu": counters.read_cpu().to_dict(),
        "links": entries,
        "processes": processes,
    }


@verb(changes=True)
def link_set(
    supervisor: Supervisor,
    progress: Progress,
    src: str | None = None,
    dst: str | None = None,
    both: bool = False,
    changes: Sequence[Mapping[str, Any]] | None = None,
    **values: str,
) -> list[dict[str, Any]]:
    """Give one direction new values (rate, delay, jitter, loss, queue), or both directions of its link.

    `changes` takes many at once, each {"src", "dst", "both"?, ...values}: all rates change in the same
    moment.
    """
    wanted = list(changes or ())
    if src is not None or dst is not None:
        wanted.append({"src": src, "dst": dst, "both": both, **values})
    wan = supervisor.wan
    fresh: dict[int, DirectedLink] = {}
    for change in wanted:
        change = dict(change)
        index = wan.index(change.pop("src"), change.pop("dst"))
        for i in (index, index ^ 1) if change.pop("both", False) else (index,):
            fresh[i] = replace(fresh.get(i, wan.links[i]), **_parse_values(change))
    if not fresh:
        raise UsageError("link_set names no link", hint="give src and dst")
    wan.change(fresh)
    supervisor.network.fit_links(wan.links)
    for link in fresh.values():
        supervisor.events.write("link_set", src=link.src_name, dst=link.dst_name, **_values(link))
    _tell(supervisor, fresh)
    return [{"src": link.src_name, "dst": link.dst_name} | _values(link) for link in fresh.values()]


def _tell(supervisor: Supervisor, indexes: Iterable[int]) -> None:
    """Note what links are after a change by hand: a run that goes on has to know it."""
    states = supervisor.wan.states
    supervisor.events.write("links_by_hand", links=[states[i].describe() for i in sorted(indexes)])


_UNITS: Final[dict[str, Any]] = {"rate": Rate, "delay": Delay, "jitter": Delay, "loss": Loss, "queue": Size}


def _parse_values(values: Mapping[str, Any]) -> dict[str, Any]:
    parsed = {}
    for key, text in values.items():
        if key not in _UNITS:
            raise UsageError(f"a link has no {key!r}", hint=f"it has {', '.join(_UNITS)}")
        if text is None:
            continue
        if not isinstance(text, str):
            raise UsageError(f"{key} {text!r} has no unit", hint=f"write for example {_UNITS[key].example}")
        parsed[key] = _UNITS[key].parse(text)
    if not parsed:
        raise UsageError("no new value is given", hint=f"give one of {', '.join(_UNITS)}")
    return parsed


@verb(seconds=60, changes=True)
def link_test(
    supervisor: Supervisor, progress: Progress, src: str, dst: str, seconds: float = 2.0
) -> dict[str, Any]:
    """Measure from the host of one site to that of another; see `testbed.emulation.link_test`."""
    ends = supervisor.topology.index(src), supervisor.topology.index(dst)
    if ends[0] == ends[1]:
        raise UsageError(f"from {src} to itself nothing crosses the WAN")
    cut = sorted({state.link.index // 2 for state in supervisor.wan.states if state.down})
    routes = routes_between(supervisor.topology, supervisor.info.controller_url, *ends, cut)
    progress(f"measuring {' > '.join(supervisor.topology.site_names[k] for k in routes[0].path)}")
    return measure_route(supervisor.wan, routes, supervisor.network.site_pid, seconds)


@verb(changes=True)
def link_reset(
    supervisor: Supervisor, progress: Progress, src: str | None = None, dst: str | None = None
) -> None:
    """One link, or all: back to the values of the file in both directions, up, and no blackhole."""
    wan = supervisor.wan
    indexes = range(len(wan.links))
    if src is not None and dst is not None:
        link = wan.index(src, dst) // 2
        indexes = range(2 * link, 2 * link + 2)
    for i in indexes:
        state = wan.states[i]
        if state.down:
            wan.set_down(state.link.src_name, state.link.dst_name, False)
        if state.blackhole:
            wan.set_blackhole(state.link.src_name, state.link.dst_name, False)
    wan.change({i: supervisor.topology.directed[i] for i in indexes})
    supervisor.network.fit_links(wan.links)
    supervisor.events.write("link_reset", src=src, dst=dst)
    _tell(supervisor, indexes)


@verb(changes=True)
def link_down(supervisor: Supervisor, progress: Progress, src: str, dst: str, both: bool = True) -> None:
    """Cut a link, always in both directions; the switches notice."""
    if not both:
        raise UsageError("a cable is cut in both directions", hint="blackhole drops one direction in silence")
    supervisor.wan.set_down(src, dst, True)
    supervisor.events.write("link_down", src=src, dst=dst)
    _tell(supervisor, _both(supervisor, src, dst))


@verb(changes=True)
def link_up(supervisor: Supervisor, progress: Progress, src: str, dst: str, both: bool = True) -> None:
    """Mend a link that was cut."""
    supervisor.wan.set_down(src, dst, False)
    supervisor.events.write("link_up", src=src, dst=dst)
    _tell(supervisor, _both(supervisor, src, dst))


@verb(changes=True)
def blackhole(
    supervisor: Supervisor, progress: Progress, src: str, dst: str, on: bool = True, both: bool = False
) -> None:
    """Drop everything of a direction (or of both) in silence, or stop doing so."""
    for a, b in ((src, dst), (dst, src)) if both else ((src, dst),):
        supervisor.wan.set_blackhole(a, b, on)
        supervisor.events.write("blackhole", src=a, dst=b, on=on)
    index = supervisor.wan.index(src, dst)
    _tell(supervisor, _both(supervisor, src, dst) if both else (index,))


def _both(supervisor: Supervisor, src: str, dst: str) -> tuple[int, int]:
    """Both directions of a link."""
    index = supervisor.wan.index(src, dst)
    return index, index ^ 1


@verb(seconds=60, changes=True)
def dynamics_start(
    supervisor: Supervisor,
    progress: Progress,
    dynamics: Any = None,
    timeline: Sequence[Mapping[str, Any]] = (),
    seed: int = 1,
    scale: float = 1.0,
    folder: str | None = None,
    owner: str = "run",
) -> dict[str, Any]:
    """Begin to change links by themselves; what is due at once is done when this returns.

    Args:
        owner: "run" is an experiment's, which nobody replaces and whose every step is kept for `dynamics_stop`;
            "standing" belongs to the testbed itself, and another standing one takes its place.
        dynamics: as in an experiment file.
        timeline: entries as in an experiment file.
        seed, scale: see `topologies.dynamics.Dynamics.changes`.
        folder: what a trace's path is relative to.
    """
    standing = supervisor.dynamics
    if standing is not None and "run" in (owner, standing["owner"]):
        raise UsageError(
            "the links are changing by themselves already",
            hint="wait for the run to end" if standing["owner"] == "run" else "`testbed link vary --stop` ends it",
        )
    how = validated(RunDynamics, dynamics, place=("dynamics",))
    entries = [
        validated(TimelineEntry, entry, place=("timeline", number)) for number, entry in enumerate(timeline)
    ]
    wan, network = supervisor.wan, supervisor.network
    how.changes(supervisor.topology, seed=seed, scale=scale, folder=Path(folder) if folder else None)
    if standing is not None:  # what is to come is sound, so that what was there may end
        dynamics_stop(supervisor, progress, owner="standing")
    coming = steps(
        supervisor.topology,
        how,
        entries,
        seed=seed,
        scale=scale,
        folder=Path(folder) if folder else None,
        links=wan.links,
    )
    record = owner == "run"
    player = Player(wan, network, supervisor.events, supervisor.lock, coming, record=record)
    described = {
        "owner": owner,
        "text": _in_words(how, len(entries)),
        "dynamics": how.model_dump(mode="json"),
        "seed": seed,
        "scale": scale,
    }
    supervisor.player, supervisor.dynamics = player, described
    supervisor.events.write("dynamics_start", **described)
    try:
        player.start()
    except BaseException:
        supervisor.player = supervisor.dynamics = None
        player.stop()
        raise
    return {"began_ns": player.began_ns}


def _in_words(how: RunDynamics, entries: int) -> str:
    """What makes the links change: dynamics, a timeline, or both. Pure."""
    timeline = f"a timeline of {entries} {'entry' if entries == 1 else 'entries'}"
    words = [*([] if how.kind == "none" else [str(how)]), *([timeline] if entries else [])]
    return " and ".join(words) or "none"


@verb(seconds=60, changes=True)
def dynamics_stop(supervisor: Supervisor, progress: Progress, owner: str = "run") -> dict[str, Any]:
    """End it; the links that it changed are again what they were at its start.

    The result has the number of steps and, of a run's, each one that was applied; what the links have become
    again; and why it ended early, if it did.
    """
    player, playing = supervisor.player, supervisor.dynamics
    if player is None or playing is None:
        raise UsageError("the links do not change by themselves")
    if playing["owner"] != owner:
        raise UsageError(
            "the links are changed by a run" if playing["owner"] == "run" else "the links are changed by no run",
            hint="wait for it to end",
        )
    supervisor.player = supervisor.dynamics = None
    restored = player.stop()
    supervisor.events.write("dynamics_stop", steps=player.count)
    return {
        "began_ns": player.began_ns,
        "steps": player.count,
        "applied": player.applied,
        "restored": restored,
        "failure": player.failure,
    }
