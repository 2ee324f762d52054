"""`testbed validate FILE`: is this topology, experiment or sweep right, and what does it come to?"""

from __future__ import annotations

from typing import Annotated, Any

import typer
import yaml

from testbed.cli.output import Format, FormatOption, count, print_json
from topologies.errors import InvalidFileError
from topologies.files import read_yaml
from topologies.formats import read_graph
from topologies.generate import FORMS
from topologies.load import is_topology_name, list_library, open_topology, split_options
from topologies.model import nearest

TOPOLOGY_KEYS = frozenset({"sites", "links", "defaults"})
EXPERIMENT_KEYS = frozenset(
    {"topology", "dynamics", "training", "schedulers", "repeats", "seed", "coordinator", "world", "timeline"}
)


def register(app: typer.Typer) -> None:
    app.command("validate")(validate)


def validate(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A topology, an experiment or a sweep: a file, a library name, one made by rule such as ring-6.",
        ),
    ],
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Print it with every default filled in.")
    ] = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Check a topology, experiment or sweep file; the first thing wrong is named with its line and the fix.

    What had to be changed in a foreign file to make a topology of it is told on stderr.
    """
    kind, name, summary, full, warnings = check(file)
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    if format is Format.JSON:
        print_json({"kind": kind, "name": name, **summary, "warnings": list(warnings), "resolved": full})
    elif resolved:
        typer.echo(yaml.safe_dump(full, sort_keys=False, allow_unicode=True), nl=False)
    else:
        counts = ", ".join(count(range(value), key.removesuffix("s")) for key, value in summary.items())
        typer.echo(f"{file}: valid {kind} {name!r} ({counts})")


def check(file: str) -> tuple[str, str, dict[str, int], dict[str, Any], tuple[str, ...]]:
    """The kind of a file, its name, a few counts, its contents with every default filled in, warnings.

    Raises:
        InvalidFileError: it is neither kind, or something in it is wrong.
    """
    kind = kind_of(file)
    if kind == "topology":
        loaded = open_topology(file)
        topology = loaded.topology
        counts = {"sites": len(topology.sites), "links": len(topology.links)}
        return "topology", topology.name, counts, topology.to_dict(), loaded.warnings
    # Imported only here: checking a topology needs nothing of the experiments.
    from testbed.experiments.spec import open_experiment

    if kind == "sweep":
        from testbed.experiments.sweep import load_sweep

        sweep = load_sweep(file)
        counts = {"points": len(sweep.points)}
        return "sweep", sweep.spec.name, counts, sweep.spec.model_dump(mode="json"), ()

    experiment = open_experiment(file)
    counts = {"segments": len(experiment.segments), "repeats": experiment.spec.repeats}
    return "experiment", experiment.spec.name, counts, experiment.resolved(), ()


def kind_of(file: str) -> str:
    """ "topology", "experiment" or "sweep": told by the name itself, by the library that has it, or by the file."""
    if is_topology_name(file):
        return "topology"
    experiments = _experiment_library()
    if file in experiments:
        return "experiment"
    base = str(split_options(file)[0])
    if "/" not in base and "." not in base:
        hint = nearest(base, (*list_library(), *FORMS, *experiments))
        raise InvalidFileError(f"there is no topology or experiment {file!r} in the library", hint=hint)
    if read_graph(base, lambda warning: None) is not None:
        return "topology"
    document = read_yaml(base)
    keys = set(document.data) if isinstance(document.data, dict) else set()
    from testbed.experiments.sweep import sweeps

    if sweeps(document.data):
        return "sweep"
    as_topology, as_experiment = len(keys & TOPOLOGY_KEYS), len(keys & EXPERIMENT_KEYS)
    if as_topology == as_experiment == 0:
        hint = (
            "a topology has the keys name, sites, links; "
            "an experiment has name, topology, training, schedulers; a sweep has axes"
        )
        raise document.error((), "this is neither a topology nor an experiment", hint=hint)
    return "topology" if as_topology >= as_experiment else "experiment"


def _experiment_library() -> tuple[str, ...]:
    from testbed.experiments.spec import list_experiments

    return list_experiments()
