"""How links change during a run: NetStorm's process, uniform redraws, a random walk, a replayed trace.

Pure and repeatable: the same description, topology and seed give the same changes at the same times. A
`Dynamics` is what an experiment file says; its `changes` are what a testbed or a simulation applies.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from itertools import count
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

from topologies.errors import InvalidFileError, StormbedError, UsageError
from topologies.files import read_text
from topologies.model import Topology
from topologies.traces import (
    MAX_BYTES,
    Entry,
    LinkChange,
    mahimahi_rates,
    parse_csv,
    parse_mahimahi,
    select,
)
from topologies.units import Rate, Span, UnitError
from topologies.validation import validated

Changes = tuple[float, dict[int, LinkChange]]
"""A time in seconds from the start, and what changes then, by the index of the directed link."""

KINDS = ("none", "netstorm", "uniform", "walk", "trace")

NETSTORM_ORDER = (
    (1, 2), (1, 3), (2, 3), (2, 1), (2, 5), (3, 1), (3, 2), (3, 4), (4, 3), (4, 5), (4, 6), (5, 2), (5, 7),
    (5, 4), (6, 4), (6, 7), (6, 8), (6, 9), (7, 5), (7, 6), (7, 8), (8, 6), (8, 7), (8, 9), (9, 6), (9, 8),
)  # fmt: skip
"""The order in which NetStorm's published script goes through the directed links of its nine sites."""

_APPLICABLE = {
    "netstorm": ("kind", "rate", "every", "seed"),
    "uniform": ("kind", "rate", "every", "seed"),
    "walk": ("kind", "rate", "every", "seed", "step"),
    "trace": ("kind", "path", "links", "every", "repeat"),
}
_LOW, _HIGH = Rate(20 * 10**6), Rate(155 * 10**6)
_MBIT = 10**6


def _range(value: Any) -> Any:
    """`rate: [20mbit, 155mbit]`, `rate: 20mbit..155mbit`, or one rate."""
    if isinstance(value, str):
        first, separator, second = value.partition("..")
        return (first, second if separator else first)
    return value


