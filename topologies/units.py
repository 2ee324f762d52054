"""Rates, delays, losses and sizes with their units.

Every type parses text only. A bare number is an error, because its reader and its writer may think of
different units; so is a rate with a capital B, because bytes and bits are a factor of eight apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from topologies.errors import UsageError

_QUANTITY = re.compile(r"\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+))\s*(?P<unit>[a-zA-Zµμ%/]*)\s*", re.ASCII)


class UnitError(UsageError, ValueError):
    """A text is not a quantity of the expected kind. Also a ValueError, so that pydantic gathers it."""


def _split(text: str, kind: str, example: str) -> tuple[Decimal, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None or len(text) > 40:
        raise UnitError(f"{text[:40]!r} is not a {kind}", hint=f"write for example {example}")
    return Decimal(match["number"]), match["unit"]


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _whole(text: str, number: Decimal, unit: str, factors: Mapping[str, int], units: str, step: str) -> int:
    """So many of the least step, exactly; `units` and `step` are how an error names them."""
    factor = factors.get(unit)
    if factor is None:
        raise UnitError(f"{text!r} has the unknown unit {unit!r}", hint=f"the units are {units}")
    steps = number * factor
    if steps != int(steps):
        raise UnitError(f"{text!r} is not a whole number of {step}", hint="use fewer decimals")
    return int(steps)


class _Quantity:
    """What the four types share: parsing inside pydantic models and in JSON schemas."""

    __slots__ = ()
    kind: ClassVar[str]
    example: ClassVar[str]

    @classmethod
    def parse(cls, text: str) -> Self:
        raise NotImplementedError

    @classmethod
    def _validate(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            raise UnitError(f"{value!r} is a bare number", hint=f"write the unit, for example {cls.example}")
        if isinstance(value, Mapping):
            return cls._from_mapping(value)
        raise UnitError(f"{value!r} is not a {cls.kind}", hint=f"write for example {cls.example}")

    @classmethod
    def _from_mapping(cls, value: Mapping[Any, Any]) -> Self:
        raise UnitError(f"a map is not a {cls.kind}", hint=f"write for example {cls.example}")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string", "title": cls.kind.capitalize(), "examples": [cls.example]}


_RATE_UNITS = {"gbit": 10**9, "mbit": 10**6, "kbit": 10**3, "bit": 1}
_RATE_WORDS = {
    spelling: factor
    for word, factor in _RATE_UNITS.items()
    for spelling in (word, word + "/s", word.removesuffix("it") + "ps")
}
_BYTE_RATE = re.compile(r"(?P<prefix>[kKmMgG]?)i?B(?:ps|PS|/s|/S|yte|ytes|yte/s|ytes/s)?")


@dataclass(frozen=True, order=True, slots=True)
class Rate(_Quantity):
    """A rate in bit/s, from 1kbit on: on a slower link one packet would take a quarter of a minute.

    `100mbit`, `1.5gbit`, `64kbps`; all of these are bits.
    """

    kind: ClassVar[str] = "rate"
    example: ClassVar[str] = "100mbit"
    minimum_bps: ClassVar[int] = 1000
    maximum_bps: ClassVar[int] = 10**14

    bps: int

    def __post_init__(self) -> None:
        if self.bps <= 0:
            raise UnitError(
                f"a rate of {self.bps} bit/s is not above zero",
                hint="`testbed link down` cuts a link, and link-down does as a fault of an experiment",
            )
        if self.bps < self.minimum_bps:
            raise UnitError(
                f"a rate of {self.bps} bit/s is below 1kbit, where links begin", hint="check the unit and the scale"
            )
        if self.bps > self.maximum_bps:
            raise UnitError(f"a rate of {self.bps} bit/s is beyond 100000gbit", hint="check the unit")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a rate. Bits only, case-insensitive; raises UnitError naming the bit value for byte units."""
        number, unit = _split(text, cls.kind, cls.example)
        if not unit:
            meant = f"{_plain(number)}mbit" if number > 0 else cls.example
            raise UnitError(f"{text!r} has no unit", hint=f"write the unit, for example {meant}")
        as_bytes = _BYTE_RATE.fullmatch(unit)
        if as_bytes is not None:
            bits = f"{as_bytes['prefix'].lower()}bit"
            raise UnitError(
                f"{text!r} is in bytes and rates are in bits",
                hint=f"write {_plain(number * 8)}{bits} if bytes are meant, {_plain(number)}{bits} if bits",
            )
        return cls(_whole(text, number, unit.lower(), _RATE_WORDS, "bit, kbit, mbit and gbit", "bit/s"))

    @classmethod
    def from_mbps(cls, mbps: float) -> Self:
        """The rate nearest to so many Mbit/s."""
        return cls(round(mbps * 1e6))

    @property
    def mbps(self) -> float:
        return self.bps / 1e6

    def scaled(self, factor: float) -> Self:
        """This rate times a positive factor, rounded to whole bit/s."""
        if not (math.isfinite(factor) and factor > 0):
            raise UsageError(f"cannot scale rates by {factor!r}", hint="the factor must be above zero")
        return type(self)(max(1, round(self.bps * factor)))

    def __str__(self) -> str:
        # The largest unit that needs at most three decimals; kbit always qualifies, so the text is exact.
        unit = next(u for u, f in _RATE_UNITS.items() if self.bps >= f and self.bps * 1000 % f == 0)
        return f"{_plain(Decimal(self.bps) / _RATE_UNITS[unit])}{unit}"


