"""`testbed report RUN`: a run's result, from its directory alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.output import Format, FormatOption, console, print_json
from testbed.report.find import RUNS

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, a run's id, or `last`.")]
RunsOption = Annotated[Path, typer.Option("--runs", help="The folder that holds the run directories.")]


def register(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    run: RunArgument = "last", runs: RunsOption = Path(RUNS), format: FormatOption = Format.TEXT
) -> None:
    """Show each scheduler's synchronisation time, bytes, distance to the bound, and fidelity."""
    from testbed.report.bounds import bound_seconds
    from testbed.report.find import find_run
    from testbed.report.measurements import read_run
    from testbed.report.summary import result_to_json, summarise_run
    from testbed.report.text import render_report

    result = summarise_run(read_run(find_run(run, runs)), bound_seconds)
    if format is Format.JSON:
        print_json(result_to_json(result))
    else:
        console().print(render_report(result))
