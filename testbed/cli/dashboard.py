"""`testbed dashboard [NAME|RUN]`: the live page of a testbed, or a finished run again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.report.find import RUNS, find_run
from topologies.errors import InvalidFileError, UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette


def register(app: typer.Typer) -> None:
    app.command("dashboard")(dashboard)


def dashboard(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|RUN]",
            help="A testbed that stands, or a run: its directory, its id, or last.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="The address to serve at.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            "--port", help="The port; 0 takes any that is free.", show_default="8800, or any that is free"
        ),
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="The folder of runs.")] = Path(RUNS),
) -> None:
    """Serve a page that shows the WAN, its trees and synchronisation times; Ctrl-C ends it.

    Without an argument: the testbed that stands, or else the last run.
    """
    from testbed.dashboard.background import PORT
    from testbed.dashboard.server import LOOPBACK, serve, serve_near

    app, title = _application(what, runs, ("*",) if host not in LOOPBACK else LOOPBACK)

    def ready(address: str) -> None:
        typer.echo(f"{title}: {address}")

    try:
        if port is None:
            serve_near(app, host, PORT, ready)
        else:
            serve(app, host, port, ready)
    except KeyboardInterrupt:
        return  # the usual way to end it


def _application(what: str | None, runs: Path, hosts: tuple[str, ...]) -> tuple[Starlette, str]:
    from testbed.dashboard.server import application

    name = _standing(what)
    if name is not None:
        from testbed.cli.select import attach
        from testbed.dashboard.live import LiveSource

        return application(None, LiveSource(attach(name, "dashboard")), hosts), f"testbed {name}"
    from testbed.dashboard.replay import read_replay

    try:
        directory = find_run("last" if what is None else what, runs)
    except InvalidFileError as error:
        if what is None:
            raise UsageError(
                f"no testbed is up, and there is no run under {runs}", hint="testbed up netstorm-9"
            ) from None
        raise UsageError(
            f"{what!r} is neither a testbed that is up nor a run", hint=error.hint or "testbed list"
        ) from None
    document = read_replay(directory)
    return application(document, None, hosts), f"run {document['id']}"


def _standing(what: str | None) -> str | None:
    """The name of the testbed that is meant, if one is.

    Raises:
        UsageError: several stand and none is named.
    """
    if what is not None and (Path(what).is_dir() or what == "last"):
        return None
    from testbed.standing import standing

    names = [info.name for info in standing()]
    if what is None and len(names) > 1:
        raise UsageError(f"several testbeds are up: {', '.join(names)}", hint=f"testbed dashboard {names[0]}")
    if what is None:
        return names[0] if names else None
    return what if what in names else None
