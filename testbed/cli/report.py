"""`testbed report RUN`: a run's result, from its directory alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.output import Format, FormatOption, console, print_json
from testbed.report.find import RUNS
from topologies.errors import CannotHonourError, UsageError

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, a run's id, or `last`.")]
RunsOption = Annotated[Path, typer.Option("--runs", help="The folder that holds the run directories.")]


def register(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    run: RunArgument = "last",
    html: Annotated[bool, typer.Option("--html", help="Write one self-contained page with figures instead.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The page's file; RUN/report.html when left out."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="FOLDER", help="Write each figure as an SVG file of its own instead."),
    ] = None,
    runs: RunsOption = Path(RUNS),
    format: FormatOption = Format.TEXT,
) -> None:
    """Show each scheduler's synchronisation time, bytes, distance to the bound, and fidelity.

    Everything comes from the run directory's files: a copied directory will do, and no testbed need stand.
    """
    if figures is not None and (html or out is not None):
        raise UsageError(
            f"--figures writes files of figures, {'--html' if html else '--out'} one page",
            hint="give the command once for each",
        )
    if figures is not None:
        _write_figures(run, runs, figures, format)
        return
    if html or out is not None:
        _write_page(run, runs, out, format)
        return
    from testbed.report.bounds import bounds_of
    from testbed.report.decisions import count_decisions
    from testbed.report.find import find_run
    from testbed.report.json_form import result_to_json
    from testbed.report.measurements import read_run
    from testbed.report.overhead import read_overhead
    from testbed.report.summary import summarise_run
    from testbed.report.text import render_report

    measurements = read_run(find_run(run, runs))
    decisions = count_decisions(measurements.directory, measurements.manifest)
    result = summarise_run(measurements, bounds_of, decisions, read_overhead(measurements))
    if format is Format.JSON:
        print_json(result_to_json(result))
    else:
        console().print(render_report(result))


def _write_figures(run: str, runs: Path, folder: Path, format: Format) -> None:
    from testbed.report.bounds import bounds_of
    from testbed.report.find import find_run
    from testbed.report.html import write_figures

    with drawing_to(folder):
        paths = write_figures(find_run(run, runs), folder, bounds_of)
    if format is Format.JSON:
        print_json({"paths": [str(path) for path in paths]})
    elif paths:
        typer.echo("\n".join(map(str, paths)))
    if not paths:
        typer.echo("testbed: this run has no figures: it measured nothing that one could be drawn of", err=True)


def _write_page(run: str, runs: Path, out: Path | None, format: Format) -> None:
    from testbed.report.bounds import bounds_of
    from testbed.report.find import find_run
    from testbed.report.html import PAGE, render_page

    directory = find_run(run, runs)
    write_page(lambda: render_page(directory, bounds_of), directory / PAGE if out is None else out, format)


def write_page(render: Callable[[], str], path: Path, format: Format) -> None:
    """Write a page with figures and say where it is.

    Raises:
        CannotHonourError: nothing can draw here, or the file cannot be written.
    """
    with drawing_to(path):
        page = render()
        path.write_text(page, encoding="utf-8")
    if format is Format.JSON:
        print_json({"path": str(path), "bytes": len(page.encode())})
    else:
        typer.echo(f"{path} ({len(page.encode()) / 1e6:.1f} MB); open it in a browser")


@contextmanager
def drawing_to(path: Path) -> Iterator[None]:
    """What can stand in the way of drawing into a file or folder, in words."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise CannotHonourError("figures need matplotlib", hint="pip install 'matplotlib>=3.8'") from None
    except OSError as error:
        raise CannotHonourError(f"{path}: cannot be written: {error.strerror}", hint="name another place") from error
