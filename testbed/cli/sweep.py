"""`testbed sweep`: one experiment at every combination of declared values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.output import Format, FormatOption, print_json, print_table, progress
from topologies.errors import RunFailedError, UsageError

if TYPE_CHECKING:
    from testbed.experiments.sweep import LoadedSweep

SWEEPS = "sweeps"


def register(app: typer.Typer) -> None:
    app.command("sweep")(sweep)


def sweep(
    what: Annotated[
        str, typer.Argument(metavar="SWEEP|EXPERIMENT", help="A sweep's file; or an experiment, with --axis.")
    ],
    axis: Annotated[
        list[str] | None,
        typer.Option("--axis", metavar="KEY=VALUE,...", help="An axis, such as seed=1..5 or scale=0.5,1; repeat it."),
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of the experiment for all points; repeat it."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The sweep's directory; sweeps/NAME when left out.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the points.")] = False,
    allow_degraded: Annotated[
        bool,
        typer.Option("--allow-degraded", help="Go on with links that cannot be as fast as declared."),
    ] = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Run an experiment at every combination of values; the same command again goes on where it ended.

    Every point is checked before the first runs. A point that fails is kept as failed and tried again next time.
    """
    loaded = _load(what, axis or [], fix or [])
    directory = Path(SWEEPS) / loaded.spec.name if out is None else out
    if dry_run:
        _list(loaded, format)
        return
    from testbed.experiments.sweep_run import SweepDirectory, run_sweep

    state = SweepDirectory(directory, loaded)
    try:
        with progress() as say:
            rows = run_sweep(loaded, state, allow_degraded=allow_degraded, say=say)
    finally:
        _write_results(directory, loaded, state.rows)
    failed = [row for row in rows if row["status"] == "failed"]
    if format is Format.JSON:
        print_json({"path": str(directory), "points": rows})
    else:
        from testbed.report.sweep import schedulers_of, table_rows

        axes = list(loaded.spec.axes)
        print_table([*axes, *(f"{name} s" for name in schedulers_of(rows)), "state"], table_rows(axes, rows))
        typer.echo(f"\nfiles: {directory} (sweep.html, results.csv, runs/)")
    if failed:
        raise RunFailedError(
            f"{len(failed)} of {len(rows)} points failed; the first: {failed[0]['failure']}",
            hint="the same command tries them again",
        )


def _load(what: str, axes: list[str], settings: list[str]) -> LoadedSweep:
    from testbed.experiments.sweep import is_sweep, load_sweep, parse_setting, sweep_of

    fixed: dict[str, Any] = dict(parse_setting(text) for text in settings)
    if is_sweep(what):
        if axes:
            raise UsageError(f"{what} declares its own axes", hint="leave --axis out, or name an experiment")
        return load_sweep(what, fixed)
    if not axes:
        raise UsageError("a sweep needs an axis", hint=f"testbed sweep {what} --axis seed=1..5")
    return sweep_of(what, axes, fixed)


def _list(loaded: LoadedSweep, format: Format) -> None:
    if format is Format.JSON:
        print_json({"points": [dict(point.values) for point in loaded.points]})
        return
    for point in loaded.points:
        typer.echo(point)
    typer.echo(f"{len(loaded.points)} points of {loaded.spec.experiment}", err=True)


def _write_results(directory: Path, loaded: LoadedSweep, rows: list[dict[str, Any]]) -> None:
    """The table and the page; also of a sweep that was interrupted."""
    from testbed.experiments.manifest import read_manifest
    from testbed.report.sweep import figure, render_page, to_csv

    axes = list(loaded.spec.axes)
    directory.joinpath("results.csv").write_text(to_csv(axes, rows), encoding="utf-8")
    done = [row for row in rows if row["status"] == "completed"]
    drawn = figure(axes, rows, read_manifest(directory / done[0]["run"])) if done else None
    directory.joinpath("sweep.html").write_text(render_page(loaded.spec.name, axes, rows, drawn), encoding="utf-8")
