"""`testbed clean [NAME]`: remove what dead testbeds have left."""

from __future__ import annotations

import typer

from testbed.cli.output import Format, FormatOption, print_json
from testbed.cli.select import NameArgument, NameOption, one_name
from testbed.standing import require_root


def register(app: typer.Typer) -> None:
    app.command("clean")(clean)


def clean(
    name: NameArgument = None, named: NameOption = None, format: FormatOption = Format.TEXT
) -> None:
    """Remove what testbeds left whose supervisor has died; those that are up are not touched."""
    from testbed.emulation import launch

    require_root("`testbed clean`")
    cleaned = launch.clean(one_name(name, named))
    if format is Format.JSON:
        print_json({"cleaned": cleaned})
    elif cleaned:
        typer.echo(f"removed what was left of {', '.join(cleaned)}")
    else:
        typer.echo("nothing was left")
