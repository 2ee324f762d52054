"""`testbed validate FILE`: is this topology or experiment file right, and what does it come to?"""

from __future__ import annotations

from typing import Annotated, Any

import typer
import yaml

from testbed.cli.output import Format, FormatOption, count, print_json
from topologies.errors import InvalidFileError
from topologies.files import read_yaml
from topologies.load import list_library, load_topology
from topologies.model import nearest

TOPOLOGY_KEYS = frozenset({"sites", "links", "defaults"})
EXPERIMENT_KEYS = frozenset(
    {"topology", "dynamics", "training", "schedulers", "repeats", "seed", "coordinator", "world", "timeline"}
)


def register(app: typer.Typer) -> None:
    app.command("validate")(validate)


def validate(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A topology or experiment: a file or a library name.")
    ],
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Print it with every default filled in.")
    ] = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Check a topology or experiment file; the first thing wrong is named with its line and the fix."""
    kind, name, summary, full = check(file)
    if format is Format.JSON:
        print_json({"kind": kind, "name": name, **summary, "resolved": full})
    elif resolved:
        typer.echo(yaml.safe_dump(full, sort_keys=False, allow_unicode=True), nl=False)
    else:
        counts = ", ".join(count(range(value), key.removesuffix("s")) for key, value in summary.items())
        typer.echo(f"{file}: valid {kind} {name!r} ({counts})")


def check(file: str) -> tuple[str, str, dict[str, int], dict[str, Any]]:
    """The kind of a file, its name, a few counts, and its contents with every default filled in.

    Raises:
        InvalidFileError: it is neither kind, or something in it is wrong.
    """
    if kind_of(file) == "topology":
        topology = load_topology(file)
        counts = {"sites": len(topology.sites), "links": len(topology.links)}
        return "topology", topology.name, counts, topology.to_dict()
    # Imported only here: checking a topology needs nothing of the experiments.
    from testbed.experiments.spec import open_experiment

    experiment = open_experiment(file)
    counts = {"segments": len(experiment.segments), "repeats": experiment.spec.repeats}
    return "experiment", experiment.spec.name, counts, experiment.resolved()


def kind_of(file: str) -> str:
    """ "topology" or "experiment", told by a file's top-level keys or by the library that has the name."""
    if file in list_library():
        return "topology"
    experiments = _experiment_library()
    if file in experiments:
        return "experiment"
    if "/" not in file and "." not in file:
        hint = nearest(file, (*list_library(), *experiments))
        raise InvalidFileError(f"there is no topology or experiment {file!r} in the library", hint=hint)
    document = read_yaml(file)
    keys = set(document.data) if isinstance(document.data, dict) else set()
    as_topology, as_experiment = len(keys & TOPOLOGY_KEYS), len(keys & EXPERIMENT_KEYS)
    if as_topology == as_experiment == 0:
        hint = (
            "a topology has the keys name, sites, links; "
            "an experiment has name, topology, training, schedulers"
        )
        raise document.error((), "this is neither a topology nor an experiment", hint=hint)
    return "topology" if as_topology >= as_experiment else "experiment"


def _experiment_library() -> tuple[str, ...]:
    from testbed.experiments.spec import list_experiments

    return list_experiments()
