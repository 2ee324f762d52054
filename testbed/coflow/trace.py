"""The public coflow trace format (coflow-benchmark), and traces as workloads.

The first line holds ports and coflows; every other one a coflow:

    id arrival_ms mappers m_1 .. m_M reducers location:megabytes ..

A reducer's megabytes (1,048,576 bytes each) are what it receives in total. They are rounded up to a multiple
of the mappers, as coflowsim does, and come evenly from all of them. Ports are counted from 0; there are at most 4096.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.coflow.base import Job, Stage
from agents.coflow.fabric import Flow
from agents.coflow.registry import STAGED
from testbed.coflow.demand import Demand
from testbed.coflow.simulator import Simulation
from topologies.errors import InvalidFileError
from topologies.files import open_file

MEGABYTE = 1 << 20
# A sanity bound: engines keep a number for every pair of ports, 128 MiB at this many. The public trace has 150.
MAX_PORTS = 4096
# An exabyte: whole numbers of bytes stay exact enough beyond any trace.
MAX_MEGABYTES = 1e12
_FORM = "a coflow is: id arrival_ms M m_1..m_M R location:megabytes (R of them)"


@dataclass(frozen=True, eq=False)
class TraceCoflow:
    """One line."""

    id: int
    arrival_s: float
    demand: Demand


@dataclass(frozen=True, eq=False)
class Trace:
    """Coflows in order of arrival."""

    ports: int
    coflows: tuple[TraceCoflow, ...]


def read_trace(path: Path) -> Trace:
    """Read a trace; what makes no sense is an error that names the line."""
    try:
        with open_file(path) as file:
            text = file.read().decode("ascii")
    except UnicodeDecodeError as error:
        raise InvalidFileError(f"{path} is no coflow trace: byte {error.start} is not ASCII") from error
    return parse_trace(text, str(path))


def parse_trace(text: str, name: str = "trace") -> Trace:
    """A trace from its text; `name` is what errors call it."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise InvalidFileError(f"{name} is empty", hint="the first line holds ports and coflows")
    head = _Line(name, *lines[0])
    head.form = "the first line holds ports and coflows"
    ports, count = head.whole("ports", least=1), head.whole("coflows", least=1)
    if ports > MAX_PORTS:
        raise head.error(f"{ports} ports", hint=f"at most {MAX_PORTS}")
    head.end()
    coflows: list[TraceCoflow] = []
    seen: dict[int, int] = {}
    for number, line in lines[1:]:
        coflow = _coflow(_Line(name, number, line), ports)
        if coflow.id in seen:
            raise InvalidFileError(
                f"{name}, line {number}: coflow {coflow.id} again", hint=f"line {seen[coflow.id]} has that id"
            )
        seen[coflow.id] = number
        coflows.append(coflow)
    if len(coflows) != count:
        raise InvalidFileError(
            f"{name}, line {lines[0][0]}: {count} coflows declared, {len(coflows)} lines follow",
            hint="is the file whole?",
        )
    return Trace(ports, tuple(sorted(coflows, key=lambda coflow: coflow.arrival_s)))


def _coflow(line: _Line, ports: int) -> TraceCoflow:
    number = line.whole("id")
    arrival_ms = line.decimal("arrival")
    mappers = [line.port("mapper", ports) for _ in range(line.whole("count of mappers", least=1))]
    flows: list[Flow] = []
    for _ in range(line.whole("count of reducers", least=1)):
        reducer, megabytes = line.reducer(ports)
        if megabytes > MAX_MEGABYTES:
            raise line.error(f"{megabytes:g} megabytes for reducer {reducer}", hint=f"at most {MAX_MEGABYTES:g}")
        each = math.ceil(megabytes / len(mappers)) * MEGABYTE
        flows += [Flow(mapper, reducer, each) for mapper in mappers]
    line.end()
    if not any(flow.size for flow in flows):
        raise line.error("all its sizes are 0", hint="a coflow has bytes to send")
    return TraceCoflow(number, arrival_ms / 1000, Demand.of(flows))


class _Line:
    """The words of a line, one after the other."""

    form = _FORM

    def __init__(self, name: str, number: int, text: str) -> None:
        self._where = f"{name}, line {number}"
        self._words = text.split()
        self._next = 0

    def error(self, what: str, hint: str = "") -> InvalidFileError:
        return InvalidFileError(f"{self._where}: {what}", hint=hint or self.form)

    def _word(self, what: str) -> str:
        if self._next == len(self._words):
            raise self.error(f"ends after {self._next} words where the {what} should be")
        self._next += 1
        return self._words[self._next - 1]

    def whole(self, what: str, least: int = 0) -> int:
        word = self._word(what)
        try:
            value = int(word)
        except ValueError:
            raise self.error(f"the {what} is {word!r}, not a whole number") from None
        if value < least:
            raise self.error(f"the {what} is {value}, less than {least}")
        return value

    def decimal(self, what: str) -> float:
        return self._number(what, self._word(what))

    def _number(self, what: str, word: str) -> float:
        try:
            value = float(word)
        except ValueError:
            raise self.error(f"the {what} is {word!r}, not a number") from None
        if not math.isfinite(value) or value < 0:
            raise self.error(f"the {what} is {word}", hint="it is finite and not negative")
        return value

    def port(self, what: str, ports: int) -> int:
        return self._port(what, self._word(what), ports)

    def _port(self, what: str, word: str, ports: int) -> int:
        if not (word.isascii() and word.isdigit() and int(word) < ports):
            raise self.error(f"the {what} is {word!r}, not a port of 0..{ports - 1}")
        return int(word)

    def reducer(self, ports: int) -> tuple[int, float]:
        word = self._word("reducer")
        location, colon, megabytes = word.partition(":")
        if not colon:
            raise self.error(f"the reducer is {word!r}, not location:megabytes")
        return (
            self._port("reducer", location, ports),
            self._number(f"size for reducer {location}", megabytes),
        )

    def end(self) -> None:
        if self._next != len(self._words):
            raise self.error(
                f"{len(self._words) - self._next} words too many, from {self._words[self._next]!r} on",
            )


class TraceWorkload:
    """The coflows of a trace at their times, or all at once. Each is its own job and stage.

    ids  after `start`, what the simulation's numbers stand for
    """

    def __init__(self, coflows: Sequence[TraceCoflow], *, at_once: bool = False) -> None:
        self._coflows = coflows
        self._at_once = at_once
        self._arrivals: dict[int, float] = {}
        self.ids: dict[int, int] = {}

    def start(self, simulation: Simulation) -> None:
        for when, group in self._groups():
            simulation.at(when, lambda group=group: self._submit(simulation, group))  # type: ignore[misc]

    def _groups(self) -> Iterator[tuple[float, list[TraceCoflow]]]:
        groups: dict[float, list[TraceCoflow]] = {}
        for coflow in self._coflows:
            groups.setdefault(0.0 if self._at_once else coflow.arrival_s, []).append(coflow)
        yield from groups.items()

    def _submit(self, simulation: Simulation, group: Sequence[TraceCoflow]) -> None:
        for coflow in group:
            number = simulation.submit(coflow.demand, job=len(self.ids))
            self.ids[number] = coflow.id
            self._arrivals[number] = simulation.now

    def finished(self, simulation: Simulation, number: int) -> None:
        del self._arrivals[number]

    def stages(self, simulation: Simulation) -> tuple[Stage, ...]:
        if simulation.ordering.name not in STAGED:
            return ()
        return tuple(
            Stage(number, (Job(number, 0, unsent=simulation.loads(number)),), release=arrival)
            for number, arrival in self._arrivals.items()
        )
