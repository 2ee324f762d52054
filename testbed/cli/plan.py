"""`testbed plan TOPOLOGY`: the trees and shares that a scheduler would choose, without running anything."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import yaml

from testbed.cli.output import Format, FormatOption, print_json, print_table
from topologies.errors import UsageError
from topologies.load import load_topology


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)


def plan(
    topology: Annotated[str, typer.Argument(metavar="TOPOLOGY", help="A library name or a file.")],
    scheduler: Annotated[str, typer.Option("--scheduler", "-s", help="Its name.")] = "netstorm",
    site: Annotated[
        str | None, typer.Option("--site", help="The star's server: first, best, all or a site.")
    ] = None,
    roots: Annotated[str | None, typer.Option("--roots", help="How many roots to keep, or all.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="Any scheduler option.")
    ] = None,
    scale: Annotated[float, typer.Option("--scale", help="Multiply every rate by this.")] = 1.0,
    format: FormatOption = Format.TEXT,
) -> None:
    """Show the trees and shares that a scheduler plans at the declared rates."""
    network = load_topology(topology)
    if scale != 1.0:
        network = network.scaled(scale)
    options = parse_options(option or [])
    if site is not None:
        options["server"] = site
    if roots is not None:
        options["roots"] = parse_value(roots)
    # The planners bring numpy's load time with them; the other verbs do without.
    from agents.planning.base import NetworkView, Scheduler
    from agents.planning.registry import get_scheduler

    chosen = get_scheduler({"name": scheduler, "options": options}, network.site_names)
    if not isinstance(chosen, Scheduler):
        document: dict[str, Any] = {"scheduler": scheduler, "mode": "per-transfer"}
    else:
        document = chosen.plan(NetworkView.from_topology(network)).to_dict(network.site_names)
    if format is Format.JSON:
        print_json(document)
    elif "roots" not in document:
        typer.echo(f"{scheduler} decides per transfer; it plans no trees ahead")
    else:
        count = len(document["roots"])
        typer.echo(
            f"{document['scheduler']} on {network.name}: {count} root{'s' if count != 1 else ''}; "
            "below each site, where it sends its sum\n"
        )
        print_table(*table(document, network.site_names))


def parse_options(texts: list[str]) -> dict[str, Any]:
    """["server=best"] as {"server": "best"}; values are read as YAML reads them."""
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{text!r} is not an option", hint="write --option KEY=VALUE")
        options[key] = parse_value(value)
    return options


def parse_value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise UsageError(f"{text!r} is not a value") from None


def table(document: dict[str, Any], sites: tuple[str, ...]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows: one line a root, one column a site, in the cell the site's parent."""
    rows = []
    for entry in document["roots"]:
        parents = entry["parents"]
        head = (entry["site"], f"{entry['share']:.4f}", f"{entry['score']:.3f}")
        rows.append((*head, *(parents[site] or "root" for site in sites)))
        if "pull_parents" in entry:
            pull = entry["pull_parents"]
            rows.append((f"{entry['site']} (pull)", "", "", *(pull[site] or "root" for site in sites)))
    return ("root", "share", "Mbit/s", *sites), rows
