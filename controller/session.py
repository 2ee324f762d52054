"""One switch as the controller sees it: a pure state machine.

It is told what happened and answers with commands for the switch. Connecting, a lost rule, a rule that
somebody changed and a restart of the controller are all the same case: read what is there, add what is
missing, delete what is stale, confirm with a barrier, read again. Rules that are right already are never
touched, so traffic goes on.

A change of the plan while all is well comes as an update: rules that are to be added and deleted in a given
order over all switches, each step confirmed by a barrier. The switch is read again when the last is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from controller.rules import FlowRule, difference, is_ours


@dataclass(frozen=True, slots=True)
class ReadRules:
    """Ask for every rule in every table, whoever wrote it."""


@dataclass(frozen=True, slots=True)
class ReadPorts:
    """Ask which ports there are."""


@dataclass(frozen=True, slots=True)
class Add:
    rule: FlowRule


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete exactly this rule, and only if it has our cookie."""

    rule: FlowRule


@dataclass(frozen=True, slots=True)
class Barrier:
    """Ask for an answer once all before it is done."""


Command = ReadRules | ReadPorts | Add | Delete | Barrier


@dataclass(frozen=True, slots=True)
class Installed:
    """A rule a switch holds, and what it has matched. One large segment counts as one packet."""

    rule: FlowRule
    packets: int
    bytes: int


class _Awaiting(Enum):
    NOTHING = "nothing"
    RULES = "its rules"
    BARRIER = "a barrier reply"
    UPDATE = "an update's barrier reply"


MAX_ROUNDS = 3
"""After so many corrections in a row the switch is said not to obey."""


class Session:
    """The state of one switch.

    Args: wanted: the rules it has to hold. patience_s: how long an answer may take before it is asked for
        again and the delay is noted as an error.
    """

    def __init__(self, wanted: Sequence[FlowRule], *, patience_s: float = 10.0) -> None:
        self._wanted = {rule.key: rule for rule in wanted}
        self.connected = False
        self.held = False
        """It is not read and given nothing until `release`: what it has to hold is not known yet."""
        self.in_sync = False
        """The switch has shown that it holds exactly the wanted rules (and perhaps foreign ones)."""
        self.last_error: str | None = None
        self.installed: tuple[Installed, ...] = ()
        self.read_at_s: float | None = None
        self.repairs = 0
        """Rules added or deleted on a switch that was in sync before."""
        self.ports: dict[int, bool] = {}
        """Port number to whether it is up."""
        self._patience_s = patience_s
        self._awaiting = _Awaiting.NOTHING
        self._asked_at_s = 0.0
        self._rounds = 0
        self._barriers: deque[_Awaiting] = deque()
        """What each outstanding barrier confirms; a switch answers them in order."""
        self._outdated = False
        """An update was sent while a reading was on its way: it shows neither the old nor the new plan."""

    @property
    def wanted(self) -> tuple[FlowRule, ...]:
        """The rules the switch has to hold."""
        return tuple(self._wanted.values())

    @property
    def updating(self) -> bool:
        """Whether an update has not been confirmed yet."""
        return _Awaiting.UPDATE in self._barriers

    @property
    def foreign_rules(self) -> int:
        """Rules that are not ours. They are left alone."""
        return sum(not is_ours(entry.rule.cookie) for entry in self.installed)

    def on_connect(self, now_s: float, *, hold: bool = False) -> list[Command]:
        self._forget()
        self.connected = True
        self.held = hold
        self.last_error = None
        return [ReadPorts()] if hold else [ReadPorts(), *self._read(now_s)]

    def release(self, wanted: Sequence[FlowRule], now_s: float) -> list[Command]:
        """Begin with a plan that takes the place of the one before, without any order between switches."""
        self._wanted = {rule.key: rule for rule in wanted}
        self.held = False
        return self._read(now_s) if self.connected else []

    def update(self, add: Iterable[FlowRule], delete: Iterable[FlowRule]) -> list[Command]:
        """Change the plan, and the switch at once if it is connected."""
        add, delete = tuple(add), tuple(delete)
        for rule in delete:
            self._wanted.pop(rule.key, None)
        self._wanted |= {rule.key: rule for rule in add}
        if not self.connected or self.held:
            return []  # it gets the whole plan when it is there
        self.in_sync = False
        self._outdated = self._awaiting is _Awaiting.RULES
        self._barriers.append(_Awaiting.UPDATE)
        return [*(Add(rule) for rule in add), *(Delete(rule) for rule in delete), Barrier()]

    def verify(self, now_s: float) -> list[Command]:
        """Read the switch, unless it is being read anyway."""
        return [] if self._awaiting is not _Awaiting.NOTHING else self.on_tick(now_s)

    def on_disconnect(self) -> None:
        self._forget()

    def on_rules(self, installed: Sequence[Installed], now_s: float) -> list[Command]:
        if self._awaiting is not _Awaiting.RULES:
            return []
        self._awaiting = _Awaiting.NOTHING
        self.installed = tuple(installed)
        self.read_at_s = now_s
        if self._outdated:
            return self._read(now_s)
        add, delete = difference(self.wanted, (entry.rule for entry in installed))
        if not add and not delete:
            self.in_sync = True
            self.last_error = None
            self._rounds = 0
            return []
        if self.in_sync:
            self.in_sync = False
            self.repairs += len(add) + len(delete)
        self._rounds += 1
        if self._rounds > MAX_ROUNDS:
            # Tried again from the next tick on, not in a tight loop.
            self._rounds = 0
            self.last_error = (
                f"{len(add)} rules are missing and {len(delete)} stale ones stay after {MAX_ROUNDS} tries"
            )
            return []
        self._await(_Awaiting.BARRIER, now_s)
        self._barriers.append(_Awaiting.BARRIER)
        return [*(Add(rule) for rule in add), *(Delete(rule) for rule in delete), Barrier()]

    def on_barrier(self, now_s: float) -> list[Command]:
        if not self._barriers or self._barriers.popleft() is _Awaiting.UPDATE:
            return []
        return self._read(now_s) if self._awaiting is _Awaiting.BARRIER else []

    def on_error(self, text: str) -> None:
        """The switch refused something. What it holds is seen at the next reading."""
        self.last_error = text

    def on_port(self, number: int, up: bool | None) -> None:
        """A port came up, went down, or (None) is gone."""
        if up is None:
            self.ports.pop(number, None)
        else:
            self.ports[number] = up

    def on_tick(self, now_s: float) -> list[Command]:
        """Look again: for the counters, and for rules that somebody has changed."""
        if not self.connected or self.held:
            return []
        if self._awaiting is not _Awaiting.NOTHING:
            if now_s - self._asked_at_s < self._patience_s:
                return []
            self.last_error = f"waited {self._patience_s:g} s for {self._awaiting.value} in vain"
        return self._read(now_s)

    def _read(self, now_s: float) -> list[Command]:
        self._await(_Awaiting.RULES, now_s)
        self._outdated = False
        return [ReadRules()]

    def _await(self, what: _Awaiting, now_s: float) -> None:
        self._awaiting = what
        self._asked_at_s = now_s

    def _forget(self) -> None:
        self.connected = False
        self.held = False
        self.in_sync = False
        self.ports = {}
        self._barriers.clear()
        self._awaiting = _Awaiting.NOTHING
        self._rounds = 0
