"""Which testbeds stand on this machine, and which one is meant when no name is given."""

from __future__ import annotations

import os

from testbed.emulation.launch import list_testbeds
from testbed.emulation.rundir import TestbedInfo, check_name
from topologies.errors import CannotHonourError, UsageError
from topologies.model import nearest


def require_root(what: str) -> None:
    """Refuse early and plainly what only root can do.

    Args:
        what: as it reads before "needs root", such as "`testbed exec`".

    Raises:
        CannotHonourError: this process is not root's.
    """
    if os.geteuid() != 0:
        raise CannotHonourError(
            f"{what} needs root, and this is user {os.geteuid()}", hint="run it with sudo"
        )


def standing() -> tuple[TestbedInfo, ...]:
    """Every testbed that is up, by name; not one that is still coming up or whose supervisor has died."""
    return tuple(
        listed.info
        for listed in list_testbeds()
        if listed.alive and listed.info is not None and listed.info.state == "up"
    )


def find(name: str | None = None) -> TestbedInfo:
    """The testbed of this name, or the only one that stands.

    Raises:
        UsageError: it is not up (the nearest name is the hint), none is, or several are and no name is given.
    """
    found = {info.name: info for info in standing()}
    if name is None:
        if len(found) == 1:
            return next(iter(found.values()))
        if not found:
            raise UsageError("no testbed is up", hint="testbed up netstorm-9")
        raise UsageError(
            f"several testbeds are up: {', '.join(found)}",
            hint=f"name one of them, such as {next(iter(found))}",
        )
    check_name(name)
    if name not in found:
        _refuse_what_is_not_up(name)
        if not found:
            raise UsageError(
                f"no testbed {name!r} is up, nor any other", hint=f"testbed up netstorm-9 --name {name}"
            )
        raise UsageError(f"no testbed {name!r} is up", hint=nearest(name, tuple(found)))
    return found[name]


def _refuse_what_is_not_up(name: str) -> None:
    """Say what there is of a testbed that is not up; nothing when there is nothing."""
    for listed in list_testbeds():
        if listed.name == name:
            if listed.alive:
                raise UsageError(f"testbed {name!r} is just being brought up", hint="wait for its `up`, or end it")
            raise UsageError(
                f"testbed {name!r} has ended, or was never brought up completely, and has left files",
                hint=f"`testbed clean {name}` removes what is left of it",
            )