class Dynamics(BaseModel):
    """What `dynamics:` of an experiment file says: a kind alone, or a map.

    - `none`: nothing changes;
    - `netstorm`: NetStorm's published process on its own nine sites, every rate drawn anew `every` 180 s;
    - `uniform`: the same draw for any topology, in the order of its directed links;
    - `walk`: from its declared rate each direction goes up or down by at most `step` `every` 10 s;
    - `trace`: the CSV or mahimahi file at `path` is replayed. Of a mahimahi file each direction that `links`
      names has the mean rate of each stretch of `every` 1 s.

    `rate` is the range that rates are drawn from or kept in. `seed` defaults to the experiment's; only the
    published process has a seed of its own, 1. `repeat` begins a CSV trace anew that many seconds after its
    start.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["none", "netstorm", "uniform", "walk", "trace"] = "none"
    rate: Annotated[tuple[Rate, Rate], BeforeValidator(_range)] = (_LOW, _HIGH)
    every: Span | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    step: float = Field(default=0.2, gt=0, le=10)
    path: str | None = None
    links: tuple[str, ...] = ("*",)
    repeat: Span | None = None

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_kind(cls, value: Any) -> Any:
        if value is None:
            return {}
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        given = self.model_fields_set
        if self.rate[0] > self.rate[1]:
            raise ValueError("rate: the range ends below its beginning; swap the two")
        if self.kind in ("netstorm", "uniform") and any(rate.bps % _MBIT for rate in self.rate):
            raise ValueError("rate: draws are whole Mbit/s, so both ends of the range have to be")
        for key in ("path", "links", "repeat"):
            if key in given and self.kind != "trace":
                raise ValueError(f"{key}: it is for kind: trace, not {self.kind}")
        if "step" in given and self.kind != "walk":
            raise ValueError(f"step: it is for kind: walk, not {self.kind}")
        if self.kind == "trace":
            if not self.path:
                raise ValueError("path: a trace needs its file, for example path: wan.csv")
            for key in ("rate", "seed"):
                if key in given:
                    raise ValueError(f"{key}: a trace has none; leave it out")
        # What a subclass adds may be meant for a timeline.
        idle = given & set(Dynamics.model_fields) - {"kind"}
        if self.kind == "none" and idle:
            raise ValueError(f"{min(idle)}: nothing changes with kind: none; leave it out")
        return self

    @classmethod
    def parse(cls, text: str) -> Self:
        """A kind, with its options behind a `?` as for topologies: `uniform?every=10s&rate=20mbit..155mbit`.

        Raises:
            UsageError: naming the option that is wrong.
        """
        kind, separator, options = text.partition("?")
        given: dict[str, Any] = {"kind": kind}
        for part in options.split("&") if separator else ():
            key, equals, value = part.partition("=")
            if key not in cls.model_fields or key in given or not equals or not value:
                raise UsageError(
                    f"dynamics {text[:80]!r}: {part[:40]!r} is no option, or given twice",
                    hint="write for example uniform?every=10s&rate=20mbit..155mbit&seed=7",
                )
            given[key] = value.split(",") if key == "links" else value
        kinds = f"the kinds are {', '.join(KINDS[1:])}; see docs/dynamics.md"
        return validated(cls, given, f"dynamics {text[:80]!r}", hint=kinds)

    def __str__(self) -> str:
        """In the words that `parse` reads."""
        fields = self.model_dump(mode="json")
        if isinstance(fields, str):
            return fields
        words = {
            key: {"rate": "..", "links": ","}[key].join(value) if isinstance(value, list | tuple) else value
            for key, value in fields.items()
            if key in _APPLICABLE[self.kind]
        }
        kind = words.pop("kind")
        return f"{kind}?{'&'.join(f'{key}={value}' for key, value in words.items())}" if words else kind

    @model_serializer(mode="wrap")
    def _what_applies(self, handler: SerializerFunctionWrapHandler) -> Any:
        """The word none, or the kind with every default that it has; reading it gives the same again."""
        if self.kind == "none":
            return "none"
        resolved = self
        if self.kind != "trace" and self.every is None:
            resolved = self.model_copy(update={"every": Span(round(self.every_s * 10**9))})
        keys = _APPLICABLE[self.kind]
        return {key: value for key, value in handler(resolved).items() if key in keys and value is not None}

    @property
    def every_s(self) -> float:
        """Seconds from one change to the next; each kind has its own default."""
        if self.every is not None:
            return self.every.seconds
        return {"netstorm": 180.0, "uniform": 180.0, "walk": 10.0}.get(self.kind, 1.0)

    def changes(
        self,
        topology: Topology,
        until_s: float = math.inf,
        *,
        seed: int = 1,
        scale: float = 1.0,
        folder: Path | None = None,
    ) -> Iterator[Changes]:
        """What changes when, in order of time, for 0 <= t < until_s.

        Args:
            topology: as it runs, scaled already.
            seed: for kinds that draw, unless the description has its own.
            scale: what the topology was scaled by; drawn and replayed rates are multiplied by it too.
            folder: what `path` is relative to.

        Raises, at the call and not at the first change: UsageError when the kind does not fit the topology,
        InvalidFileError naming the line of a trace. A rate that `scale` makes too slow for any link is one.
        """
        own = self.seed if self.seed is not None else 1 if self.kind == "netstorm" else seed
        match self.kind:
            case "none":
                found: Iterator[Changes] = iter(())
            case "netstorm":
                found = self._redraw(topology, netstorm_links(topology), own)
            case "uniform":
                found = self._redraw(topology, tuple(range(len(topology.directed))), own)
            case "walk":
                found = self._walk(topology, own, scale)
            case "trace":
                found = self._replay(topology, folder or Path(), scale)
        if self.kind not in ("none", "trace"):
            _require_scaled(self.rate, scale, f"dynamics {self.kind}")
        factor = 1.0 if self.kind == "walk" else scale  # a walk begins at rates that are scaled already
        return _until(found, until_s, factor)

    def _redraw(self, topology: Topology, order: tuple[int, ...], seed: int) -> Iterator[Changes]:
        low, high = (rate.bps // _MBIT for rate in self.rate)
        source = random.Random(seed)
        every_s = self.every_s
        return (
            (epoch * every_s, {index: LinkChange(Rate(_draw(source, low, high) * _MBIT)) for index in order})
            for epoch in count()
        )

    def _walk(self, topology: Topology, seed: int, scale: float) -> Iterator[Changes]:
        source = random.Random(seed)
        low, high = (math.log(rate.bps * scale) for rate in self.rate)
        stride = math.log1p(self.step)
        level = [min(high, max(low, math.log(link.rate.bps))) for link in topology.directed]
        for epoch in count():
            if epoch:
                for k in range(len(level)):
                    level[k] = _reflect(level[k] + (2 * source.random() - 1) * stride, low, high)
            rates = {k: LinkChange(Rate(round(math.exp(value)))) for k, value in enumerate(level)}
            yield epoch * self.every_s, rates

    def _replay(self, topology: Topology, folder: Path, scale: float) -> Iterator[Changes]:
        path = folder / (self.path or "")
        text = read_text(path, MAX_BYTES)
        if path.suffix.lower() == ".csv":
            if self.every is not None or self.links != ("*",):
                raise UsageError(f"{path}: a CSV trace says its own times and links", hint="leave them out")
            entries = parse_csv(text, str(path))
            for entry in entries:
                if entry.change.rate is not None:
                    _require_scaled([entry.change.rate], scale, f"{path}, line {entry.line}")
            return _replay_csv(topology, entries, str(path), self.repeat)
        if self.repeat is not None:
            raise UsageError(f"{path}: a mahimahi trace repeats by itself", hint="leave repeat out")
        indexes = sorted({index for link in self.links for index in select(topology, link)})
        times = parse_mahimahi(text, str(path))
        rates = mahimahi_rates(times, self.every_s)
        _require_scaled([min(rate for _, rate in rates)], scale, str(path))
        return _replay_mahimahi(rates, times[-1] / 1000, indexes)


def _require_scaled(rates: Iterable[Rate], scale: float, what: str) -> None:
    for rate in rates:
        try:
            rate.scaled(scale)
        except UnitError as error:
            raise UsageError(f"{what}: {error.message} ({rate} times {scale:g})", hint=error.hint) from None


def _draw(source: random.Random, low: int, high: int) -> int:
    """The published draw: Python 2's randint, which Python 3's is not."""
    return low + int(source.random() * (high - low + 1))


def netstorm_rates(epoch: int, *, seed: int = 1) -> tuple[int, ...]:
    """The published process's 26 values of one epoch in Mbit/s, in NETSTORM_ORDER."""
    source = random.Random(seed)
    for _ in range(epoch * len(NETSTORM_ORDER)):
        source.random()
    return tuple(_draw(source, 20, 155) for _ in NETSTORM_ORDER)


