"""A row of the doctor's table, and what a table of them comes to. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from topologies.errors import StormbedError

APT = "apt-get install --no-install-recommends "


class State(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    MISSING = "missing"


@dataclass(frozen=True)
class Check:
    """One row: what was looked at, what was found, and what follows from it.

    `instead` says what a testbed uses when the state is degraded; `fix` is what to type when it is missing.
    """

    name: str
    state: State
    found: str
    instead: str = ""
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def ok(name: str, found: str) -> Check:
    return Check(name, State.OK, found)


def degraded(name: str, found: str, instead: str, fix: str = "") -> Check:
    return Check(name, State.DEGRADED, found, instead=instead, fix=fix)


def missing(name: str, found: str, fix: str) -> Check:
    return Check(name, State.MISSING, found, fix=fix)


def rows_of(name: str, check: Callable[[], Check | list[Check]]) -> list[Check]:
    """What a check finds; a check that fails is a row that says why, and the others are still made."""
    try:
        found = check()
    except StormbedError as error:
        return [missing(name, error.message, error.hint or "see what it says")]
    except OSError as error:
        return [missing(name, str(error), "see what it says")]
    return found if isinstance(found, list) else [found]


def fit(rows: Iterable[Check]) -> bool:
    """Whether a testbed can be brought up: nothing required is missing."""
    return all(row.state is not State.MISSING for row in rows)
