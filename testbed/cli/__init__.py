"""The command `testbed`, one verb a file.

A verb's module offers `register(app)`, which adds its command (or group of commands) to the application.
Modules import whatever is heavy inside their functions, so that `testbed --help` answers at once and every
verb that needs neither mininet nor torch works without them.
"""

from __future__ import annotations

import importlib
import pkgutil
import signal
import sys
from types import FrameType
from typing import NoReturn

import typer

from testbed.cli.errors import exit_code_of, spell_out

# In the order of `testbed --help`: before, during and after a testbed stands. Others follow by name.
ORDER = (
    *("doctor", "validate", "graph", "plan", "bound", "demo"),
    *("up", "list", "status", "dashboard", "calibrate", "link", "exec", "shell", "ps"),
    *("run", "runs", "report", "compare", "sweep", "torchrun", "coflow", "trace"),
    *("next_steps", "down", "clean", "reference"),
)

HELP = """An emulated multi-datacenter testbed for geo-distributed training.

Exit codes: 0 ok, 1 internal error, 2 usage or invalid file, 3 fidelity out of band, 4 this machine
cannot do it, 5 run failed, 6 clean-up incomplete, 130 interrupted after a clean teardown."""


def verbs() -> list[str]:
    """The modules of this package in the order of the help."""
    found = {module.name for module in pkgutil.iter_modules(__path__)}
    return [verb for verb in ORDER if verb in found] + sorted(found.difference(ORDER))


def build() -> typer.Typer:
    """The application with every verb that is installed."""
    app = typer.Typer(
        name="testbed",
        help=HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for verb in verbs():
        module = importlib.import_module(f"testbed.cli.{verb}")
        # The others are what the verbs share.
        if hasattr(module, "register"):
            module.register(app)
    return app


def main() -> NoReturn:
    """Run the command line and exit with the documented code."""
    signal.signal(signal.SIGTERM, _terminated)
    spell_out(sys.stdout, sys.stderr)
    sys.exit(exit_code_of(lambda: build()(prog_name="testbed")))


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"stormbed {version('stormbed')}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
) -> None:
    pass


def _terminated(signum: int, frame: FrameType | None) -> NoReturn:
    # A polite kill takes the same way out as Ctrl-C: what was half made is taken down again.
    raise KeyboardInterrupt
