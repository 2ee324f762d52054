"""A sweep: one experiment at every combination of declared values. Pure but for reading files.

A point is one combination; its run is an ordinary run. All points share the experiment's seed unless `seed` is
itself an axis, so that two points differ by what the axes say and by nothing else. Source: own.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from testbed.experiments.spec import LoadedExperiment, find_experiment, open_experiment
from topologies.errors import InvalidFileError, StormbedError, UsageError
from topologies.files import Document, read_yaml
from topologies.validation import validated

MOST_POINTS: Final = 10_000
REPLICATES: Final = "seed"
"""The axis whose values are repetitions of the same point, not points to be told apart."""

_KEY = re.compile(r"[a-z_]+(\.[A-Za-z0-9_-]+)*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


class _AxisError(UsageError, ValueError):
    """What is wrong with an axis, with a hint: pydantic passes on ValueErrors."""


class Sweep(BaseModel):
    """What a sweep file says.

    Attributes:
        name: of its directory.
        experiment: a library name, or a file as seen from the sweep's own.
        axes: the values of each key of the experiment; a dot goes down, as in `training.chunk_elements`.
        set: keys that all points share, instead of the experiment's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    experiment: str
    axes: dict[str, tuple[Any, ...]] = Field(min_length=1)
    set: dict[str, Any] = {}

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:60]!r} is no name: letters, digits, dot, dash and underscore")
        return name

    @model_validator(mode="after")
    def _sound(self) -> Self:
        for key in (*self.axes, *self.set):
            if not _KEY.fullmatch(key):
                raise ValueError(f"{key[:60]!r} is no key of an experiment, such as training.chunk_elements")
        both = self.axes.keys() & self.set.keys()
        if both:
            key = min(both)
            hint = f"leave the axis {key} out, or do not set it"
            raise _AxisError(f"{key} is both an axis and set for all", hint=hint)
        for key, values in self.axes.items():
            if not values:
                raise ValueError(f"axes.{key}: an axis without values")
            for number, value in enumerate(values):
                if not _is_plain(value):
                    raise ValueError(
                        f"axes.{key}[{number}]: {value!s:.60} was read as a {type(value).__name__}; quote it"
                    )
            written = [label(value) for value in values]
            if len(set(written)) < len(written):
                raise ValueError(f"axes.{key}: the same value twice")
        if self.size > MOST_POINTS:
            raise ValueError(f"axes: {self.size} points; at most {MOST_POINTS}")
        return self

    @property
    def size(self) -> int:
        return math.prod(len(values) for values in self.axes.values())

    def points(self) -> Iterator[Point]:
        """Every combination; the last axis changes fastest."""
        for values in itertools.product(*self.axes.values()):
            yield Point(dict(zip(self.axes, values, strict=True)))


@dataclass(frozen=True)
class Point:
    """One combination of values, by axis."""

    values: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Tells points apart, within a sweep and across its resumptions."""
        return json.dumps(dict(self.values), sort_keys=True, separators=(",", ":"))

    def __str__(self) -> str:
        return " ".join(f"{axis}={label(value)}" for axis, value in self.values.items())


@dataclass(frozen=True)
class LoadedSweep:
    """A sweep whose every point is known to be a valid experiment.

    `experiments` has them in the order of `points`; `folder` is where the experiment's file is looked up.
    """

    spec: Sweep
    folder: Path
    points: tuple[Point, ...]
    experiments: tuple[LoadedExperiment, ...]

    def document(self) -> dict[str, Any]:
        """What identifies the sweep; `text` is the experiment's own file."""
        return self.spec.model_dump(mode="json") | {"text": self.experiments[0].text}


def is_sweep(path: str | Path) -> bool:
    """Whether a file is a sweep's, and not an experiment's; see `sweeps`."""
    file = Path(path)
    return file.is_file() and sweeps(read_yaml(file).data)


def sweeps(data: Any) -> bool:
    """Whether a file's contents are meant as a sweep: it has `axes`, or names an experiment and has no schedulers,
    so that a misspelt `axes` is told as such. Pure.
    """
    return isinstance(data, dict) and ("axes" in data or ("experiment" in data and "schedulers" not in data))


def load_sweep(path: str | Path, fixed: Mapping[str, Any] | None = None) -> LoadedSweep:
    """A sweep from its file.

    Args:
        fixed: set for all points, instead of what the file sets.

    Raises:
        InvalidFileError: naming the file, the line, the key and what to do; or the first point that is not a
            valid experiment.
    """
    document = read_yaml(path)
    if fixed and isinstance(document.data, dict):
        document.data["set"] = {**(document.data.get("set") or {}), **fixed}
    return _load(document.validate(Sweep), Path(path).parent, document)


