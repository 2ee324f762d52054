"""`testbed down [NAME]`: take a testbed away."""

from __future__ import annotations

from typing import Annotated

import typer

from testbed.cli.output import progress
from testbed.cli.select import NameArgument, NameOption, attach, one_name
from testbed.standing import standing


def register(app: typer.Typer) -> None:
    app.command("down")(down)


def down(
    name: NameArgument = None,
    named: NameOption = None,
    if_up: Annotated[bool, typer.Option("--if-up", help="Be content when there is none to take away.")] = False,
) -> None:
    """Take a testbed away with everything that runs in it; nothing of it remains."""
    chosen = one_name(name, named)
    up = [info.name for info in standing()]
    if if_up and not (chosen in up if chosen else up):
        typer.echo(f"testbed {chosen} is not up" if chosen else "no testbed is up")
        return
    testbed = attach(chosen, "down")
    with progress() as say:
        testbed.down(on_progress=say)
    typer.echo(f"{testbed.name} is down")
