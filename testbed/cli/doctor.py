"""`testbed doctor`: what this machine can do, what is used instead, and how to mend what is missing."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from testbed.cli.output import Format, FormatOption, print_json, print_table
from topologies.errors import CannotHonourError

COLOURS = {"ok": "green", "degraded": "yellow", "missing": "red"}


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    quick: Annotated[
        bool, typer.Option("--quick", help="Only look: bring no throw-away pair of sites up to try it.")
    ] = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Check this machine; exit 4 when something that a testbed needs is missing."""
    from testbed.doctor import State, examine, fit

    rows = examine(trial=not quick)
    if format is Format.JSON:
        print_json({"fit": fit(rows), "checks": [row.as_dict() for row in rows]})
    else:
        print_table(
            ("check", "", "found"),
            [(row.name, Text(row.state.value, style=COLOURS[row.state.value]), row.found) for row in rows],
        )
        typer.echo()
        for row in rows:
            if row.instead:
                typer.echo(f"{row.name}: instead {row.instead}" + (f" ({row.fix})" if row.fix else ""))
            elif row.fix:
                typer.echo(f"{row.name}: fix {row.fix}")
    absent = [row.name for row in rows if row.state is State.MISSING]
    if absent:
        raise CannotHonourError(f"this machine lacks: {', '.join(absent)}", hint="the fixes are listed above")
