"""`testbed clean [NAME]`: remove what dead testbeds have left."""

from __future__ import annotations

from typing import Annotated

import typer

from testbed.cli.output import Format, FormatOption, print_json
from testbed.cli.select import one_name
from testbed.standing import require_root
from topologies.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command("clean")(clean)


def clean(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Only what this testbed left; else what any has.", show_default=False),
    ] = None,
    named: Annotated[
        str | None, typer.Option("--name", "-n", metavar="NAME", help="The same, as an option.")
    ] = None,
    none_up: Annotated[
        bool,
        typer.Option("--none-up", help="Refuse while any testbed is up, as before its programs are removed."),
    ] = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Remove what testbeds left whose supervisor has died; those that are up are not touched."""
    from testbed.emulation import launch

    require_root("`testbed clean`")
    alive = [listed.name for listed in launch.list_testbeds() if listed.alive] if none_up else []
    if alive:
        raise UsageError(
            f"still up: {', '.join(alive)}",
            hint="; ".join(f"make down NAME={each}" for each in alive) + "; nothing has been removed",
        )
    cleaned = launch.clean(one_name(name, named))
    if format is Format.JSON:
        print_json({"cleaned": cleaned})
    elif cleaned:
        typer.echo(f"removed what was left of {', '.join(cleaned)}")
    else:
        typer.echo("nothing was left")
