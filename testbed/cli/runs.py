"""`testbed runs`: the runs that there are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.output import Format, FormatOption, console, print_json
from testbed.report.find import RUNS

COLUMNS = 120
"""How wide the list is where no terminal tells."""


def register(app: typer.Typer) -> None:
    app.command("runs")(runs)


def runs(
    folder: Annotated[Path, typer.Option("--runs", help="The folder that holds the run directories.")] = Path(
        RUNS
    ),
    format: FormatOption = Format.TEXT,
) -> None:
    """List the runs, newest last, with each scheduler's mean synchronisation time."""
    from testbed.report.find import list_runs
    from testbed.report.json_form import result_to_json
    from testbed.report.measurements import read_run
    from testbed.report.summary import RunResult, summarise_run
    from testbed.report.text import render_runs
    from topologies.errors import InvalidFileError

    results: list[RunResult] = []
    unreadable: list[str] = []
    for name in list_runs(folder):
        try:
            results.append(summarise_run(read_run(folder / name)))
        except InvalidFileError as error:
            unreadable.append(str(error))
    if format is Format.JSON:
        print_json({"runs": [_row(result_to_json(result)) for result in results], "unreadable": unreadable})
    elif not results and not unreadable:
        typer.echo(f"no run under {folder}; `testbed run quickstart` makes one")
    else:
        console(wrap_at=COLUMNS).print(render_runs(results, unreadable))


def _row(report: dict[str, object]) -> dict[str, object]:
    """The entry of one run: what it was, without what each scheduler came to."""
    run = report["run"]
    assert isinstance(run, dict)
    return run
