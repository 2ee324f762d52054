"""What happens to a network's links while a run goes on: its dynamics and its timeline, as one list of steps.

Pure and repeatable. The testbed plays the steps on real links, the simulated world on fluid ones.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from topologies.dynamics import Changes, Dynamics
from topologies.model import DirectedLink, Topology
from topologies.traces import LinkChange, select
from topologies.units import Delay, Loss, Rate, Span

Cut = Literal["down", "blackhole"]

_VALUES = ("rate", "delay", "loss")


class RunDynamics(Dynamics):
    """`dynamics:` of an experiment.

    With `replay: segment` every scheduler's turn meets the same changes at the same times after its start,
    so that schedulers can be compared; with `replay: run` they go on through the whole run.
    """

    replay: Literal["segment", "run"] = "segment"

    @model_serializer(mode="wrap")
    def _what_applies(self, handler: SerializerFunctionWrapHandler) -> Any:
        fields = super()._what_applies(handler)
        if isinstance(fields, str):
            return fields if self.replay == "segment" else {"kind": fields, "replay": self.replay}
        return fields | {"replay": self.replay}


def _link(value: Any) -> Any:
    """`dc1-dc2`, `dc1>dc2`, `*`, or the two ends of a link as a list."""
    if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(end, str) for end in value):
        return "-".join(value)
    return value


class TimelineEntry(BaseModel):
    """One line of `timeline:`.

    - `link-down`: the cable is cut, both switches see it; `link-up` mends it;
    - `blackhole`: everything is dropped in silence;
    - `link-set`: new values (`rate`, `delay`, `loss`), which dynamics do not touch while they hold.

    `at` counts from the same moment as the dynamics do. `for` ends it again; without it, it lasts to the end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    at: Span
    action: Literal["link-down", "link-up", "link-set", "blackhole"]
    link: Annotated[str, BeforeValidator(_link)]
    duration: Span | None = Field(default=None, alias="for")
    rate: Rate | None = None
    delay: Delay | None = None
    loss: Loss | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        given = [key for key in _VALUES if getattr(self, key) is not None]
        if self.action == "link-set" and not given:
            raise ValueError(f"link-set sets nothing; give one of {', '.join(_VALUES)}")
        if self.action != "link-set" and given:
            raise ValueError(f"{given[0]}: it is for link-set, not {self.action}")
        if self.action == "link-up" and self.duration is not None:
            raise ValueError("for: a link stays up by itself; leave it out")
        if self.action in ("link-down", "link-up") and ">" in self.link:
            raise ValueError(
                "link: a cable is cut in both directions, write dc1-dc2; blackhole has directions"
            )
        return self

    @model_serializer(mode="plain")
    def _what_is_given(self) -> dict[str, Any]:
        fields = {"at": str(self.at), "action": self.action, "link": self.link}
        if self.duration is not None:
            fields["for"] = str(self.duration)
        return fields | {key: str(getattr(self, key)) for key in _VALUES if getattr(self, key) is not None}

    def directions(self, topology: Topology) -> tuple[int, ...]:
        """The directed links it is about, by index; UsageError when there are none."""
        chosen = select(topology, self.link)
        if self.action == "link-set":
            return chosen
        return (
            chosen if self.action == "blackhole" else tuple(sorted({i for k in chosen for i in (k, k ^ 1)}))
        )


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of the links at one moment.

    `links` has the new values of the directions that change, by index; `down` and `blackhole` whether a
    direction is so from now on.
    """

    t_s: float
    links: Mapping[int, DirectedLink]
    down: Mapping[int, bool]
    blackhole: Mapping[int, bool]

    @property
    def empty(self) -> bool:
        return not (self.links or self.down or self.blackhole)


def steps(
    topology: Topology,
    dynamics: Dynamics,
    timeline: Sequence[TimelineEntry] = (),
    *,
    seed: int = 1,
    scale: float = 1.0,
    folder: Path | None = None,
    until_s: float = math.inf,
    links: Sequence[DirectedLink] | None = None,
) -> Iterator[Step]:
    """Everything that happens, in order of time. A step may change nothing, when a draw is as it was.

    Args:
        topology: as it runs, scaled already.
        seed, scale, folder, until_s: see `Dynamics.changes`; rates of the timeline are not scaled.
        links: what the links are at the beginning; as the topology declares them when left out.

    Raises, at the call and not at the first step: UsageError and InvalidFileError naming what does not fit.
    """
    changes = dynamics.changes(topology, until_s, seed=seed, scale=scale, folder=folder)
    happenings = _happenings(topology, timeline)
    return _steps(list(links or topology.directed), changes, happenings, until_s)


@dataclass(frozen=True, slots=True)
class _Happening:
    """The beginning or the end of a timeline's entry."""

    t_s: float
    number: int
    entry: TimelineEntry
    directions: tuple[int, ...]
    begins: bool


