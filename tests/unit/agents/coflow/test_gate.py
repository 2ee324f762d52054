"""The gate of an uplink: strict by key among those that move, work-conserving when the first stands still."""

from __future__ import annotations

import random

import pytest

from agents.coflow.base import CoflowError
from agents.coflow.gate import UplinkGate

HIGH, LOW = (-7.0, 0.0), (-6.0, 1.0)


def test_the_better_key_goes_and_the_other_waits_for_its_end() -> None:
    gate: UplinkGate[str] = UplinkGate(0.05)
    gate.wants("low", LOW, 0.0)
    assert gate.admits("low", 0.0)
    gate.wants("high", HIGH, 1.0)
    assert gate.admits("high", 1.0) and not gate.admits("low", 1.0)
    assert gate.first == "high" and gate.held_until("low", 1.0) == pytest.approx(1.05)
    assert gate.idle("high") and gate.admits("low", 1.0)
    assert not gate.idle("high"), "it had gone already"


def test_one_that_stands_still_is_passed_until_it_moves_again() -> None:
    gate: UplinkGate[str] = UplinkGate(0.05)
    gate.wants("high", HIGH, 0.0)
    gate.wants("low", LOW, 0.0)
    for step in range(10):
        gate.moved("high", step * 0.04)
        assert not gate.admits("low", step * 0.04 + 0.03)
    assert gate.admits("low", 0.36 + 0.05), "the link must not idle for one that is held up elsewhere"
    gate.moved("high", 0.5)
    assert not gate.admits("low", 0.51)


def test_equals_do_not_hold_each_other_and_messages_go_before_all() -> None:
    gate: UplinkGate[str] = UplinkGate()
    gate.wants("a", HIGH, 0.0)
    gate.wants("b", HIGH, 0.0)
    assert gate.admits("a", 0.0) and gate.admits("b", 0.0)
    gate.wants("message", (), 0.0)
    assert gate.admits("message", 0.0) and not gate.admits("a", 0.0)


def test_a_new_key_counts_at_once() -> None:
    gate: UplinkGate[str] = UplinkGate()
    gate.wants("a", HIGH, 0.0)
    gate.wants("b", LOW, 0.0)
    gate.wants("b", (-7.0, -1.0), 0.01)
    assert gate.admits("b", 0.01) and not gate.admits("a", 0.01)


def test_somebody_may_always_send() -> None:
    """Whatever happens: of those that wait, the first in line is admitted."""
    rng = random.Random(4)
    gate: UplinkGate[int] = UplinkGate(0.05)
    waiting: set[int] = set()
    now = 0.0
    for _ in range(3000):
        now += rng.choice((0.0, 0.001, 0.03, 0.2))
        lane = rng.randrange(6)
        what = rng.randrange(3)
        if what == 0:
            gate.wants(lane, (-float(rng.randrange(8)), float(rng.randrange(3))), now)
            waiting.add(lane)
        elif what == 1:
            gate.moved(lane, now)
        else:
            gate.idle(lane)
            waiting.discard(lane)
        if waiting:
            assert gate.first in waiting and gate.admits(gate.first, now)
            assert all(gate.admits(k, now + 0.05) for k in waiting), "patience ends for all"
        else:
            assert gate.first is None


def test_a_gate_without_patience_is_refused() -> None:
    with pytest.raises(CoflowError, match="patience of 0"):
        UplinkGate(0)
