"""What the verbs on a standing testbed share: which testbed and which site is meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from testbed.api import Testbed
from testbed.standing import require_root, standing
from topologies.errors import UsageError

NameOption = Annotated[
    str | None,
    typer.Option("--name", "-n", metavar="NAME", help="Which testbed; not needed while only one is up."),
]
NameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]", help="Which testbed; not needed while only one is up.", show_default=False
    ),
]


def one_name(argument: str | None, option: str | None) -> str | None:
    """The name that `[NAME]` and `--name` give together, whichever of them was used."""
    if argument is not None and option not in (None, argument):
        raise UsageError(f"two testbeds are named, {argument} and {option}", hint="give one")
    return option if argument is None else argument


def attach(name: str | None, verb: str) -> Testbed:
    """The testbed that a verb is about; refuses before anything else when root is needed and absent."""
    require_root(f"`testbed {verb}`")
    return Testbed.attach(name)


def attach_to_site(words: Sequence[str], name: str | None, verb: str) -> tuple[Testbed, str]:
    """The testbed and the site that `[NAME] SITE` and `--name` mean together.

    Raises:
        UsageError: not one or two words, two different names, or no such testbed or site.
    """
    if not 1 <= len(words) <= 2:
        raise UsageError(f"{verb} takes one site", hint=f"testbed {verb} [NAME] SITE")
    *first, site = words
    name = one_name(first[0] if first else None, name)
    if not first and name is None and len(standing()) > 1:
        raise UsageError(
            f"several testbeds are up: {', '.join(info.name for info in standing())}",
            hint=f"testbed {verb} {site} --name NAME",
        )
    testbed = attach(name, verb)
    testbed.site(site)
    return testbed, site
