"""`testbed down [NAME]`: take a testbed away."""

from __future__ import annotations

import typer

from testbed.cli.output import progress
from testbed.cli.select import NameArgument, NameOption, attach, one_name


def register(app: typer.Typer) -> None:
    app.command("down")(down)


def down(name: NameArgument = None, named: NameOption = None) -> None:
    """Take a testbed away with everything that runs in it; nothing of it remains."""
    testbed = attach(one_name(name, named), "down")
    with progress() as say:
        testbed.down(on_progress=say)
    typer.echo(f"{testbed.name} is down")
