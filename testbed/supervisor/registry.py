"""The verbs of a supervisor by name: how one is registered, and how its arguments are checked."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from testbed.supervisor.state import Supervisor
from topologies.errors import UsageError

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb's function, its deadline in seconds, and whether it changes something (those go one by one)."""

    function: Callable[..., Any]
    seconds: float
    changes: bool

    def deadline(self, arguments: Mapping[str, Any]) -> float:
        extra = arguments.get("seconds", 0)
        return self.seconds + (4 * extra if isinstance(extra, int | float) else 0)


VERBS: Final[dict[str, Verb]] = {}


def bind(
    verb: Verb, supervisor: Supervisor, progress: Progress, arguments: Mapping[str, Any]
) -> Callable[[], Any]:
    """The verb's call, its arguments checked by name."""
    try:
        inspect.signature(verb.function).bind(supervisor, progress, **arguments)
    except TypeError as error:
        raise UsageError(f"{verb.function.__name__}: {error}") from None
    return functools.partial(verb.function, supervisor, progress, **arguments)


def verb(seconds: float = 20, changes: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        VERBS[function.__name__] = Verb(function, seconds, changes)
        return function

    return register