def _happenings(topology: Topology, timeline: Sequence[TimelineEntry]) -> list[_Happening]:
    found = []
    for number, entry in enumerate(timeline):
        directions = entry.directions(topology)
        found.append(_Happening(entry.at.seconds, number, entry, directions, True))
        if entry.duration is not None:
            end_s = entry.at.seconds + entry.duration.seconds
            found.append(_Happening(end_s, number, entry, directions, False))
    return sorted(found, key=lambda happening: (happening.t_s, happening.begins))


def _steps(
    base: list[DirectedLink], changes: Iterator[Changes], happenings: list[_Happening], until_s: float
) -> Iterator[Step]:
    state = _State(base)
    moments: Iterator[tuple[float, int, Any]] = heapq.merge(
        ((t, 0, changed) for t, changed in changes),
        ((h.t_s, 1, h) for h in happenings if h.t_s < until_s),
        key=lambda moment: moment[:2],
    )
    pending: tuple[float, set[int]] | None = None
    for t, kind, what in moments:
        if pending is not None and t > pending[0]:
            yield state.step(*pending)
            pending = None
        touched = state.change(what) if kind == 0 else state.happen(what)
        pending = (t, touched if pending is None else pending[1] | touched)
    if pending is not None:
        yield state.step(*pending)


class _State:
    """The links as dynamics make them, and what the timeline lays over them."""

    def __init__(self, base: list[DirectedLink]) -> None:
        self._base = base
        self._active: dict[int, _Happening] = {}
        self._shown = list(base)
        self._cut: dict[Cut, set[int]] = {"down": set(), "blackhole": set()}

    def change(self, changes: Mapping[int, LinkChange]) -> set[int]:
        for index, change in changes.items():
            self._base[index] = changed(self._base[index], change)
        return set(changes)

    def happen(self, happening: _Happening) -> set[int]:
        touched = set(happening.directions)
        if happening.entry.action == "link-up":
            # Whatever cut these links before is over.
            for number, other in list(self._active.items()):
                if other.entry.action == "link-down" and touched & set(other.directions):
                    left = tuple(i for i in other.directions if i not in touched)
                    self._active[number] = replace(other, directions=left)
        elif happening.begins:
            self._active[happening.number] = happening
        else:
            self._active.pop(happening.number, None)
        return touched

    def step(self, t_s: float, touched: set[int]) -> Step:
        links = {}
        cut: dict[Cut, set[int]] = {"down": set(), "blackhole": set()}
        for happening in self._active.values():
            if happening.entry.action == "link-down":
                cut["down"] |= set(happening.directions)
            elif happening.entry.action == "blackhole":
                cut["blackhole"] |= set(happening.directions)
        for index in sorted(touched):
            link = self._base[index]
            for happening in self._active.values():
                entry = happening.entry
                if entry.action == "link-set" and index in happening.directions:
                    link = changed(link, LinkChange(entry.rate, entry.delay, entry.loss))
            if link != self._shown[index]:
                links[index] = self._shown[index] = link
        differences: dict[Cut, dict[int, bool]] = {
            kind: {i: i in cut[kind] for i in sorted(cut[kind] ^ self._cut[kind])} for kind in cut
        }
        self._cut = cut
        return Step(t_s, links, differences["down"], differences["blackhole"])


def changed(link: DirectedLink, change: LinkChange) -> DirectedLink:
    """A direction with a change's values."""
    return replace(
        link,
        rate=link.rate if change.rate is None else change.rate,
        delay=link.delay if change.delay is None else change.delay,
        loss=link.loss if change.loss is None else change.loss,
    )
