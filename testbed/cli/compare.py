"""`testbed compare RUN_A RUN_B`: two runs beside each other, such as one of each world."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.output import Format, FormatOption, console, print_json
from testbed.report.find import RUNS
from topologies.errors import UsageError

_HELP = "A run directory, a run's id, or `last`."


def register(app: typer.Typer) -> None:
    app.command("compare")(compare)


def compare(
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help=_HELP)],
    run_b: Annotated[str, typer.Argument(metavar="RUN_B", help=_HELP)],
    runs: Annotated[Path, typer.Option("--runs", help="The folder that holds the run directories.")] = Path(
        RUNS
    ),
    html: Annotated[
        bool, typer.Option("--html", help="Write one self-contained page with a figure instead.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The page's file; compare-A.html in RUN_B when left out."),
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Set two runs side by side, scheduler by scheduler, or searches policy by policy; ratios are B over A."""
    from testbed.report.bounds import bounds_of
    from testbed.report.compare import compare_runs, comparison_to_json
    from testbed.report.find import find_run
    from testbed.report.measurements import read_run
    from testbed.report.summary import summarise_run
    from testbed.report.text import render_comparison

    directory = find_run(run_b, runs)
    a, b = (summarise_run(read_run(run), bounds_of) for run in (find_run(run_a, runs), directory))
    comparison = compare_runs(a, b)
    nothing = "no scheduler is in both runs, so there is nothing to compare"
    if comparison.policies:
        nothing = "no policy is in both runs, so there is nothing to compare"
    if html or out is not None:
        if not comparison.shared:
            raise UsageError(nothing, hint="name two runs that share one; without --html each is shown by itself")
        from testbed.cli.report import write_page
        from testbed.report.compare_page import render_compare_page

        path = out or directory / f"compare-{a.manifest.id}.html"
        write_page(lambda: render_compare_page(comparison), path, format)
    elif format is Format.JSON:
        print_json(comparison_to_json(comparison))
    else:
        console().print(render_comparison(comparison))
    if not comparison.shared:
        typer.echo(f"testbed: {nothing}", err=True)
