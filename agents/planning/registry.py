"""Schedulers by name, with the colour and marker under which every figure shows them.

Outside schedulers come by the entry point group `stormbed.schedulers`: the entry point's name is the
scheduler's, its object an `Entry` of that name (docs/write-a-scheduler.md). They are looked up when a name is
not one of ours, so a broken one disturbs nobody who does not ask for it.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from agents.planning import gloo
from agents.planning.base import LINK_ORDERS, Scheduler
from agents.planning.greedw import GreedW
from agents.planning.mlnet import MlNet
from agents.planning.netstorm import NetStorm
from agents.planning.options import word
from agents.planning.packing import PackingScheduler
from agents.planning.ring import Ring
from agents.planning.star import Star
from agents.planning.timing import Ordered
from agents.planning.tsengine import TsEngine
from topologies.errors import UsageError
from topologies.model import nearest

SchedulerSpec = str | Mapping[str, Any]
"""A name, or {"name": ..., "options": {...}} as in an experiment file."""

Factory = Callable[[Mapping[str, Any], Sequence[str]], Scheduler]
"""(options, site names) -> scheduler; UsageError for an option's value that it cannot take."""

GROUP = "stormbed.schedulers"
LINK_ORDER = "link_order"


@dataclass(frozen=True)
class Style:
    """How a scheduler looks in figures: a colour (#RRGGBB) and a matplotlib marker."""

    colour: str
    marker: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"#[0-9A-Fa-f]{6}", self.colour) or not self.marker:
            raise UsageError(
                f"colour {self.colour!r} and marker {self.marker!r} make no style",
                hint='such as Style("#0072B2", "o")',
            )


@dataclass(frozen=True)
class Entry:
    """A registered scheduler.

    factory   makes it from options; `options` are those that it takes, besides `link_order`, which the
              registry serves for all of them
    fixed     options that the name itself stands for (star-best: server best)
    per_transfer  decides while a collective runs instead of planning ahead, so it has no order of links
    every     plan anew after so many collectives where the experiment does not say how often; 0: no
    library   the workers' own library that exchanges gradients instead of the agents in the emulated world;
              what it plans is only a model of that library, and no option of the agents' applies
    """

    name: str
    summary: str
    style: Style
    factory: Factory
    options: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    per_transfer: bool = False
    library: str = ""
    every: int = 0


_ENTRIES: dict[str, Entry] = {}
_ALIASES = {"star": "star-first"}


def _register(
    name: str,
    summary: str,
    colour: str,
    marker: str,
    factory: Factory,
    options: tuple[str, ...],
    *,
    per_transfer: bool = False,
    library: str = "",
    every: int = 0,
    **fixed: Any,
) -> None:
    style = Style(colour, marker)
    _ENTRIES[name] = Entry(name, summary, style, factory, options, fixed, per_transfer, library, every)


# Colours from the palette of Okabe and Ito, which colour-blind readers can tell apart.
_register(
    "star-first",
    "one server at the first site",
    "#D55E00",
    "v",
    Star.from_options,
    ("server", "big_array"),
    server="first",
)
_register(
    "star-best",
    "one server at the best site",
    "#E69F00",
    "^",
    Star.from_options,
    ("server", "big_array"),
    server="best",
)
_register(
    "star-all",
    "every site a server, keys placed as MXNet does",
    "#CC79A7",
    "D",
    Star.from_options,
    ("server", "big_array"),
    server="all",
)
_register(
    "mlnet",
    "one complete k-ary tree that ignores the network",
    "#56B4E9",
    "P",
    MlNet.from_options,
    ("k", "seed", "roots"),
)
_register(
    "tsengine",
    "who sends to whom is decided per transfer",
    "#F0E442",
    ">",
    TsEngine.from_options,
    ("server", "max_greed", "expiry", "seed", "compat", "lease_s"),
    per_transfer=True,
)
_register("ring", "reduce-scatter and all-gather round a ring", "#000000", "s", Ring.from_options, ("order",))
_register(
    "greedw",
    "one tree of least modelled time for the rates of the moment",
    "#999999",
    "X",
    GreedW.from_options,
    ("method", "merge_s"),
    every=1,
)
_register(
    "netstorm",
    "fastest-path trees to several roots",
    "#0072B2",
    "o",
    NetStorm.from_options,
    ("roots", "pull", "paths", "seed"),
)
_register(
    "packing",
    "trees of the largest total rate, served by slack",
    "#009E73",
    "*",
    PackingScheduler.from_options,
    ("gap", "rounds", "latency", "run_ahead", "roots", "message_s"),
)
_register(
    gloo.NAME,
    "PyTorch's own all-reduce over gloo, without the agents",
    "#7F4F24",
    "d",
    gloo.Gloo.from_options,
    (),
    library=gloo.NAME,
)


def scheduler_names() -> tuple[str, ...]:
    """The schedulers that the agents carry out, in the order of figures and tables; outside ones last."""
    ours = (name for name, entry in _ENTRIES.items() if not entry.library)
    return (*ours, *sorted(_outside(tuple(sys.path))))


