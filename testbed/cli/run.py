"""`testbed run EXPERIMENT`: train under each scheduler and report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.cli.output import Format, FormatOption, console, print_json, progress
from testbed.report.find import RUNS


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    experiment: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help="An experiment: a file or a library name.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="The testbed to use, or the name of the one to bring up.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder that receives the run directory.")] = Path(
        RUNS
    ),
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave a testbed standing that was brought up for this run.")
    ] = False,
    allow_degraded: Annotated[
        bool,
        typer.Option("--allow-degraded", help="Go on with links that cannot be as fast as declared."),
    ] = False,
    world: Annotated[str | None, typer.Option(help="emulated or simulated, instead of the file's.")] = None,
    scale: Annotated[
        float | None, typer.Option(help="Multiply all rates, instead of the file's scale.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(help="Repeats, instead of the file's.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed, instead of the file's.")] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Run an experiment and report it. A testbed with its network is used if one stands, else one is made."""
    from testbed.doctor import require_packages
    from testbed.experiments.run import run_experiment
    from testbed.experiments.spec import open_experiment
    from testbed.standing import require_root

    given = {"world": world, "scale": scale, "repeats": repeats, "seed": seed}
    overrides: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    loaded = open_experiment(experiment, overrides)
    if loaded.spec.world == "emulated":
        require_root("an emulated run")
        require_packages()
    with progress() as say:
        path = run_experiment(
            loaded,
            out=out,
            testbed=name,
            keep=keep,
            allow_degraded=allow_degraded,
            say=say,
            on_directory=lambda directory: say(f"writing {_near(directory)}"),
        )
    _report(path, format)


def _report(path: Path, format: Format) -> None:
    from testbed.report.bounds import bounds_of
    from testbed.report.json_form import result_to_json
    from testbed.report.measurements import read_run
    from testbed.report.overhead import read_overhead
    from testbed.report.summary import summarise_run
    from testbed.report.text import render_report

    measurements = read_run(path)
    result = summarise_run(measurements, bounds_of, overhead=read_overhead(measurements))
    if format is Format.JSON:
        print_json(result_to_json(result))
    else:
        console().print(render_report(result))
        typer.echo(f"\nfiles: {_near(path)}")


def _near(path: Path) -> str:
    """The path as it is shortest to type from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
