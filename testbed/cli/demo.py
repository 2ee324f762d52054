"""`testbed demo`: every scheduler on NetStorm-9, simulated, beside the bound. Needs no root."""

from __future__ import annotations

from typing import Annotated

import typer

from testbed.cli.output import Format, FormatOption, print_json, print_table, progress


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    topology: Annotated[str, typer.Option(help="A topology of the library, or a file.")] = "netstorm-9",
    parameters: Annotated[
        int,
        typer.Option(min=1, help="The model's parameters, 4 bytes each. The default is AlexNet's number."),
    ] = 57_029_322,
    chunk_elements: Annotated[int, typer.Option(min=1, help="How finely the model is cut.")] = 100_000,
    scheduler: Annotated[
        list[str] | None, typer.Option(help="Only this scheduler; may be repeated. Default: every one.")
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Simulate one synchronisation under every scheduler and show it beside the least possible time."""
    from agents.planning.registry import scheduler_names, scheduler_summary
    from testbed.simulation.comparison import compare
    from topologies.load import load_topology

    network = load_topology(topology)
    with progress() as say:
        result = compare(network, parameters, chunk_elements, scheduler, say=say)
    if output is Format.JSON:
        print_json({key: value for key, value in result.to_dict().items() if key != "schema"})
        return
    slowest = max(run.seconds for run in result.results)
    rows = [
        (
            run.scheduler,
            f"{run.seconds:.2f}",
            f"{result.over_bound(run):.2f}",
            f"{slowest / run.seconds:.2f}",
            f"{result.rate_bps(run) / 1e6:.1f}",
            f"{sum(run.link_bits) / 8e9:.2f}",
            scheduler_summary(run.scheduler) if run.scheduler in scheduler_names() else "",
        )
        for run in result.results
    ]
    limit = f"{result.limit.rate_bps / 1e6:.1f}"
    rows.append(("bound", f"{result.bound_s:.2f}", "1.00", f"{slowest / result.bound_s:.2f}", limit, "-", ""))
    title = f"{network.name}: {len(network.site_names)} sites, {parameters:,} parameters, simulated"
    columns = ("scheduler", "seconds", "x bound", "speed-up", "Mbit/s", "GB carried", "what it is")
    print_table(columns, rows, title=title)
