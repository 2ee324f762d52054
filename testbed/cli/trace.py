"""`testbed trace convert`: traces of changing links from one format into the other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topologies.errors import InvalidFileError, UsageError
from topologies.files import read_text
from topologies.load import load_topology
from topologies.traces import (
    MAX_BYTES,
    csv_to_mahimahi,
    mahimahi_to_csv,
    parse_csv,
    parse_mahimahi,
    select,
)
from topologies.units import Span


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Traces of changing links.")
    # With a callback the one verb of the group keeps its name.
    group.callback()(lambda: None)
    group.command("convert")(convert)
    app.add_typer(group, name="trace")


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A CSV trace or a mahimahi trace.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write, in the other format.")],
    link: Annotated[
        str | None,
        typer.Option("--link", help="To CSV: which links, dc1>dc2, dc1-dc2 or * (all). From CSV: dc1>dc2."),
    ] = None,
    topology: Annotated[
        str | None, typer.Option("--topology", help="From CSV: the network that the trace is for.")
    ] = None,
    every: Annotated[str, typer.Option("--every", help="To CSV: how long each line's mean rate is.")] = "1s",
    length: Annotated[
        str | None, typer.Option("--length", help="From CSV: how long; else until its last line.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Turn a mahimahi trace into CSV, or the rates of one direction of a CSV trace into mahimahi's format."""
    text = read_text(source, MAX_BYTES)
    if target.exists() and not force:
        raise UsageError(f"{target} is there already", hint="--force replaces it")
    if _is_mahimahi(text):
        _refuse("from CSV", topology=topology, length=length)
        result = mahimahi_to_csv(parse_mahimahi(text, source), link or "*", bin_s=Span.parse(every).seconds)
    else:
        result = _from_csv(text, source, link, topology, length)
    try:
        target.write_text(result, encoding="utf-8")
    except OSError as error:
        raise InvalidFileError(f"cannot write {target}: {error.strerror}") from None
    typer.echo(f"{target}: {len(result.splitlines())} lines", err=True)


def _is_mahimahi(text: str) -> bool:
    """Whether the first line that says anything begins with a number, as no CSV header does."""
    words = (line.partition("#")[0].strip() for line in text.splitlines())
    return next((word for word in words if word), "").isdecimal()


def _from_csv(text: str, source: str, link: str | None, topology: str | None, length: str | None) -> str:
    entries = parse_csv(text, source)
    if topology is None or link is None:
        raise UsageError(
            "a mahimahi trace is of one direction of a link",
            hint="say which with --topology NAME --link 'dc1>dc2'",
        )
    network = load_topology(topology)
    chosen = select(network, link)
    if len(chosen) != 1:
        raise UsageError(f"{link!r} is more than one direction", hint="write it as 'dc1>dc2'")
    until_s = Span.parse(length).seconds if length else entries[-1].t_s
    if until_s <= 0:
        raise UsageError("all of this trace is at its beginning", hint="say how long it is with --length 60s")
    result = csv_to_mahimahi(entries, network, chosen[0], until_s=until_s)
    if not result:
        raise UsageError(f"not one packet passes {link} within {until_s:g} s", hint="use a longer --length")
    return result


def _refuse(purpose: str, **options: str | None) -> None:
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"--{name} is for the way {purpose}, and this is a mahimahi trace")