class _Time(_Quantity):
    """What both stretches of time share."""

    __slots__ = ()
    units: ClassVar[Mapping[str, int]]
    units_said: ClassVar[str]
    usual_unit: ClassVar[str]
    ns: int

    def __init__(self, ns: int) -> None:
        raise NotImplementedError

    @classmethod
    def parse(cls, text: str) -> Self:
        number, unit = _split(text, cls.kind, cls.example)
        if not unit:
            hint = f"write the unit, for example {_plain(number)}{cls.usual_unit}"
            raise UnitError(f"{text!r} has no unit", hint=hint)
        return cls(_whole(text, number, unit, cls.units, cls.units_said, "ns"))

    @property
    def seconds(self) -> float:
        return self.ns / 1e9


_DELAY_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3, "μs": 10**3, "ns": 1}


@dataclass(frozen=True, order=True, slots=True)
class Delay(_Time):
    """A time span from zero to a minute, in ns. `10ms`, `0.5ms`, `250us`."""

    kind: ClassVar[str] = "delay"
    example: ClassVar[str] = "10ms"
    units: ClassVar[Mapping[str, int]] = _DELAY_UNITS
    units_said: ClassVar[str] = "ns, us, ms and s"
    usual_unit: ClassVar[str] = "ms"
    maximum_ns: ClassVar[int] = 60 * 10**9

    ns: int

    def __post_init__(self) -> None:
        if self.ns < 0:
            raise UnitError(f"a delay of {self.ns} ns is negative", hint="write 0ms or more")
        if self.ns > self.maximum_ns:
            raise UnitError(f"a delay of {self.ns / 1e9:g} s is longer than a minute", hint="check the unit")

    @property
    def ms(self) -> float:
        return self.ns / 1e6

    def __str__(self) -> str:
        if self.ns % 1000:
            return f"{self.ns}ns"
        unit = "s" if self.ns >= 10**9 and self.ns % 10**6 == 0 else "ms"
        return f"{_plain(Decimal(self.ns) / _DELAY_UNITS[unit])}{unit}"


