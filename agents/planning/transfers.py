"""Schedulers that decide per transfer: what they are told and what they answer.

A plan fixes trees ahead. A scheduler of this kind is asked while the collective runs: each time a site could
send, it names the receiver, from what it has seen so far. Sums travel to a server site, which has the result
when all contributions have come together there; then the result spreads from site to site. The coordinator
holds the decider, tells it events in the order in which they reach it, and carries out what it answers
(`agents.sync.transfer_coordinator`). A decider is deterministic: the same events give the same decisions, so
a logged run can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Key = tuple[int, int]
"""(round, chunk): the collective's number and the chunk's within it. Each is summed and spread by itself."""

Direction = Literal["up", "down"]


@dataclass(frozen=True, slots=True)
class Ready:
    """The partial sum of `key` at `site` may travel or take in another: after its own contribution, and after
    each partial sum that it has taken in.
    """

    key: Key
    site: int


@dataclass(frozen=True, slots=True)
class Holds:
    """`site` has the result of `key` and is free to give it on. Repeated until nobody is left without."""

    key: Key
    site: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of `key`, of `nbytes`, took `seconds` from `src` to `dst`."""

    key: Key
    src: int
    dst: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Returned:
    """The delivery of `key` to `site` did not come about in time: `site` is to be served by someone again."""

    key: Key
    site: int


Event = Ready | Holds | Measured | Returned


@dataclass(frozen=True, slots=True)
class Transfer:
    """`src` is to send `key` to `dst`: its partial sum (up), after which it is done with it, or the result.

    For the log of decisions (`agents.sync.decisions`):
    mode    why this one, in a word
    draw    the random number behind it, if any; chance: what it had to be below to follow what is known
    seen    the links that were looked at: (from, to, what is known of it; None = nothing)
    """

    key: Key
    direction: Direction
    src: int
    dst: int
    mode: str
    draw: float | None = None
    chance: float | None = None
    seen: tuple[tuple[int, int, float | None], ...] = ()


class Decider(Protocol):
    """The state of one job's decisions."""

    def decide(self, event: Event) -> Transfer | None:
        """What an event leads to, at most one transfer."""
        ...

    def forget(self, round_number: int) -> None:
        """All keys of a round are everywhere: drop what belongs to them."""
        ...


class TransferRule(Protocol):
    """What a scheduler of this kind is, apart from a job: comparable, and the maker of deciders."""

    @property
    def server(self) -> int:
        """The site at which sums come together."""
        ...

    @property
    def lease_s(self) -> float:
        """The least time that a transfer may take before it is decided anew."""
        ...

    def decider(self, n_sites: int) -> Decider:
        """A fresh state for a job of so many sites."""
        ...


@dataclass(frozen=True)
class Transfers:
    """In a plan: all-reduces of floating type are decided per transfer. Sites get it without the rule."""

    server: int
    rule: TransferRule | None = None
