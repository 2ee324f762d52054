"""Orderings by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from agents.coflow.base import Ordering
from agents.coflow.beamer import Beamer, StageSrpt
from agents.coflow.fair import Fair
from agents.coflow.fifo import Fifo, FifoLm
from agents.coflow.horizon import Horizon
from agents.coflow.sincronia import Sincronia
from agents.coflow.varys import Varys
from topologies.errors import UsageError, nearest

OrderingSpec = str | Mapping[str, Any]

_ORDERINGS: dict[str, type[Any]] = {
    kind.name: kind for kind in (Fair, Fifo, FifoLm, Varys, Sincronia, Beamer, StageSrpt, Horizon)
}
# Those that read stages.
STAGED = frozenset({Beamer.name, StageSrpt.name, Horizon.name})


def ordering_names() -> tuple[str, ...]:
    return tuple(_ORDERINGS)


def get_ordering(spec: OrderingSpec) -> Ordering:
    """An ordering from its name, or from `{"name": ..., "options": {...}}`."""
    if isinstance(spec, str):
        name, options = spec, {}
    else:
        unknown = sorted(set(spec) - {"name", "options"})
        if unknown or "name" not in spec:
            raise UsageError(f"no ordering in {dict(spec)!r}", hint="give its name, and options if any")
        name, options = str(spec["name"]), dict(spec.get("options") or {})
    kind = _ORDERINGS.get(name)
    if kind is None:
        raise UsageError(f"unknown ordering {name!r}", hint=nearest(name, ordering_names()))
    known = [entry.name for entry in fields(kind) if entry.init]
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else "it has none"
            raise UsageError(f"{name} has no option {option!r}", hint=hint)
    try:
        ordering: Ordering = kind(**options)
    except TypeError as error:
        raise UsageError(f"{name}: an option has a value of the wrong kind: {error}") from error
    return ordering
