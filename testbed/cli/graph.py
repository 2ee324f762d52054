"""`testbed graph TOPOLOGY`: the network as a table, a Mermaid drawing or JSON, each direction on its own."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from testbed.cli.output import count, mbps, print_json, print_table
from topologies.load import load_topology
from topologies.model import DirectedLink, Topology


class GraphFormat(StrEnum):
    TEXT = "text"
    MERMAID = "mermaid"
    JSON = "json"


def register(app: typer.Typer) -> None:
    app.command("graph")(graph)


def graph(
    topology: Annotated[str, typer.Argument(metavar="TOPOLOGY", help="A library name or a file.")],
    scale: Annotated[float, typer.Option("--scale", help="Multiply every rate by this.")] = 1.0,
    format: Annotated[
        GraphFormat, typer.Option("--format", help="text, mermaid (for Markdown and mermaid.live) or json.")
    ] = GraphFormat.TEXT,
) -> None:
    """Show the sites and both directions of every link."""
    network = load_topology(topology)
    if scale != 1.0:
        network = network.scaled(scale)
    if format is GraphFormat.JSON:
        print_json(as_json(network))
    elif format is GraphFormat.MERMAID:
        typer.echo(as_mermaid(network), nl=False)
    else:
        typer.echo(f"{network.name}: {count(network.sites, 'site')}, {count(network.links, 'link')}\n")
        sites = [
            (name, site.workers, ", ".join(network.site_names[v] for v in network.neighbours(k)))
            for k, (name, site) in enumerate(network.sites.items())
        ]
        print_table(("site", "workers", "neighbours"), sites)
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
            {"name": name, "index": k, "workers": site.workers}
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
                "queue_bytes": link.queue.bytes if link.queue else None,
            }
            for link in network.directed
        ],
    }


def as_mermaid(network: Topology) -> str:
    """A Mermaid flowchart with one arrow a direction. Nodes are numbered: a site may be called `end` or
    `graph`.
    """
    lines = ["graph LR"]
    for k, (name, site) in enumerate(network.sites.items()):
        lines.append(f'    n{k}["{name}<br/>{count(range(site.workers), "worker")}"]')
    lines += [f'    n{link.src} -->|"{_label(link)}"| n{link.dst}' for link in network.directed]
    return "\n".join(lines) + "\n"


def _label(link: DirectedLink) -> str:
    parts = [str(link.rate), str(link.delay)]
    if link.jitter.ns:
        parts.append(f"jitter {link.jitter}")
    if link.loss.ratio:
        parts.append(f"loss {link.loss}")
    return ", ".join(parts)
