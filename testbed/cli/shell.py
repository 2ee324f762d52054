"""`testbed shell [NAME] SITE`: a login shell at a site."""

from __future__ import annotations

from typing import Annotated

import typer

from testbed.cli.exec import enter
from testbed.cli.select import NameOption, attach_to_site


def register(app: typer.Typer) -> None:
    app.command("shell")(shell)


def shell(
    where: Annotated[list[str], typer.Argument(metavar="[NAME] SITE", help="Where.")],
    name: NameOption = None,
) -> None:
    """Open a shell at a site, as `ssh -F .../ssh_config SITE` would."""
    testbed, site = attach_to_site(where, name, "shell")
    enter(testbed.sites[site].argv(["bash", "--login"]), testbed.sites[site].environment())