def netstorm_links(topology: Topology) -> tuple[int, ...]:
    """The directed links of NetStorm's network in its script's order; UsageError for any other network."""
    pairs = {(link.src + 1, link.dst + 1): link.index for link in topology.directed}
    if set(pairs) != set(NETSTORM_ORDER):
        raise UsageError(
            f"the process netstorm is for the nine sites of netstorm-9, not for {topology.name}",
            hint="uniform draws in the same way for any topology",
        )
    return tuple(pairs[pair] for pair in NETSTORM_ORDER)


def _reflect(value: float, low: float, high: float) -> float:
    """The value folded back into the range at its ends."""
    width = high - low
    if width <= 0:
        return low
    offset = (value - low) % (2 * width)
    return low + min(offset, 2 * width - offset)


def _replay_csv(
    topology: Topology, entries: tuple[Entry, ...], source: str, repeat: Span | None
) -> Iterator[Changes]:
    """The entries at their times, those of one time together; names all that is wrong before the first."""
    steps: list[Changes] = []
    selected: dict[str, tuple[int, ...]] = {}
    for entry in entries:
        if entry.link not in selected:
            try:
                selected[entry.link] = select(topology, entry.link)
            except StormbedError as error:
                message = f"{source}, line {entry.line}: link: {error.message}"
                raise InvalidFileError(message, hint=error.hint) from None
        if not steps or entry.t_s > steps[-1][0]:
            steps.append((entry.t_s, {}))
        at = steps[-1][1]
        for index in selected[entry.link]:
            at[index] = entry.change.over(at.get(index, LinkChange()))
    if repeat is None:
        return iter(steps)
    if repeat.seconds <= steps[-1][0]:
        raise UsageError(
            f"{source} lasts {steps[-1][0]:g} s and cannot begin anew after {repeat}",
            hint="repeat has to be longer",
        )
    return ((lap * repeat.seconds + t, dict(changed)) for lap in count() for t, changed in steps)


def _replay_mahimahi(
    rates: tuple[tuple[float, Rate], ...], duration_s: float, indexes: list[int]
) -> Iterator[Changes]:
    return (
        (lap * duration_s + t, {index: LinkChange(rate) for index in indexes})
        for lap in count()
        for t, rate in rates
    )


def _until(found: Iterator[Changes], until_s: float, factor: float) -> Iterator[Changes]:
    for t, changed in found:
        if t >= until_s:
            return
        if factor != 1.0:
            changed = {
                index: LinkChange(change.rate and change.rate.scaled(factor), change.delay, change.loss)
                for index, change in changed.items()
            }
        yield t, changed