def sweep_of(experiment: str, axes: Sequence[str], fixed: Mapping[str, Any] | None = None) -> LoadedSweep:
    """A sweep from words: an experiment, and axes such as `seed=1..5` or `scale=0.5,1`.

    Raises:
        UsageError: an axis that cannot be read.
        InvalidFileError: as `load_sweep`.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for axis in axes:
        key, values = parse_axis(axis)
        if key in found:
            raise UsageError(f"the axis {key} is given twice", hint="name all its values at once")
        found[key] = values
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join([Path(experiment).stem, *found])).strip("-")[:64]
    given = {"name": name, "experiment": experiment, "axes": found, "set": dict(fixed or {})}
    spec = validated(Sweep, given, hint="for example --axis training.chunk_elements=20000,100000")
    return _load(spec, Path())


def parse_axis(text: str) -> tuple[str, tuple[Any, ...]]:
    """`KEY=VALUE,VALUE`, values as YAML writes them; whole numbers also as `1..5`. Pure.

    Raises:
        UsageError: it is not of this form.
    """
    key, equals, values = text.partition("=")
    if not equals or not key or not values:
        raise UsageError(f"{text!r} is no axis", hint="write KEY=VALUE,VALUE, for example seed=1..5")
    span = _RANGE.fullmatch(values)
    if span:
        first, last = int(span[1]), int(span[2])
        if last < first:
            raise UsageError(f"{text!r}: {last} comes before {first}", hint=f"write {key}={last}..{first}")
        if last - first >= MOST_POINTS:
            raise UsageError(f"{text!r}: {last - first + 1} values", hint=f"at most {MOST_POINTS}")
        return key, tuple(range(first, last + 1))
    try:
        found = yaml.safe_load(f"[{values}]")
    except yaml.YAMLError:
        raise UsageError(f"{text!r}: its values cannot be read", hint="write them as in YAML") from None
    return key, tuple(found)


def parse_setting(text: str) -> tuple[str, Any]:
    """`KEY=VALUE`, the value as YAML writes it. Pure."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"{text!r} sets nothing", hint="write KEY=VALUE, for example world=simulated")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise UsageError(f"{text!r}: its value cannot be read", hint="write it as in YAML") from None


def _is_plain(value: Any) -> bool:
    """Whether JSON has such values; YAML makes dates, sets and bytes as well."""
    try:
        label(value)
    except TypeError:
        return False
    return True


def label(value: Any) -> str:
    """A value in the few characters that tables and axes have for it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def estimate(durations: Sequence[float], left: int) -> str:
    """How long the points that are left will take, in words, from those that are done. Pure.

    Args:
        durations: seconds of each finished point.
        left: points still to run, the present one included.
    """
    if not durations:
        return "no estimate before the first point ends"
    mean = sum(durations) / len(durations)
    text = f"about {_span(mean * left)} left"
    if max(durations) > 1.2 * min(durations):
        text += f"; points took {_span(min(durations))} to {_span(max(durations))}"
    return text


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 2 else f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def idle_axis(spec: Sweep, points: Sequence[Point], experiments: Sequence[LoadedExperiment]) -> str | None:
    """An axis that changes nothing at all: every two points that differ in it alone come to the same run. Pure.

    So it is with a key that every scheduler's entry says for itself.
    """
    runs = {point.key: experiment.effective() for point, experiment in zip(points, experiments, strict=True)}
    for axis, values in spec.axes.items():
        if len(values) > 1 and all(
            runs[point.key] == runs[Point({**point.values, axis: values[0]}).key] for point in points
        ):
            return axis
    return None


def _load(spec: Sweep, folder: Path, document: Document | None = None) -> LoadedSweep:
    beside = folder / spec.experiment
    experiment = str(beside) if Path(spec.experiment).suffix and beside.exists() else spec.experiment
    try:
        read_yaml(find_experiment(experiment))
    except InvalidFileError as error:
        if document is None:
            raise
        raise document.error(("experiment",), error.message, hint=error.hint) from None
    points = tuple(spec.points())
    experiments: list[LoadedExperiment] = []
    for point in points:
        try:
            experiments.append(open_experiment(experiment, {**spec.set, **point.values}))
        except StormbedError as error:
            raise InvalidFileError(f"at {point}: {error.message}", hint=error.hint) from error
        if experiments[-1].spec.tuners:
            # A sweep's figures are of schedulers; those of searches are of policies within one run.
            raise InvalidFileError(
                f"{experiment}: an experiment of searches (tuners) cannot be swept, only run",
                hint=f"for each seed `testbed run {experiment} --seed N`, or set `repeats` in the experiment",
            )
    if (idle := idle_axis(spec, points, experiments)) is not None:
        key = idle.removeprefix("training.")
        said = "changes nothing: for all its values the run is the same"
        hint = f"where each scheduler's entry has its own {key}, leave it out there, or sweep over schedulers.0.{key}"
        if document is None:
            raise UsageError(f"the axis {idle} {said}", hint=hint)
        raise document.error(("axes", idle), f"this axis {said}", hint=hint)
    return LoadedSweep(spec, folder, points, tuple(experiments))