_SPAN_UNITS = {"ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}


@dataclass(frozen=True, order=True, slots=True)
class Span(_Time):
    """A stretch of time above zero, up to a year, in ns: how often, how long. `180s`, `3min`, `500ms`."""

    kind: ClassVar[str] = "time span"
    example: ClassVar[str] = "180s"
    units: ClassVar[Mapping[str, int]] = _SPAN_UNITS
    units_said: ClassVar[str] = "ms, s, min and h"
    usual_unit: ClassVar[str] = "s"
    maximum_ns: ClassVar[int] = 366 * 24 * 3600 * 10**9

    ns: int

    def __post_init__(self) -> None:
        if self.ns <= 0:
            raise UnitError(
                f"a time span of {self.ns / 1e9:g} s is not above zero", hint="write for example 1s"
            )
        if self.ns > self.maximum_ns:
            raise UnitError(
                f"a time span of {self.ns / 1e9:g} s is longer than a year", hint="check the unit"
            )

    def __str__(self) -> str:
        unit = "s" if self.ns % 10**6 == 0 and self.ns >= 10**9 else "ms"
        return f"{_plain(Decimal(self.ns) / _SPAN_UNITS[unit])}{unit}"


_BURSTY = re.compile(r"\s*(?P<mean>\S+)\s+bursts?\s+(?P<burst>\S+)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Loss(_Quantity):
    """Which share of packets is lost, 0 to 1, and how many in a row. `0.1%`, `1% burst 8`.

    Without `burst` every packet is lost or not by itself. With it, losses come in bursts of so many packets on
    average: a direction is either good, and loses nothing, or bad, and loses everything, and after each packet
    it turns bad with probability p and good again with probability r (Gilbert's model; `tc netem loss gemodel
    p r`). A file may write `{mean: 1%, burst: 8}`.
    """

    kind: ClassVar[str] = "loss"
    example: ClassVar[str] = "0.1%"
    longest_burst: ClassVar[int] = 1_000_000

    ratio: float
    burst: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise UnitError(
                f"a loss of {self.ratio * 100:g}% is not between 0% and 100%", hint="write for example 0.1%"
            )
        if self.burst is None:
            return
        if not 1 <= self.burst <= self.longest_burst:
            raise UnitError(
                f"a mean burst of {self.burst:g} lost packets is not between 1 and {self.longest_burst}",
                hint="write for example 1% burst 8",
            )
        if self.ratio > self.burst / (1 + self.burst):
            raise UnitError(
                f"a loss of {self.ratio * 100:g}% cannot come in bursts of {self.burst:g}: with one packet between "
                f"two bursts it is {100 * self.burst / (1 + self.burst):g}%",
                hint="use longer bursts or less loss",
            )

    @property
    def gilbert(self) -> tuple[float, float] | None:
        """(p, r): the probabilities of turning bad and of turning good; None where losses are independent."""
        if self.burst is None:
            return None
        # In the long run p / (p + r) of the packets are lost, in runs of 1 / r.
        return min(1.0, self.ratio / (1 - self.ratio) / self.burst), 1 / self.burst

    @classmethod
    def _from_mapping(cls, value: Mapping[Any, Any]) -> Self:
        if set(value) != {"mean", "burst"}:
            raise UnitError(
                f"a bursty loss has the keys mean and burst, not {', '.join(map(str, value)) or 'none'}"[:200],
                hint="write for example {mean: 1%, burst: 8}",
            )
        mean, burst = cls._validate(value["mean"]), value["burst"]
        if isinstance(burst, bool) or not isinstance(burst, (int, float)) or mean.burst is not None:
            raise UnitError(
                f"burst: {str(burst)[:40]!r} is not a number of packets", hint="write for example burst: 8"
            )
        return cls(mean.ratio, float(burst))

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        bursty = {
            "type": "object",
            "properties": {"mean": {"type": "string"}, "burst": {"type": "number", "minimum": 1}},
            "required": ["mean", "burst"],
            "additionalProperties": False,
        }
        return {"title": "Loss", "anyOf": [{"type": "string", "examples": [cls.example]}, bursty]}

    @classmethod
    def parse(cls, text: str) -> Self:
        bursty = _BURSTY.fullmatch(text)
        if bursty is not None:
            number, unit = _split(bursty["burst"], "number of packets", "1% burst 8")
            if unit:
                raise UnitError(f"{text[:40]!r}: a burst is a number of packets", hint="write 1% burst 8")
            return cls(cls.parse(bursty["mean"]).ratio, float(number))
        number, unit = _split(text, cls.kind, cls.example)
        if unit != "%":
            # A number up to one may be a ratio; above it, only per cent can be meant.
            as_ratio = f"{_plain(number * 100)}% or " if 0 <= number <= 1 else ""
            raise UnitError(f"{text!r} has no per cent sign", hint=f"write {as_ratio}{_plain(number)}%")
        return cls(float(number / 100))

    def __str__(self) -> str:
        mean = f"{_plain(Decimal(repr(self.ratio)) * 100)}%"
        return mean if self.burst is None else f"{mean} burst {_plain(Decimal(repr(self.burst)))}"


_SIZE_UNITS = {
    "GB": 10**9,
    "MB": 10**6,
    "KB": 10**3,
    "kB": 10**3,
    "GiB": 2**30,
    "MiB": 2**20,
    "KiB": 2**10,
    "B": 1,
}


@dataclass(frozen=True, order=True, slots=True)
class Size(_Quantity):
    """A positive number of bytes, at most 1 GiB. `64KB`, `1MiB`, `1500B`."""

    kind: ClassVar[str] = "size"
    example: ClassVar[str] = "256KB"
    maximum_bytes: ClassVar[int] = 2**30

    bytes: int

    def __post_init__(self) -> None:
        if not 0 < self.bytes <= self.maximum_bytes:
            raise UnitError(f"a size of {self.bytes} bytes is not between 1B and 1GiB", hint="check the unit")

    @classmethod
    def parse(cls, text: str) -> Self:
        number, unit = _split(text, cls.kind, cls.example)
        if not unit:
            raise UnitError(f"{text!r} has no unit of bytes", hint="the units are B, KB, MB, KiB and MiB")
        return cls(_whole(text, number, unit, _SIZE_UNITS, "B, KB, MB, KiB and MiB", "bytes"))

    def __str__(self) -> str:
        unit = next(u for u in ("MB", "KB", "B") if self.bytes % _SIZE_UNITS[u] == 0)
        return f"{self.bytes // _SIZE_UNITS[unit]}{unit}"
