"""`testbed ps` and `testbed kill`: the processes of the sites."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from testbed.cli.output import Format, FormatOption, print_json, print_table
from testbed.cli.select import NameOption, attach, attach_to_site
from testbed.parts import PARTS
from topologies.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command("ps")(ps)
    app.command("kill")(kill)


def ps(
    site: Annotated[
        str | None, typer.Argument(metavar="[SITE]", help="Only this site.", show_default=False)
    ] = None,
    name: NameOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """List what runs at the sites; pids are those inside the testbed."""
    testbed = attach(name, "ps")
    if site is not None:
        testbed.site(site)
    sites = [site] if site is not None else list(testbed.sites)
    rows = [{"site": at, **process} for at in sites for process in testbed.sites[at].processes()]
    if format is Format.JSON:
        print_json({"name": testbed.name, "processes": rows})
    else:
        print_table(
            ("site", "pid", "cpu s", "MB", "command"),
            [
                (
                    row["site"],
                    row["pid"],
                    f"{row['cpu_s']:.1f}",
                    f"{row['rss_bytes'] / 1e6:.0f}",
                    command(row["argv"]),
                )
                for row in rows
                if row["status"] is None
            ],
        )


def command(argv: list[str]) -> str:
    """A command as one line of a table."""
    text = " ".join(shlex.join(argv).split())
    return text if len(text) <= 120 else text[:117] + "..."


def kill(
    site: Annotated[str, typer.Argument(metavar="SITE")],
    pid: Annotated[int, typer.Argument(metavar="PID", help="As `testbed ps` shows it.")],
    name: NameOption = None,
) -> None:
    """End a process of a site: it is asked first, and killed if it does not go."""
    # Zero and below mean groups of processes, and 1 is the testbed's own first one.
    if pid < 2:
        raise UsageError(f"{pid} is not the pid of a site's process", hint=f"`testbed ps {site}` lists them")
    testbed, site = attach_to_site([site], name, "kill")
    rows = testbed.sites[site].processes()
    part = next((row["name"] for row in rows if row["pid"] == pid and row["name"] in PARTS), None)
    testbed.sites[site].kill(pid)
    typer.echo(f"process {pid} of {site} has ended")
    if part is not None:
        typer.echo(
            f"it was the {part} of {site}: without it testbed {testbed.name} is unhealthy\n"
            f"  hint: `testbed down {testbed.name}` and `testbed up` make it anew",
            err=True,
        )
