"""Schedulers by name, with the colour and marker under which every figure shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.planning.base import Scheduler
from agents.planning.netstorm import NetStorm
from agents.planning.star import Star
from topologies.errors import UsageError
from topologies.model import nearest

SchedulerSpec = str | Mapping[str, Any]
"""A name, or {"name": ..., "options": {...}} as in an experiment file."""

Factory = Callable[[Mapping[str, Any], Sequence[str]], Scheduler]


@dataclass(frozen=True)
class Style:
    """How a scheduler looks in figures: a colour (RGB hex) and a matplotlib marker."""

    colour: str
    marker: str


@dataclass(frozen=True)
class Entry:
    """A registered scheduler. `fixed` are the options that the name stands for (star-best: server best)."""

    name: str
    summary: str
    style: Style
    factory: Factory
    options: tuple[str, ...]
    fixed: Mapping[str, Any]


_ENTRIES: dict[str, Entry] = {}
_ALIASES = {"star": "star-first"}


def _register(
    name: str,
    summary: str,
    colour: str,
    marker: str,
    factory: Factory,
    options: tuple[str, ...],
    **fixed: Any,
) -> None:
    _ENTRIES[name] = Entry(name, summary, Style(colour, marker), factory, options, fixed)


# Colours from the palette of Okabe and Ito, which colour-blind readers can tell apart.
_register(
    "star-first",
    "one server at the first site",
    "#D55E00",
    "v",
    Star.from_options,
    ("server",),
    server="first",
)
_register(
    "star-best", "one server at the best site", "#E69F00", "^", Star.from_options, ("server",), server="best"
)
_register(
    "star-all",
    "every site a server, equal shares",
    "#CC79A7",
    "D",
    Star.from_options,
    ("server",),
    server="all",
)
_register(
    "netstorm", "fastest-path trees to several roots", "#0072B2", "o", NetStorm.from_options, ("roots",)
)


def scheduler_names() -> tuple[str, ...]:
    """The names under which schedulers are shown, in the order of figures and tables."""
    return tuple(_ENTRIES)


def scheduler_summary(name: str) -> str:
    """One line on what it does."""
    return _entry(name).summary


def scheduler_style(name: str) -> Style:
    """Colour and marker of a displayed name; a star at a named site looks like star-first."""
    if name not in _ENTRIES and name.startswith("star-"):
        name = "star-first"
    return _entry(name).style


def get_scheduler(spec: SchedulerSpec, site_names: Sequence[str]) -> Scheduler:
    """The scheduler that a name or {"name", "options"} asks for, for a network of these sites.

    `star` takes server: first (default), best, all or a site; star-first, star-best and star-all are short
    for it. UsageError naming the nearest name, or the option that the scheduler does not have.
    """
    name, options = _read(spec)
    entry = _entry(name)
    for option in options:
        if option not in entry.options:
            known = ", ".join(entry.options) or "none"
            raise UsageError(f"scheduler {name} has no option {option!r}", hint=f"known options: {known}")
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
    return entry.factory(merged, site_names)


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
    try:
        return _ENTRIES[_ALIASES.get(name, name)]
    except KeyError:
        names = (*_ALIASES, *_ENTRIES)
        raise UsageError(f"unknown scheduler {name!r}", hint=nearest(name, names)) from None
