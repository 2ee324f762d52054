"""`testbed coflow`: a coflow trace under one policy, simulated."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.output import Format, FormatOption, print_json, print_table, progress

if TYPE_CHECKING:
    from testbed.coflow.simulator import Simulation, Watch


# Every renewal costs a look at all flows, so a shorter cadence only takes long.
LEAST_REFRESH_S = 0.001
LEAST_BYTES_PER_S = 1.0
TELL_S = 3.0


class Rates(StrEnum):
    FAIR = "fair"
    GREEDY = "greedy"
    MADD = "madd"


class Leftovers(StrEnum):
    RANKED = "ranked"
    COFLOWSIM = "coflowsim"
    IN_TURN = "in_turn"
    NONE = "none"


def register(app: typer.Typer) -> None:
    app.command("coflow")(coflow)


def coflow(
    trace: Annotated[
        Path,
        typer.Argument(
            help="A file in the coflow-benchmark format, such as FB2010-1Hr-150-0.txt, or synthetic:SEED."
        ),
    ],
    policy: Annotated[
        str, typer.Option(help="fair, fifo, fifo_lm, varys, sincronia, beamer, stage_srpt or horizon.")
    ] = "sincronia",
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the policy as name=value; may be repeated.")
    ] = None,
    port_rate: Annotated[
        str, typer.Option(help="What a port carries, such as 128MB/s (of 1,048,576 bytes) or 1gbit.")
    ] = "128MB/s",
    allocation: Annotated[
        Rates | None, typer.Option(help="How rates follow the order, if not as the policy has it.")
    ] = None,
    refresh: Annotated[
        str | None,
        typer.Option(
            help="Seconds between renewals of rates, at least 0.001; 0 = at every end of a flow, events = only "
            "when coflows arrive and end. Default 0, for madd 0.125."
        ),
    ] = None,
    backfill: Annotated[
        Leftovers,
        typer.Option(
            help="What becomes of what MADD leaves: ranked (as in Varys), coflowsim, in_turn (own), or none."
        ),
    ] = Leftovers.RANKED,
    at_once: Annotated[bool, typer.Option("--at-once", help="Let all coflows arrive at time 0.")] = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """Run a coflow trace through a switch under one policy and print the completion times."""
    from testbed.coflow.generate import named_trace
    from testbed.coflow.result import run_trace
    from testbed.coflow.trace import read_trace

    rate = _bytes_per_s(port_rate)
    refresh_s = None if refresh is None else _seconds(refresh)
    found = named_trace(str(trace)) or read_trace(trace)
    spec = {"name": policy, "options": _options(option or [])}
    with progress() as say:
        result, _ = run_trace(
            found,
            spec,
            rate,
            allocation=None if allocation is None else allocation.value,
            refresh_s=refresh_s,
            at_once=at_once,
            backfill=backfill.value,
            watch=_teller(say, len(found.coflows)),
        )
    document = asdict(result)
    if output is Format.JSON:
        print_json(document)
        return
    columns = ("policy", "cadence_s", "coflows", "mean_cct_s", "p95_cct_s", "mean_wait_s", "bound_ratio")
    print_table(columns, [[_cell(document[column]) for column in columns]])


def _teller(say: Callable[[str], None], coflows: int) -> Watch:
    """Tells every few seconds how far a simulation is."""
    told = time.monotonic()

    def watch(simulation: Simulation) -> None:
        nonlocal told
        if time.monotonic() - told >= TELL_S:
            told = time.monotonic()
            say(f"{len(simulation.done)} of {coflows} coflows over, {simulation.now:.3f} s simulated")

    return watch


def _cell(value: object) -> object:
    if value is None:
        return "coflow events"
    return f"{value:.3f}" if isinstance(value, float) else value


def _bytes_per_s(text: str) -> float:
    from topologies.errors import UsageError
    from topologies.units import Rate

    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*MB/s", text.strip())
    if match:
        rate = float(match[1]) * (1 << 20)
    elif re.fullmatch(r"[\d.]+", text.strip()):
        raise UsageError(f"a port rate of {text} has no unit", hint=f"{text}MB/s, or in bits such as 1gbit")
    else:
        rate = Rate.parse(text).bps / 8
    if not LEAST_BYTES_PER_S <= rate < inf:
        raise UsageError(f"ports that carry {text}", hint="at least a byte a second")
    return rate


def _seconds(text: str) -> float:
    from topologies.errors import UsageError

    if text == "events":
        return inf
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if seconds != 0 and not LEAST_REFRESH_S <= seconds < inf:
        raise UsageError(
            f"a refresh of {text!r}", hint=f"seconds of at least {LEAST_REFRESH_S:g}, 0 or events"
        )
    return seconds


def _options(pairs: list[str]) -> dict[str, Any]:
    import yaml

    from topologies.errors import UsageError

    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--option {pair}", hint="write name=value")
        try:
            options[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UsageError(f"--option {pair}: the value cannot be read") from None
    return options
