"""The barrier and the issue of policies, one message at a time."""

from __future__ import annotations

import pytest

from agents.planning.base import Plan, Tree
from agents.sync import spec as collectives
from agents.sync.actions import CoordinatorAction
from agents.sync.coordinator_machine import CoordinatorMachine
from agents.sync.messages import Abort, Announce, PlanAck, ProtocolError, Ready, Release
from agents.sync.spec import CollectiveSpec
from topologies.errors import UsageError

NAMES = ("dc1", "dc2", "dc3")
PLAN_A = Plan("a", (Tree(0, 1.0, 0.0, (None, 0, 0)),))
PLAN_B = Plan("b", (Tree(1, 1.0, 0.0, (1, None, 1)),))
SPEC = collectives.allreduce(4)


def ready(site: int, seq: int, completed: int = 0, spec: CollectiveSpec = SPEC) -> Ready:
    return Ready("job", site, seq, spec.digest, spec.summary, completed)


def started(plan: Plan | None = PLAN_A) -> CoordinatorMachine:
    machine = CoordinatorMachine("job", NAMES)
    if plan is not None:
        assert machine.set_plan(plan, 10, {(1, 0): 2}) == []
    return machine


def all_ready(machine: CoordinatorMachine, seq: int, completed: int = 0) -> list[Release]:
    actions: list[CoordinatorAction] = []
    for site in range(3):
        actions += machine.on_message(ready(site, seq, completed))
    assert [action.dst for action in actions] == [0, 1, 2] * (len(actions) // 3)
    releases = [action.message for action in actions]
    assert all(isinstance(r, Release) for r in releases)
    return releases  # type: ignore[return-value]


def test_release_when_the_last_site_is_ready() -> None:
    machine = started()
    assert machine.on_message(ready(0, 0)) == machine.on_message(ready(2, 0)) == []
    assert machine.waiting_for(0).sites == (1,)
    assert "dc2 to be ready for collective 0" in str(machine.waiting_for(0))
    actions = machine.on_message(ready(1, 0))
    assert [action.dst for action in actions] == [0, 1, 2]
    message = actions[0].message
    assert isinstance(message, Release)
    assert (message.seq, message.version) == (0, 1)
    assert message.policy is not None
    assert (message.policy.version, message.policy.from_seq, message.policy.plan) == (1, 0, PLAN_A)
    assert (message.policy.chunk_elements, message.policy.hop_paths) == (10, {(1, 0): 2})
    assert "released" in str(machine.waiting_for(0))


def test_a_policy_travels_once() -> None:
    machine = started()
    assert all_ready(machine, 0)[0].policy is not None
    assert all_ready(machine, 1)[0].policy is None
    assert machine.version == 1


def test_a_new_plan_holds_from_the_next_release_and_the_last_one_wins() -> None:
    machine = started()
    all_ready(machine, 0)
    machine.on_message(ready(0, 1))
    machine.set_plan(PLAN_A, 99)
    machine.set_plan(PLAN_B, 10)
    machine.on_message(ready(1, 1))
    (*_, last) = machine.on_message(ready(2, 1))
    assert isinstance(last.message, Release)
    policy = last.message.policy
    assert policy is not None
    assert (policy.version, policy.from_seq, policy.plan, policy.chunk_elements) == (2, 1, PLAN_B, 10)
    assert machine.policy == policy


def test_the_same_plan_again_is_no_new_version() -> None:
    machine = started()
    all_ready(machine, 0)
    machine.set_plan(PLAN_B, 10)
    machine.set_plan(PLAN_A, 10, {(1, 0): 2})  # back to the current one before anything was released
    (first, *_) = all_ready(machine, 1)
    assert (first.version, first.policy) == (1, None)


def test_the_first_plan_releases_what_waited_for_it() -> None:
    machine = started(plan=None)
    assert all_ready(machine, 0) == []
    assert "the first plan" in str(machine.waiting_for(0))
    assert [type(action.message) for action in machine.set_plan(PLAN_A, 10)] == [Release] * 3


def test_sites_may_run_ahead() -> None:
    machine = started()
    for seq in range(3):
        machine.on_message(ready(0, seq))
        machine.on_message(ready(1, seq))
    assert machine.waiting_for(2).sites == (2,)
    for seq in range(3):
        released = machine.on_message(ready(2, seq))
        assert [action.message.seq for action in released if isinstance(action.message, Release)] == [seq] * 3


def test_repeated_and_skipped_ready() -> None:
    machine = started()
    machine.on_message(ready(0, 0))
    assert machine.on_message(ready(0, 0)) == []
    with pytest.raises(ProtocolError, match="dc1 is ready for collective 2, but its next one is 1"):
        machine.on_message(ready(0, 2))
    with pytest.raises(ProtocolError, match="no site 3"):
        machine.on_message(ready(3, 0))
    with pytest.raises(ProtocolError, match="job other"):
        machine.on_message(PlanAck("other", 0, 1))


def test_sites_that_disagree_are_named() -> None:
    machine = started()
    machine.on_message(ready(0, 0))
    actions = machine.on_message(ready(2, 0, spec=collectives.broadcast(7, 1, 3)))
    cause = (
        "the sites do not agree on collective 0 of job job: "
        "dc1 submitted allreduce sum float32 [4]; dc3 submitted broadcast float32 [7]"
    )
    assert [action.message for action in actions] == [Abort("job", cause)] * 3
    assert machine.aborted == cause
    assert machine.on_message(ready(1, 0)) == machine.set_plan(PLAN_B, 10) == machine.abort("again") == []


def test_policies_retire_when_all_have_the_next_and_nothing_old_is_open() -> None:
    machine = started()
    all_ready(machine, 0)
    machine.set_plan(PLAN_B, 10)
    (release, *_) = all_ready(machine, 1)
    assert (release.version, release.retired_below) == (2, 0)
    assert machine.retained == (1, 2)
    for site in (0, 1):
        machine.on_message(PlanAck("job", site, 2))
    assert machine.acked(2) == {0, 1}
    (release, *_) = all_ready(
        machine, 2, completed=1
    )  # collective 0 is complete, but one site has not acknowledged
    assert release.retired_below == 0
    machine.on_message(PlanAck("job", 2, 2))
    assert machine.retained == (2,)
    (release, *_) = all_ready(machine, 3, completed=1)
    assert release.retired_below == 2
    machine.on_message(PlanAck("job", 2, 1))  # late, of a policy that is gone
    with pytest.raises(ProtocolError, match="acknowledges policy 3, but the newest is 2"):
        machine.on_message(PlanAck("job", 0, 3))


def test_plans_that_change_while_nothing_moves_are_not_piled_up() -> None:
    machine = started(None)
    machine.announce_ahead(2)
    for number in range(1000):
        actions = machine.set_plan((PLAN_A, PLAN_B)[number % 2], 10)
        assert all(isinstance(action.message, Announce) for action in actions)
    # Two collectives are settled under the first; only what comes after them can be planned anew.
    assert machine.version == 1000 and machine.retained == (1, 1000)
    for site in range(3):
        machine.on_message(ready(site, 0))
    for number in range(1000):
        machine.set_plan((PLAN_A, PLAN_B)[number % 2], 10)
    assert machine.version == 2000 and machine.retained == (1, 1000, 2000)


def test_an_open_collective_keeps_its_policy() -> None:
    machine = started()
    all_ready(machine, 0)
    machine.set_plan(PLAN_B, 10)
    all_ready(machine, 1)
    for site in range(3):
        machine.on_message(PlanAck("job", site, 2))
    assert machine.retained == (1, 2)
    machine.on_message(ready(0, 2, completed=2))
    machine.on_message(ready(1, 2, completed=2))
    assert machine.retained == (1, 2)
    (*_, last) = machine.on_message(ready(2, 2, completed=1))
    assert isinstance(last.message, Release)
    assert last.message.retired_below == 2


def test_a_lost_site_stops_the_others() -> None:
    machine = started()
    all_ready(machine, 0)
    actions = machine.site_lost(1, "connection reset")
    assert [action.dst for action in actions] == [0, 2]
    assert actions[0].message == Abort("job", "site dc2 was lost: connection reset")
    assert machine.site_lost(0, "later") == []


def test_an_abort_is_passed_on_to_the_others() -> None:
    machine = started()
    actions = machine.on_message(Abort("job", "out of memory", 0))
    assert [(action.dst, action.message) for action in actions] == [
        (1, Abort("job", "out of memory")),
        (2, Abort("job", "out of memory")),
    ]
    assert [a.dst for a in started().abort("stopped by the user")] == [0, 1, 2]


def test_plans_that_do_not_fit() -> None:
    machine = started()
    with pytest.raises(UsageError, match="a plan for 2 sites, but job job has 3"):
        machine.set_plan(Plan("small", (Tree(0, 1.0, 0.0, (None, 0)),)), 10)
    with pytest.raises(UsageError, match="chunk of 0 elements"):
        machine.set_plan(PLAN_B, 0)


def test_what_was_settled_ahead_is_settled_anew_while_the_sites_rest() -> None:
    machine = CoordinatorMachine("job", NAMES)
    machine.announce_ahead(3)
    machine.set_plan(PLAN_A, 10)
    for seq in range(2):
        for site in range(3):
            machine.on_message(ready(site, seq, seq))
    assert (machine.next_seq, machine.settled) == (2, 5)
    machine.set_plan(PLAN_B, 10)  # announced, to hold from collective 5 on
    assert machine.policy is not None and machine.policy.from_seq == 5
    messages = [action.message for action in machine.settle_anew()]
    assert [m.below for m in messages if isinstance(m, Announce)] == [2] * 3 and machine.settled == 2
    assert machine.settle_anew() == []
    machine.announce_ahead(0)
    # The plan that was announced holds at once, under a version of its own that begins here.
    released = all_ready(machine, 2, 2)
    assert [(r.version, r.policy and (r.policy.from_seq, r.policy.plan)) for r in released] == [(3, (2, PLAN_B))] * 3
    machine.announce_ahead(3)
    machine.on_message(ready(0, 3, 3))
    assert machine.settle_anew() == [], "a site is not at rest"
