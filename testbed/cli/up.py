"""`testbed up TOPOLOGY`: bring a testbed to life."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from testbed.api import Testbed, default_name
from testbed.cli.calibrate import require_in_band, verdict_lines
from testbed.cli.output import Format, FormatOption, count, print_json, progress
from testbed.emulation.launch import require_fitting
from testbed.emulation.page import page_url
from testbed.standing import require_root, standing
from topologies.dynamics import Dynamics
from topologies.errors import StormbedError, UsageError
from topologies.load import load_topology
from topologies.model import Topology


def register(app: typer.Typer) -> None:
    app.command("up")(up)


def up(
    topology: Annotated[str, typer.Argument(metavar="TOPOLOGY", help="A library name or a file.")],
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="The testbed's name; the topology's when left out.")
    ] = None,
    scale: Annotated[float, typer.Option("--scale", help="Multiply every rate by this.")] = 1.0,
    calibrate: Annotated[
        bool, typer.Option("--calibrate/--no-calibrate", help="Load all links together and give a verdict.")
    ] = True,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit 3 when a link is not as declared; the testbed stands anyway."),
    ] = False,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Be content with a testbed of this name and network that is up.")
    ] = False,
    allow_degraded: Annotated[
        bool,
        typer.Option("--allow-degraded", help="Go on with links that cannot be as fast as declared."),
    ] = False,
    dynamics: Annotated[
        str | None,
        typer.Option(
            "--dynamics",
            metavar="KIND[?KEY=VALUE&...]",
            help="Have links change by themselves from the start: netstorm, 'uniform?every=10s&seed=7', "
            "'trace?path=wan.csv'. `link vary` replaces or stops it.",
        ),
    ] = None,
    page: Annotated[
        bool, typer.Option("--page/--no-page", help="Serve the testbed's live page on loopback until `down`.")
    ] = True,
    coordinator: Annotated[
        str | None,
        typer.Option("--coordinator", help="The site where the coordinator runs; out of band when left out."),
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Bring up switches, routes, sites with SSH and agents, and Prometheus; all stands until `down`."""
    # The file first: it is wrong or right whoever reads it, on whatever machine.
    declared = load_topology(topology)
    network = declared if scale == 1.0 else declared.scaled(scale)
    moving = None if dynamics is None else Dynamics.parse(dynamics)
    if moving is not None:
        require_fitting(network, moving, scale)
    if coordinator is not None:
        network.index(coordinator)
    require_root("`testbed up`")
    chosen = default_name(network) if name is None else name
    testbed = reusable(chosen, network, coordinator) if reuse else None
    if testbed is None:
        with progress() as say:
            testbed = Testbed.up(
                declared,
                name=chosen,
                scale=scale,
                calibrate=calibrate,
                allow_degraded=allow_degraded,
                dynamics=moving,
                coordinator=coordinator,
                on_progress=say,
            )
    elif moving is not None:
        testbed.vary(moving, scale=scale)
    if page:
        _serve_page(testbed)
    if format is Format.JSON:
        print_json(summary(testbed))
    else:
        typer.echo(
            f"{testbed.name} stands: {count(testbed.topology.sites, 'site')}, "
            f"{count(testbed.topology.links, 'link')} ({testbed.topology.name})"
        )
        for limit in testbed.info.limits:
            typer.echo(f"  limit: {limit}")
        for line in verdict_lines(testbed.info.fidelity):
            typer.echo(f"  {line}")
        if moving is not None:
            typer.echo(f"  links change by themselves: {moving}")
        typer.echo(f"  ssh -F {testbed.ssh_config} {testbed.topology.site_names[0]}")
        url = page_url(testbed.run_dir)
        if url is not None:
            typer.echo(f"  live page {url}")
        typer.echo(f"  Prometheus {testbed.info.prometheus_url}")
    if strict:
        require_in_band(testbed.info.fidelity)


def _serve_page(testbed: Testbed) -> None:
    """A testbed without its page is as good a testbed: what stood in the way is only told."""
    from testbed.dashboard.background import ensure

    assert testbed.info.pid is not None
    try:
        ensure(testbed.name, testbed.run_dir, testbed.info.pid)
    except (StormbedError, OSError) as error:
        typer.echo(f"testbed: {error}; `testbed dashboard {testbed.name}` serves it as well", err=True)


def reusable(name: str, network: Topology, coordinator: str | None = None) -> Testbed | None:
    """The testbed of this name if it is up with this very network; None when it is not up.

    Raises:
        UsageError: it is up with another network, or its coordinator is elsewhere.
        CannotHonourError: something of it has ended.
    """
    from testbed.experiments.readiness import require_healthy

    for info in standing():
        if info.name == name:
            if info.coordinator_site != coordinator:
                where = "out of band" if info.coordinator_site is None else f"at {info.coordinator_site}"
                raise UsageError(
                    f"testbed {name} is up with its coordinator {where}",
                    hint=f"testbed down {name}, or another --name",
                )
            if info.topology != network.to_dict():
                raise UsageError(
                    f"testbed {name} is up with another network ({info.topology['name']})",
                    hint=f"testbed down {name}, or another --name",
                )
            require_healthy(name, whole=True)
            typer.echo(f"{name} is up already", err=True)
            return Testbed(info)
    return None


def summary(testbed: Testbed) -> dict[str, Any]:
    info = testbed.info
    return {
        "name": info.name,
        "topology": testbed.topology.name,
        "run_dir": str(testbed.run_dir),
        "ssh_config": str(testbed.ssh_config),
        "page_url": page_url(testbed.run_dir),
        "prometheus_url": info.prometheus_url,
        "controller_url": info.controller_url,
        "coordinator_site": info.coordinator_site,
        "sites": {
            name: {"wan_ip": site.wan_ip, "mgmt_ip": site.mgmt_ip} for name, site in info.sites.items()
        },
        "fidelity": info.fidelity,
        "limits": list(info.limits),
    }
