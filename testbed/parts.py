"""What a testbed consists of, and which of it has ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

PARTS: Final = frozenset({"controller", "delay-line", "sshd", "agent", "coordinator", "prometheus"})
"""The names under which the supervisor starts them."""


def ended_parts(processes: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The testbed's own processes that have ended, which none should while it stands. Pure.

    Args:
        processes: as the supervisor's `status` gives them; those that users started are among them.
    """
    return tuple(
        f"{process['name']} of {process['site']}" if process["site"] else process["name"]
        for process in processes
        if process["status"] is not None and process["name"] in PARTS
    )
