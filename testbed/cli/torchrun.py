"""`testbed torchrun SCRIPT [ARGS]`: an unmodified DDP script at every site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.plan import parse_options
from testbed.cli.select import NameOption, attach


def register(app: typer.Typer) -> None:
    # What follows the script is the script's, options and all, as with torch's own launcher.
    settings = {"allow_interspersed_args": False, "ignore_unknown_options": False}
    app.command("torchrun", context_settings=settings, no_args_is_help=True)(torchrun)


def torchrun(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A training script.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its own arguments.", show_default=False)
    ] = None,
    name: NameOption = None,
    backend: Annotated[
        str, typer.Option("--backend", "-b", help="What carries the collectives: stormbed or gloo.")
    ] = "stormbed",
    scheduler: Annotated[str, typer.Option("--scheduler", "-s", help="On stormbed.")] = "netstorm",
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="Any scheduler option.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes a site, instead of the topology's.")
    ] = None,
    chunk_elements: Annotated[int | None, typer.Option(help="Elements of a chunk, on stormbed.")] = None,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds that one collective may take, on stormbed.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="MASTER_PORT, instead of a chosen one.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that the whole may take.")] = None,
    logs: Annotated[Path, typer.Option("--logs", help="The folder that receives the logs.")] = Path(
        "torchrun"
    ),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only write the logs.")] = False,
) -> None:
    """Run a DDP script, as it is, at every site of a standing testbed, over its WAN.

    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME are set. A script that
    was written for gloo runs on stormbed without an edit, and the other way round. Exit code 5 names the
    first site that failed, or that the time is over; Ctrl-C ends all.
    """
    from testbed.torchrun import Launch, new_folder
    from testbed.torchrun import torchrun as run_everywhere

    options = parse_options(option or [])
    launch = Launch(
        script=script,
        arguments=tuple(arguments or ()),
        backend=backend,
        scheduler={"name": scheduler, "options": options} if options else scheduler,
        workers=workers,
        chunk_elements=chunk_elements,
        deadline_s=deadline,
        port=port,
        timeout_s=timeout,
    )
    launch.check()
    testbed = attach(name, "torchrun")
    launch.check(testbed.topology.site_names)
    folder = new_folder(logs, script)
    typer.echo(f"{backend} on {testbed.name}; logs: {folder}", err=True)

    def show(worker: str, stream: str, line: str) -> None:
        typer.echo(f"[{worker}] {line}", err=stream == "stderr")

    run_everywhere(testbed, launch, folder, None if quiet else show)
