"""The controller's side of one switch, played against the model switch."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.rules import FlowRule, Kind, RuleId, plan_rules
from controller.session import MAX_ROUNDS, Add, Barrier, Command, Delete, ReadPorts, ReadRules, Session
from controller.table import ModelSwitch
from topologies.load import load_topology
from topologies.paths import path_sets

TOPOLOGY = load_topology("triangle")
WANTED = plan_rules(TOPOLOGY, path_sets(TOPOLOGY))[1]
STALE = FlowRule(
    1, 200, (("eth_type", 0x0800), ("ipv4_dst", "9.9.9.9")), RuleId(Kind.PATH, 3, 1, 2).cookie, output=2
)
FOREIGN = FlowRule(1, 7, (("eth_type", 0x0806),), cookie=5)


def play(session: Session, switch: ModelSwitch, commands: list[Command], now_s: float = 0.0) -> list[Command]:
    """Let the two talk until neither has anything to say; what was said is returned."""
    said: list[Command] = []
    while commands:
        said += commands
        commands, questions = [], switch.execute(commands)
        for question in questions:
            if isinstance(question, ReadRules):
                commands += session.on_rules(switch.entries, now_s)
            elif isinstance(question, Barrier):
                commands += session.on_barrier(now_s)
    return said


def changes(said: list[Command]) -> list[Command]:
    return [command for command in said if isinstance(command, (Add, Delete))]


def test_an_empty_switch_gets_everything_and_is_read_back() -> None:
    session, switch = Session(WANTED), ModelSwitch(1)
    said = play(session, switch, session.on_connect(0))
    assert said[0] == ReadPorts()
    assert isinstance(said[-2], Barrier) and isinstance(said[-1], ReadRules)
    assert switch.rules == set(WANTED)
    assert session.in_sync and session.last_error is None and session.repairs == 0


def test_a_restarted_controller_touches_nothing() -> None:
    switch = ModelSwitch(1)
    first = Session(WANTED)
    play(first, switch, first.on_connect(0))
    second = Session(WANTED)
    assert changes(play(second, switch, second.on_connect(0))) == []
    assert second.in_sync


def test_stale_rules_go_and_foreign_ones_stay() -> None:
    session, switch = Session(WANTED), ModelSwitch(1)
    for held in (*WANTED[:-3], STALE, FOREIGN, replace(WANTED[-4], output=7)):
        switch.add(held)
    said = changes(play(session, switch, session.on_connect(0)))
    assert switch.rules == {*WANTED, FOREIGN}
    assert len(said) == 5 and said[-1] == Delete(STALE), "adding comes before deleting"
    assert session.in_sync and session.foreign_rules == 1


def test_a_rule_lost_later_is_put_back_and_counted() -> None:
    session, switch = Session(WANTED), ModelSwitch(1)
    play(session, switch, session.on_connect(0))
    switch.delete(WANTED[0])
    switch.add(STALE)
    said = changes(play(session, switch, session.on_tick(5)))
    assert said == [Add(WANTED[0]), Delete(STALE)]
    assert session.in_sync and session.repairs == 2
    assert changes(play(session, switch, session.on_tick(10))) == []


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_from_whatever_a_switch_holds_to_the_plan(data: st.DataObject) -> None:
    session, switch = Session(WANTED), ModelSwitch(1)
    ports = st.integers(1, 4)
    for held in data.draw(st.lists(st.sampled_from(WANTED))):
        switch.add(replace(held, output=data.draw(ports)) if data.draw(st.booleans()) else held)
    play(session, switch, session.on_connect(0))
    assert switch.rules == set(WANTED) and session.in_sync


def test_a_switch_that_does_not_obey_is_said_so_and_tried_again() -> None:
    session = Session(WANTED)
    tries = 0
    commands = session.on_connect(0)
    while commands:
        commands = session.on_rules((), 0)
        tries += bool(commands)
        commands = session.on_barrier(0) if commands else []
    assert tries == MAX_ROUNDS
    assert not session.in_sync
    assert session.last_error is not None and f"{len(WANTED)} rules are missing" in session.last_error
    assert session.on_tick(1) == [ReadRules()]
    switch = ModelSwitch(1)
    play(session, switch, session.on_rules(switch.entries, 1))
    assert session.in_sync and session.last_error is None


def test_a_silent_switch_is_asked_again_after_a_while() -> None:
    session = Session(WANTED, patience_s=10)
    session.on_connect(0)
    assert session.on_tick(9) == []
    assert session.on_tick(10) == [ReadRules()]
    assert session.last_error == "waited 10 s for its rules in vain"
    assert session.on_tick(11) == []


def test_late_answers_are_ignored() -> None:
    session, switch = Session(WANTED), ModelSwitch(1)
    play(session, switch, session.on_connect(0))
    assert session.on_barrier(0) == []
    assert session.on_rules((), 0) == [] and session.in_sync


def test_a_disconnected_switch_is_not_in_sync() -> None:
    session, switch = Session(WANTED), ModelSwitch(1)
    play(session, switch, session.on_connect(0))
    session.on_port(1, True)
    session.on_disconnect()
    assert (session.connected, session.in_sync, session.ports) == (False, False, {})
    assert session.on_tick(1) == []


def test_an_error_is_kept_until_the_rules_are_right() -> None:
    session, switch = Session(WANTED), ModelSwitch(1)
    commands = session.on_connect(0)
    session.on_error("table full")
    assert session.last_error == "table full"
    play(session, switch, commands)
    assert session.last_error is None


@pytest.mark.parametrize("up", [True, False])
def test_ports(up: bool) -> None:
    session = Session(WANTED)
    session.on_port(2, up)
    assert session.ports == {2: up}
    session.on_port(2, None)
    session.on_port(9, None)
    assert session.ports == {}
