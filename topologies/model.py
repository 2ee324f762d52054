"""What the network is: sites, links with two directions each, and the whole.

A file says little and inherits the rest: a direction takes a value from its own `forward`/`backward`,
else from its link, else from the topology's `defaults`, else the built-in one (no delay, no jitter, no
loss, the emulator's own queue). A rate has no built-in value. `Topology.directed` is the result, one
entry a direction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from topologies.errors import UsageError, nearest
from topologies.units import Delay, Loss, Rate, Size, UnitError

_SITE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
_TOPOLOGY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_INHERITED = ("rate", "delay", "jitter", "loss", "queue")


def _site_name(name: str) -> str:
    if not _SITE_NAME.fullmatch(name):
        raise ValueError(
            f"{name[:40]!r} is not a site name; use 1 to 32 of a-z, 0-9 and '-', a letter or digit first"
        )
    return name


def _topology_name(name: str) -> str:
    if not _TOPOLOGY_NAME.fullmatch(name):
        raise ValueError(
            f"{name[:40]!r} is not a topology name; use 1 to 64 letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit"
        )
    return name


def _empty_map(value: Any) -> Any:
    return {} if value is None else value  # `dc1:` with nothing after it is a site with every default


SiteName = Annotated[str, AfterValidator(_site_name)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Site(_Model):
    """A data centre.

    `workers` train there. `cpu` is how many cores they may use together, 0.5 for half a one; as many as there
    are when it is left out. `lat`/`lon` (degrees) and `region` are for drawings and change no behaviour.
    """

    workers: int = Field(default=1, ge=1, le=64, strict=True)
    cpu: float | None = Field(default=None, ge=0.05, le=1024)
    lat: float | None = Field(default=None, ge=-90, le=90)
    lon: float | None = Field(default=None, ge=-180, le=180)
    region: str | None = None


class LinkHalf(_Model):
    """What one direction of a link says of its own; what it leaves out is inherited."""

    rate: Rate | None = None
    delay: Delay | None = None
    jitter: Delay | None = None
    loss: Loss | None = None
    queue: Size | None = None

    def scaled(self, factor: float) -> Self:
        return self if self.rate is None else self.model_copy(update={"rate": self.rate.scaled(factor)})


class Link(LinkHalf):
    """A link between two sites. Forward is from the first endpoint to the second."""

    endpoints: tuple[SiteName, SiteName]
    forward: Annotated[LinkHalf, BeforeValidator(_empty_map)] = LinkHalf()
    backward: Annotated[LinkHalf, BeforeValidator(_empty_map)] = LinkHalf()

    def scaled(self, factor: float) -> Self:
        halves = {"forward": self.forward.scaled(factor), "backward": self.backward.scaled(factor)}
        return super().scaled(factor).model_copy(update=halves)


@dataclass(frozen=True, slots=True)
class DirectedLink:
    """One direction of a link with everything resolved. Link i gives 2*i (forward) and 2*i + 1 (backward)."""

    index: int
    src: int
    dst: int
    src_name: str
    dst_name: str
    link: int
    rate: Rate
    delay: Delay
    jitter: Delay
    loss: Loss
    queue: Size | None


class Topology(_Model):
    """A connected set of sites. Site k of `site_names` is rank k everywhere."""

    name: Annotated[str, AfterValidator(_topology_name)]
    defaults: Annotated[LinkHalf, BeforeValidator(_empty_map)] = LinkHalf()
    sites: dict[SiteName, Annotated[Site, BeforeValidator(_empty_map)]]
    links: tuple[Link, ...] = ()

    @field_validator("sites", mode="before")
    @classmethod
    def _names_are_text(cls, sites: Any) -> Any:
        if isinstance(sites, Mapping):
            for name in sites:
                if not isinstance(name, str):
                    raise ValueError(
                        f"the site name {name!r} was read as a {type(name).__name__}, not text; quote it"
                    )
        return sites

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if not self.sites:
            raise ValueError("sites: there is no site")
        seen: dict[frozenset[str], int] = {}
        for i, link in enumerate(self.links):
            for end in link.endpoints:
                if end not in self.sites:
                    raise ValueError(
                        f"links[{i}].endpoints: there is no site {end!r}; {nearest(end, self.site_names)}"
                    )
            if link.endpoints[0] == link.endpoints[1]:
                raise ValueError(
                    f"links[{i}].endpoints: the link joins {link.endpoints[0]} to itself; remove it"
                )
            first = seen.setdefault(frozenset(link.endpoints), i)
            if first != i:
                raise ValueError(
                    f"links[{i}].endpoints: {' and '.join(link.endpoints)} are already joined by "
                    f"links[{first}]; merge the two and use forward/backward where the directions differ"
                )
            for side in ("forward", "backward"):
                if self._inherited(link, side, "rate") is None:
                    raise ValueError(
                        f"links[{i}].rate: the {side} direction of {'-'.join(link.endpoints)} has no rate; "
                        "give one here or in defaults"
                    )
        reached = self._reached_from(0)
        lost = [name for k, name in enumerate(self.site_names) if k not in reached]
        if lost:
            raise ValueError(
                f"links: {', '.join(lost[:12])}{' and more' if len(lost) > 12 else ''} cannot be reached "
                f"from {self.site_names[0]}; add a link"
            )
        return self

    def _inherited(self, link: Link, side: str, key: str) -> Any:
        for level in (getattr(link, side), link, self.defaults):
            value = getattr(level, key)
            if value is not None:
                return value
        return None

    def _reached_from(self, start: int) -> set[int]:
        reached, todo = {start}, [start]
        while todo:
            fresh = set(self._adjacency[todo.pop()]) - reached
            reached |= fresh
            todo.extend(fresh)
        return reached

    @cached_property
    def site_names(self) -> tuple[str, ...]:
        """The sites in the order of the file."""
        return tuple(self.sites)

    @cached_property
    def _indexes(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.site_names)}

    def index(self, name: str) -> int:
        """The index (rank) of a site; UsageError with the nearest name when there is none."""
        try:
            return self._indexes[name]
        except KeyError:
            raise UsageError(
                f"{self.name} has no site {name!r}", hint=nearest(name, self.site_names)
            ) from None

    @cached_property
    def directed(self) -> tuple[DirectedLink, ...]:
        """Both directions of every link, in the order of the file, forward first."""
        result: list[DirectedLink] = []
        for i, link in enumerate(self.links):
            for side, ends in (("forward", link.endpoints), ("backward", link.endpoints[::-1])):
                src, dst = ends
                values = {key: self._inherited(link, side, key) for key in _INHERITED}
                result.append(
                    DirectedLink(
                        index=len(result),
                        src=self.index(src),
                        dst=self.index(dst),
                        src_name=src,
                        dst_name=dst,
                        link=i,
                        rate=values["rate"],
                        delay=values["delay"] or Delay(0),
                        jitter=values["jitter"] or Delay(0),
                        loss=values["loss"] or Loss(0.0),
                        queue=values["queue"],
                    )
                )
        return tuple(result)

    @cached_property
    def _by_ends(self) -> dict[tuple[int, int], DirectedLink]:
        return {(d.src, d.dst): d for d in self.directed}

    def between(self, u: int, v: int) -> DirectedLink:
        """The direction from site u to its neighbour v; UsageError when no link joins them."""
        try:
            return self._by_ends[u, v]
        except KeyError:
            ends = " and ".join(self.site_names[k] if 0 <= k < len(self.sites) else str(k) for k in (u, v))
            raise UsageError(f"no link of {self.name} joins {ends}") from None

    def rates(self) -> dict[tuple[int, int], int]:
        """Declared bit/s of every direction, by (source, destination)."""
        return {(d.src, d.dst): d.rate.bps for d in self.directed}

    @cached_property
    def _adjacency(self) -> tuple[tuple[int, ...], ...]:
        lists: list[list[int]] = [[] for _ in self.sites]
        for link in self.links:
            a, b = (self._indexes[end] for end in link.endpoints)
            lists[a].append(b)
            lists[b].append(a)
        return tuple(tuple(neighbours) for neighbours in lists)

    def neighbours(self, k: int) -> tuple[int, ...]:
        """The sites that a link joins to site k, lowest index first."""
        return tuple(sorted(self._adjacency[k]))

    def neighbours_in_file_order(self, k: int) -> tuple[int, ...]:
        """The same sites in the order of the file's links; ports are numbered in this order."""
        return self._adjacency[k]

    def scaled(self, factor: float) -> Self:
        """The same network with every rate times a positive factor; UsageError naming a link that gets too slow
        or too fast."""
        for link in self.directed:
            try:
                link.rate.scaled(factor)
            except UnitError as error:
                raise UsageError(
                    f"link {link.src_name} > {link.dst_name}: {error.message} ({link.rate} times {factor:g})",
                    hint=error.hint,
                ) from None
        return self._changed(
            defaults=self.defaults.scaled(factor), links=tuple(link.scaled(factor) for link in self.links)
        )

    def _changed(self, **changes: Any) -> Self:
        """A changed copy, validated, without the values this object has already derived."""
        fields = {key: getattr(self, key) for key in type(self).model_fields}
        return type(self)(**(fields | changes))

    def to_dict(self) -> dict[str, Any]:
        """The resolved file: every default filled in. Loading it gives the same network."""
        links = []
        for forward, backward in zip(self.directed[::2], self.directed[1::2], strict=True):
            link: dict[str, Any] = {"endpoints": [forward.src_name, forward.dst_name]}
            differing: dict[str, dict[str, str]] = {"forward": {}, "backward": {}}
            for key in _INHERITED:
                there, back = getattr(forward, key), getattr(backward, key)
                if there == back:
                    if there is not None:
                        link[key] = str(there)
                    continue
                for side, value in (("forward", there), ("backward", back)):
                    if value is not None:
                        differing[side][key] = str(value)
            links.append(link | {side: values for side, values in differing.items() if values})
        sites = {name: site.model_dump(exclude_none=True) for name, site in self.sites.items()}
        return {"name": self.name, "sites": sites, "links": links}
