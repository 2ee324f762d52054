"""`testbed graph TOPOLOGY`: the network as tables, as a drawing (SVG, Mermaid) or as JSON."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from testbed.cli.output import count, mbps, print_json, print_table
from topologies.drawing import as_mermaid, as_svg
from topologies.load import open_topology
from topologies.model import Topology


class GraphFormat(StrEnum):
    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"
    JSON = "json"


def register(app: typer.Typer) -> None:
    app.command("graph")(graph)


def graph(
    topology: Annotated[
        str,
        typer.Argument(
            metavar="TOPOLOGY",
            help="A library name, one made by rule such as ring-6, a file, or topohub:GROUP/NAME.",
        ),
    ],
    scale: Annotated[float, typer.Option("--scale", help="Multiply every rate by this.")] = 1.0,
    format: Annotated[
        GraphFormat,
        typer.Option("--format", help="text, svg, mermaid (for Markdown and mermaid.live) or json."),
    ] = GraphFormat.TEXT,
) -> None:
    """Show the sites and both directions of every link; warnings about a foreign file go to stderr."""
    loaded = open_topology(topology)
    for warning in loaded.warnings:
        typer.echo(f"warning: {warning}", err=True)
    network = loaded.topology if scale == 1.0 else loaded.topology.scaled(scale)
    if format is GraphFormat.JSON:
        print_json(as_json(network))
    elif format is GraphFormat.MERMAID:
        typer.echo(as_mermaid(network), nl=False)
    elif format is GraphFormat.SVG:
        typer.echo(as_svg(network), nl=False)
    else:
        typer.echo(f"{network.name}: {count(network.sites, 'site')}, {count(network.links, 'link')}\n")
        sites = [
            (
                name,
                site.workers,
                "-" if site.cpu is None else f"{site.cpu:g}",
                ", ".join(network.site_names[v] for v in network.neighbours(k)),
            )
            for k, (name, site) in enumerate(network.sites.items())
        ]
        print_table(("site", "workers", "cpu", "neighbours"), sites)
        typer.echo()
        links = [
            (
                link.src_name,
                link.dst_name,
                mbps(link.rate.bps),
                link.delay,
                link.jitter,
                link.loss,
                link.queue or "auto",
            )
            for link in network.directed
        ]
        print_table(("from", "to", "Mbit/s", "delay", "jitter", "loss", "queue"), links)


def as_json(network: Topology) -> dict[str, Any]:
    return {
        "name": network.name,
        "sites": [
            {
                "name": name,
                "index": k,
                "workers": site.workers,
                "cpu": site.cpu,
                "lat": site.lat,
                "lon": site.lon,
            }
            for k, (name, site) in enumerate(network.sites.items())
        ],
        "links": [
            {
                "src": link.src_name,
                "dst": link.dst_name,
                "rate_bps": link.rate.bps,
                "delay_s": link.delay.seconds,
                "jitter_s": link.jitter.seconds,
                "loss_ratio": link.loss.ratio,
                "loss_burst": link.loss.burst,
                "queue_bytes": link.queue.bytes if link.queue else None,
            }
            for link in network.directed
        ],
    }
