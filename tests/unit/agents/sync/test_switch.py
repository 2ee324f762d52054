"""A change of plan inside a collective: what is asked and promised, and where it takes effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agents.planning.base import NetworkView, Plan, Tree
from agents.planning.timing import timing_of
from agents.planning.tsengine import TsEngine
from agents.sync.actions import Send, SendControl, SendToSite, SiteAction
from agents.sync.coordinator_machine import CoordinatorMachine
from agents.sync.messages import (
    Announce,
    ChunkMessage,
    ProtocolError,
    Ready,
    Release,
    SwitchMessage,
    control_from_dict,
    control_to_dict,
)
from agents.sync.payload import GhostPayload
from agents.sync.policy import Policy
from agents.sync.site_machine import ALL, SiteMachine
from agents.sync.spec import allreduce

PAIR = NetworkView(2, {(0, 1): 1e6, (1, 0): 1e6})
SPEC = allreduce(100)


def plan(root: int = 0, run_ahead: float | None = 0.0) -> Plan:
    tree = Tree(root, 1.0, 0.0, (None, 0) if root == 0 else (1, None))
    return Plan("own", (tree,), "slack", "smooth", run_ahead, timing_of((tree,), PAIR))


def sent(actions: list[SiteAction]) -> list[tuple[int, int]]:
    """(chunk, version) of the chunks that go out."""
    return [(a.message.chunk, a.message.version) for a in actions if isinstance(a, Send)]


class Site:
    """Site 1 of a pair, ten chunks, a window of two."""

    def __init__(self, first: Plan) -> None:
        self.machine = SiteMachine("job", 1, ("a", "b"))
        self.machine.begin(0, SPEC, lambda chunk: GhostPayload.of(1, 4 * chunk.size))
        self.released = self.machine.on_message(Release("job", 0, 1, Policy(1, 0, first, 10)))

    def ask(self) -> SwitchMessage:
        (action,) = self.machine.on_message(SwitchMessage("job", 1, 0, "ask", 1))
        assert isinstance(action, SendControl) and isinstance(action.message, SwitchMessage)
        return action.message

    def switch(self, limit: int, policy: Policy | None) -> list[SiteAction]:
        return self.machine.on_message(SwitchMessage("job", 1, 0, "switch", 1, limit, 10, policy))

    def chunk(self, index: int, direction: str, version: int, size: int = 10) -> list[SiteAction]:
        both = GhostPayload(4 * size, 3) if direction == "down" else GhostPayload.of(0, 4 * size)
        return self.machine.on_message(
            ChunkMessage("job", 0, version, 0, index, direction, 0, 0, both)  # type: ignore[arg-type]
        )


def test_a_site_promises_its_window_and_keeps_to_it() -> None:
    site = Site(plan())
    assert sent(site.released) == [(0, 1), (1, 1)]
    assert site.ask() == SwitchMessage("job", 1, 0, "promise", 1, 2, 10)
    assert site.ask().limit == 2  # asked twice, answered alike
    assert sent(site.chunk(0, "down", 1)) == []  # the window would allow chunk 2
    actions = site.switch(4, Policy(2, 1, plan(), 10))
    # Chunks 2 and 3 are of the old plan, what follows of the new one; the window goes on.
    assert sent(actions) == [(2, 1)]
    assert sent(site.chunk(1, "down", 1)) == [(3, 1)]
    assert sent(site.chunk(2, "down", 1)) == [(4, 2)]
    assert site.machine.installed == (1, 2)
    # One that is announced from the next collective on replaces both, which this one still needs.
    site.machine.on_message(Announce("job", 1, 3, Policy(3, 1, plan(root=1), 10), 0, 1))
    assert site.machine.installed == (1, 2, 3)


def test_the_rest_is_cut_anew_and_everything_arrives() -> None:
    site = Site(plan())
    site.ask()
    # The new tree has its root here, so site a sends up what it sent down before; chunks are larger.
    actions = site.switch(2, Policy(2, 1, plan(root=1), 30))
    assert sent(actions) == []
    for index in (0, 1):
        site.chunk(index, "down", 1)
    table = list(site.machine._open[0]._chunks)
    assert [(s.chunk.index, s.chunk.offset, s.chunk.size) for s in table] == [
        (0, 0, 10),
        (1, 10, 10),
        (2, 20, 26),
        (3, 46, 27),
        (4, 73, 27),
    ]
    for state in table[2:]:
        assert sent(site.chunk(state.chunk.index, "up", 2, state.chunk.size)) == [(state.chunk.index, 2)]
    assert site.machine.completed_below == 1


def test_chunks_of_the_new_plan_may_be_ahead_of_the_switch() -> None:
    site = Site(plan())
    with pytest.raises(ProtocolError, match="newer than policy 1"):
        site.chunk(5, "up", 2)
    site.ask()
    assert site.chunk(2, "up", 2, 26) == []
    assert site.machine.held == 1
    assert sent(site.switch(2, Policy(2, 1, plan(root=1), 30))) == [(2, 2)]
    assert site.machine.held == 0


def test_no_switch_lets_go_of_what_was_held_back() -> None:
    site = Site(plan())
    site.ask()
    assert sent(site.chunk(0, "down", 1)) == []
    assert sent(site.switch(10, None)) == [(2, 1)]


def test_what_comes_again_after_a_switch_changes_nothing() -> None:
    """A question that is repeated late would hold back the rest for good; a release names the first policy."""
    site = Site(plan())
    site.ask()
    site.switch(4, Policy(2, 1, plan(), 10))
    before = site.machine.duplicates
    assert site.machine.on_message(SwitchMessage("job", site.machine.site, 0, "ask", 1)) == []
    assert site.machine.on_message(SwitchMessage("job", site.machine.site, 0, "switch", 1, 10, 10)) == []
    assert site.machine.on_message(Release("job", 0, 1, Policy(1, 0, plan(), 10))) == []
    assert site.machine.duplicates == before + 3
    assert sent(site.chunk(0, "down", 1)) == [(2, 1)]
    assert sent(site.chunk(1, "down", 1)) == [(3, 1)]
    with pytest.raises(ProtocolError, match="two releases of collective 0, under policy 1 and under policy 2"):
        site.machine.on_message(Release("job", 0, 2, None))


def test_without_a_window_everything_has_been_begun() -> None:
    site = Site(plan(run_ahead=None))
    assert len(sent(site.released)) == 10
    assert (site.ask().limit, site.ask().total) == (10, 10)
    site.machine.on_message(SwitchMessage("job", 1, 7, "ask", 2))
    elsewhere = SiteMachine("job", 0, ("a", "b"))
    (action,) = elsewhere.on_message(SwitchMessage("job", 0, 0, "ask", 1))
    assert isinstance(action, SendControl)
    assert action.message.limit == ALL  # type: ignore[union-attr]


def test_a_begun_chunk_cannot_change_its_policy() -> None:
    site = Site(plan(root=1))
    site.ask()
    site.chunk(0, "up", 1)
    with pytest.raises(ProtocolError, match="was begun"):
        site.switch(0, Policy(2, 1, plan(), 10))


# ---- the coordinator


def coordinator() -> CoordinatorMachine:
    machine = CoordinatorMachine("job", ("a", "b"), clock=lambda: 0.0)
    machine.set_plan(plan(), 10)
    for site in (0, 1):
        machine.on_message(Ready("job", site, 0, SPEC.digest, SPEC.summary, 0))
    return machine


def promise(machine: CoordinatorMachine, site: int, limit: int, number: int = 1) -> list[SendToSite]:
    return machine.on_message(SwitchMessage("job", site, 0, "promise", number, limit, 10))


def switches(actions: list[SendToSite]) -> list[tuple[int, str, int, int | None]]:
    """(site, verb, limit, new version)."""
    messages = [(action.dst, action.message) for action in actions]
    assert all(isinstance(message, SwitchMessage) and message.site == dst for dst, message in messages)
    return [
        (dst, m.verb, m.limit, None if m.policy is None else m.policy.version)  # type: ignore[union-attr]
        for dst, m in messages
    ]


def test_the_largest_promise_is_where_the_new_plan_begins() -> None:
    machine = coordinator()
    asked = machine.replan_within(0, plan(root=1), 20)
    assert switches(asked) == [(0, "ask", 0, None), (1, "ask", 0, None)]
    assert promise(machine, 0, 3) == []
    assert promise(machine, 0, 3) == []  # repeated
    assert switches(promise(machine, 1, 5)) == [(0, "switch", 5, 2), (1, "switch", 5, 2)]
    assert promise(machine, 1, 5) == []
    assert machine.version == 2
    assert machine.policy is not None
    assert (machine.policy.from_seq, machine.policy.chunk_elements) == (1, 20)
    # The next collective is released under it, without sending it again.
    for site in (0, 1):
        released = machine.on_message(Ready("job", site, 1, SPEC.digest, SPEC.summary, 0))
    assert [(a.message.version, a.message.policy) for a in released] == [(2, None)] * 2  # type: ignore[union-attr]


def test_with_nothing_left_the_plan_waits_for_the_next_release() -> None:
    machine = coordinator()
    machine.replan_within(0, plan(root=1), 20)
    promise(machine, 0, 10)
    assert switches(promise(machine, 1, 4)) == [(0, "switch", 10, None), (1, "switch", 10, None)]
    assert machine.version == 1
    for site in (0, 1):
        released = machine.on_message(Ready("job", site, 1, SPEC.digest, SPEC.summary, 0))
    assert {a.message.version for a in released} == {2}  # type: ignore[union-attr]


def test_the_last_of_several_plans_wins() -> None:
    machine = coordinator()
    machine.replan_within(0, plan(), 20)
    assert machine.replan_within(0, plan(root=1), 30) == []
    promise(machine, 0, 3)
    promise(machine, 1, 3)
    assert machine.policy is not None
    assert machine.policy.chunk_elements == 30
    machine.set_plan(plan(), 40)
    machine.replan_within(0, plan(root=1), 50)
    promise(machine, 0, 3, 2)
    promise(machine, 1, 3, 2)
    assert machine.version == 3
    for site in (0, 1):
        released = machine.on_message(Ready("job", site, 1, SPEC.digest, SPEC.summary, 0))
    assert {a.message.version for a in released} == {4}  # type: ignore[union-attr]


def test_what_is_not_under_way_is_planned_for_the_next_release() -> None:
    machine = coordinator()
    assert machine.replan_within(3, plan(root=1), 20) == []
    assert machine.replan_within(0, TsEngine().plan(PAIR), 20) == []
    assert machine.version == 1


def test_messages_survive_the_wire() -> None:
    message = SwitchMessage("job", 1, 7, "switch", 3, 4, 10, Policy(2, 8, plan(), 10))
    assert control_from_dict(control_to_dict(message)) == message
    asked = replace(message, verb="ask", policy=None)
    assert control_from_dict(control_to_dict(asked)) == asked