def accepted_names() -> tuple[str, ...]:
    """Every name for a scheduler that the agents carry out, short ones too."""
    return (*_ALIASES, *scheduler_names())


def library_names() -> tuple[str, ...]:
    """The schedulers that stand for a library of the workers' own, which the agents have no part in."""
    return tuple(name for name, entry in _ENTRIES.items() if entry.library)


def library_of(spec: SchedulerSpec) -> str:
    """The library that exchanges gradients instead of the agents; empty for what the agents carry out."""
    entry = _try_entry(_read(spec)[0])
    return "" if entry is None else entry.library


def scheduler_summary(name: str) -> str:
    """One line on what it does."""
    return _entry(name).summary


def plans_every(spec: SchedulerSpec) -> int:
    """After how many collectives a scheduler wants to plan anew, whatever the rates; 0: it does not."""
    entry = _try_entry(_read(spec)[0])
    return 0 if entry is None else entry.every


def scheduler_style(name: str) -> Style:
    """Colour and marker of a displayed name; what is shown as NAME-MORE or NAME+ORDER looks like NAME."""
    known = _try_entry(name)
    shorter = name
    while known is None and (cut := max(shorter.rfind("-"), shorter.rfind("+"))) > 0:
        shorter = shorter[:cut]
        known = _try_entry(shorter)
    return (known or _entry(name)).style


def get_scheduler(spec: SchedulerSpec, site_names: Sequence[str]) -> Scheduler:
    """The scheduler that a name or {"name", "options"} asks for, for a network of these sites.

    `star` takes server: first (default), best, all or a site; star-first, star-best and star-all are short
    for it. Every scheduler that plans ahead takes link_order: fifo, index or slack. UsageError naming the
    nearest name, or the option that the scheduler does not have.
    """
    name, options = _read(spec)
    entry = _entry(name)
    plans_ahead = not entry.per_transfer and not entry.library
    ours = (*entry.options, LINK_ORDER) if plans_ahead else entry.options
    for option in options:
        if option not in ours:
            known = ", ".join(ours) or "none"
            raise UsageError(f"scheduler {name} has no option {option!r}", hint=f"known options: {known}")
    order = None if LINK_ORDER in entry.options else options.pop(LINK_ORDER, None)
    if name in _ALIASES:
        merged = dict(entry.fixed) | options
    else:
        clash = [key for key in entry.fixed if key in options and options[key] != entry.fixed[key]]
        if clash:
            raise UsageError(
                f"scheduler {name} stands for {clash[0]} {entry.fixed[clash[0]]}, not {options[clash[0]]!r}",
                hint=f"use the name {name.split('-')[0]} with options",
            )
        merged = options | dict(entry.fixed)
    scheduler = entry.factory(merged, site_names)
    if order is None:
        return scheduler
    word(name, LINK_ORDER, order, LINK_ORDERS)
    return Ordered(scheduler, order)


def _read(spec: SchedulerSpec) -> tuple[str, dict[str, Any]]:
    if isinstance(spec, str):
        return spec, {}
    unknown = set(spec) - {"name", "options"}
    if unknown or not isinstance(spec.get("name"), str):
        raise UsageError(
            f"{dict(spec)!r} does not name a scheduler", hint="write NAME, or name: NAME with options: {...}"
        )
    return spec["name"], dict(spec.get("options") or {})


def _entry(name: str) -> Entry:
    entry = _try_entry(name)
    if entry is None:
        names = (*_ALIASES, *scheduler_names(), *library_names())
        raise UsageError(f"unknown scheduler {name!r}", hint=nearest(name, names))
    return entry


def _try_entry(name: str) -> Entry | None:
    ours = _ENTRIES.get(_ALIASES.get(name, name))
    if ours is not None:
        return ours
    outside = _outside(tuple(sys.path)).get(name)
    return None if outside is None else _load(outside)


# ---- schedulers of other distributions


@functools.lru_cache(maxsize=1)
def _outside(search_path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """The entry points of our group by name. Keyed by where Python looks, so a longer path is seen."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.get(point.name)
        if point.name in _ENTRIES or point.name in _ALIASES:
            raise UsageError(f"{_origin(point)}: stormbed has a scheduler of this name", hint="rename it")
        if other is not None and other.value != point.value:
            raise UsageError(f"{_origin(point)} and {_origin(other)} have the same name")
        found[point.name] = point
    return found


@functools.lru_cache(maxsize=64)
def _load(point: EntryPoint) -> Entry:
    try:
        entry = point.load()
    except Exception as error:  # whatever a foreign module raises while it is imported
        raise UsageError(f"{_origin(point)} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(entry, Entry):
        raise UsageError(
            f"{_origin(point)} is of type {type(entry).__name__}, not an Entry",
            hint="see docs/write-a-scheduler.md",
        )
    if entry.name != point.name:
        raise UsageError(f"{_origin(point)} calls itself {entry.name!r}", hint="make both names the same")
    return entry


def _origin(point: EntryPoint) -> str:
    distribution = "unknown" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    return f"scheduler {point.name!r} ({point.value}) of the distribution {distribution}"
