"""`testbed bound`: how fast any all-reduce could be on a topology."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.output import Format, FormatOption, print_json, print_table

if TYPE_CHECKING:
    from topologies.model import Topology


def register(app: typer.Typer) -> None:
    app.command("bound")(bound)


def bound(
    topology: Annotated[str, typer.Argument(help="A topology of the library, or a file.")],
    nbytes: Annotated[
        int | None,
        typer.Option(
            "--bytes", min=1, help="Bytes that every site holds, such as 4 times the model's parameters."
        ),
    ] = None,
    scale: Annotated[float, typer.Option(help="Multiply all rates by this.")] = 1.0,
    dynamics: Annotated[
        str | None,
        typer.Option(
            "--dynamics",
            metavar="KIND[?KEY=VALUE&...]",
            help="The least time while links change by themselves, as in `up --dynamics`; needs --bytes.",
        ),
    ] = None,
    at_s: Annotated[
        float | None,
        typer.Option("--at", min=0, help="With --dynamics: begun so many seconds after the changes (0)."),
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Print the highest rate at which any scheme can sum and spread data, and the cut that limits it."""
    from testbed.simulation import bounds
    from topologies.errors import UsageError
    from topologies.load import load_topology

    if scale <= 0:
        raise UsageError(f"a scale of {scale} leaves no network", hint="use a number above zero")
    network = load_topology(topology)
    if scale != 1.0:
        network = network.scaled(scale)
    if dynamics is not None:
        _while_changing(network, dynamics, nbytes, at_s or 0.0, scale, output)
        return
    if at_s is not None:
        raise UsageError("--at says when among changes, and there are none", hint="add --dynamics, or leave it out")
    limit = bounds.bound(network, nbytes)
    if output is Format.JSON:
        document = limit.to_dict()
        document.pop("schema")
        print_json({"topology": network.name, "scale": scale, **document})
        return
    rows: list[tuple[str, str]] = [("rate", f"{limit.rate_bps / 1e6:.3f} Mbit/s")]
    if limit.seconds is not None:
        rows.append(("time", f"{limit.seconds:.3f} s for {nbytes} bytes"))
    if limit.tight:
        rows.append(("holds for", "every scheme that sends sums without coding them"))
    else:
        rows.append(("holds for", "every scheme that sums up a tree and spreads down a tree"))
        rows.append(("any scheme", f"{limit.proven_rate_bps / 1e6:.3f} Mbit/s"))
    if limit.attained_rate_bps < limit.rate_bps * (1 - 1e-6):
        rows.append(("reached", f"{limit.attained_rate_bps / 1e6:.3f} Mbit/s by the trees found"))
    parts = [", ".join(part) for part in limit.named_cut]
    rows.append(("limited by", (" -> " if limit.cut_kind == "directed" else " | ").join(parts)))
    print_table(("bound", network.name), rows)


def _while_changing(
    network: Topology, dynamics: str, nbytes: int | None, at_s: float, scale: float, output: Format
) -> None:
    from testbed.simulation import changing
    from topologies.dynamics import Dynamics
    from topologies.errors import UsageError

    how = Dynamics.parse(dynamics)
    if nbytes is None:
        raise UsageError("where links change, how fast depends on how long", hint="say how much: --bytes N")
    seconds = changing.least_seconds(network, how, nbytes, at_s, scale=scale, folder=Path.cwd())
    rate_bps = 8 * nbytes / seconds
    if output is Format.JSON:
        document = {"topology": network.name, "scale": scale, "dynamics": str(how), "at_s": at_s}
        print_json({**document, "bytes": nbytes, "seconds": seconds, "rate_bps": rate_bps})
        return
    rows = [
        ("links change", str(how)),
        ("begun", f"{at_s:g} s after the changes"),
        ("time", f"{seconds:.3f} s for {nbytes} bytes"),
        ("rate", f"{rate_bps / 1e6:.3f} Mbit/s in the mean"),
        ("holds for", "every scheme that sums up a tree and spreads down a tree"),
    ]
    print_table(("bound", network.name), rows)
