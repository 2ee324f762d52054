"""`testbed reference`: the parts of the documents that are made from the code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from testbed.cli.output import print_json
from topologies.errors import UsageError

DOCS: Final = Path(__file__).parents[2] / "docs"


class Part(StrEnum):
    CLI = "cli"
    METRICS = "metrics"
    EXPERIMENTS = "experiments"
    EXPERIMENT_SCHEMA = "experiment-schema"
    TOPOLOGY_SCHEMA = "topology-schema"


def register(app: typer.Typer) -> None:
    app.command("reference")(reference)


def reference(
    part: Annotated[
        Part | None, typer.Argument(metavar="PART", help=f"One of {', '.join(part.value for part in Part)}.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Bring the documents and dashboards of this checkout up to date.")
    ] = False,
) -> None:
    """Print every verb, metric or experiment key as Markdown, or a file's JSON schema, from the code itself."""
    if write:
        for path in write_all():
            typer.echo(path)
        return
    if part is None:
        raise UsageError("which part?", hint=f"one of {', '.join(part.value for part in Part)}, or --write")
    if part in SCHEMAS:
        print_json(SCHEMAS[part]())
    else:
        typer.echo(DOCUMENTS[part](), nl=False)


def _cli() -> str:
    from testbed.cli import build
    from testbed.cli.reference_markdown import cli_markdown

    return cli_markdown(build())


def _metrics() -> str:
    from testbed.cli.reference_markdown import metrics_markdown
    from testbed.telemetry.exported import exported

    return metrics_markdown(exported())


def _experiments() -> str:
    from testbed.cli.reference_markdown import models_markdown
    from testbed.experiments.schema import Experiment

    return models_markdown(Experiment)


def _experiment_schema() -> dict[str, Any]:
    from testbed.experiments.schema import Experiment

    return Experiment.model_json_schema()


def _topology_schema() -> dict[str, Any]:
    from topologies.model import Topology

    return Topology.model_json_schema()


DOCUMENTS: Final[Mapping[Part, Callable[[], str]]] = {
    Part.CLI: _cli,
    Part.METRICS: _metrics,
    Part.EXPERIMENTS: _experiments,
}
SCHEMAS: Final[Mapping[Part, Callable[[], dict[str, Any]]]] = {
    Part.EXPERIMENT_SCHEMA: _experiment_schema,
    Part.TOPOLOGY_SCHEMA: _topology_schema,
}


def splice(text: str, part: str, made: str) -> str:
    """A document with what stands between the markers of `part` replaced."""
    begin, end = f"<!-- made by `testbed reference {part}`", f"<!-- end of {part} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise UsageError(f"the document has not exactly one pair of markers for {part}", hint=f"{begin} -->")
    head, rest = text.split(begin)
    marker, tail = rest.split("-->", 1)
    return f"{head}{begin}{marker}-->\n\n{made.strip()}\n\n{end}{tail.split(end)[1]}"


def generated() -> dict[Path, str]:
    """Every file that is made from the code, as it ought to be."""
    from testbed.telemetry import grafana
    from testbed.telemetry.exported import exported

    result = {}
    for part, make in DOCUMENTS.items():
        path = DOCS / f"{part.value}.md"
        result[path] = splice(path.read_text(encoding="utf-8"), part.value, make())
    for name, text in grafana.files(exported()).items():
        result[grafana.DIRECTORY / name] = text
    return result


def write_all() -> list[Path]:
    """Bring them up to date; returns what changed."""
    if not DOCS.is_dir():
        raise UsageError(f"there is no {DOCS}: only a checkout has the documents")
    changed = []
    for path, text in generated().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed
