"""`testbed exec [NAME] SITE -- COMMAND`: run a command at a site, with this terminal."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from testbed.cli.select import NameOption, attach_to_site
from testbed.standing import standing
from topologies.errors import UsageError

# What a command at a site takes from the caller's environment: only how the terminal is to be written to.
TERMINAL = ("TERM", "COLORTERM", "NO_COLOR")
_COMMAND = "stormbed.command"


class CommandAfterDashes(TyperCommand):
    """Keeps what comes after the first `--` apart: it belongs to the command, options and all."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta[_COMMAND] = args[:cut], args[cut + 1 :]
        return list(super().parse_args(ctx, args))


def register(app: typer.Typer) -> None:
    app.command("exec", cls=CommandAfterDashes, options_metavar="", no_args_is_help=True)(exec_)


def exec_(
    ctx: typer.Context,
    where: Annotated[list[str], typer.Argument(metavar="[NAME] SITE -- COMMAND...", help="Where, and what.")],
    name: NameOption = None,
) -> None:
    """Run a command at a site; the exit code is the command's."""
    command = ctx.meta.get(_COMMAND)
    if not command:
        hint = f"testbed exec {where[0]} -- {' '.join(where[1:]) or 'hostname'}"
        if len(where) == 2 and any(info.name == where[0] for info in standing()):
            hint = f"testbed exec {' '.join(where)} -- hostname"
        raise UsageError("exec needs a command after --", hint=hint)
    testbed, site = attach_to_site(where, name, "exec")
    enter(testbed.sites[site].argv(command), testbed.sites[site].environment())


def enter(argv: list[str], environment: dict[str, str]) -> None:
    """Become the command: its signals, terminal and exit code are then its own."""
    terminal = {key: os.environ[key] for key in TERMINAL if key in os.environ}
    os.execvpe(argv[0], argv, environment | terminal)
