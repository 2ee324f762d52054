"""One site, one message at a time: what it sends, what it holds, what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.planning.base import Plan, Tree
from agents.sync import spec as collectives
from agents.sync.actions import Complete, Deliver, Failed, Send, SendControl, SiteAction
from agents.sync.messages import Abort, Announce, ChunkMessage, PlanAck, ProtocolError, Ready, Release
from agents.sync.payload import ArrayPayload
from agents.sync.policy import Policy
from agents.sync.site_machine import SiteMachine, Source
from agents.sync.spec import CollectiveSpec, Part
from topologies.errors import RunFailedError, UsageError

NAMES = ("dc1", "dc2", "dc3")
LINE_TO_0 = Plan("line", (Tree(0, 1.0, 0.0, (None, 0, 1)),))  # 2 -> 1 -> 0
LINE_TO_2 = Plan("line", (Tree(2, 1.0, 0.0, (1, 2, None)),))  # 0 -> 1 -> 2
TWO = collectives.allreduce(2, "int64")


def policy(version: int, plan: Plan = LINE_TO_0, from_seq: int = 0, chunk_elements: int = 2) -> Policy:
    return Policy(version, from_seq, plan, chunk_elements, {(1, 0): 3})


def release(seq: int, version: int, carried: Policy | None = None, retired_below: int = 0) -> Release:
    return Release("job", seq, version, carried, retired_below)


def values(*numbers: int) -> ArrayPayload:
    return ArrayPayload(np.array(numbers, dtype=np.int64), owned=True)


def giving(*numbers: int) -> Source:
    return lambda chunk: values(*numbers[chunk.offset : chunk.offset + chunk.size])


def chunk(
    src: int, direction: str, *numbers: int, seq: int = 0, version: int = 1, index: int = 0, tree: int = 0
) -> ChunkMessage:
    return ChunkMessage("job", seq, version, 0, index, direction, src, tree, values(*numbers))  # type: ignore[arg-type]


def released(
    site: int, *, spec: CollectiveSpec = TWO, plan: Plan = LINE_TO_0
) -> tuple[SiteMachine, list[SiteAction]]:
    machine = SiteMachine("job", site, NAMES)
    machine.begin(0, spec, giving(*range(10, 10 + spec.parts[0].elements)))
    return machine, machine.on_message(release(0, 1, policy(1, plan)))


def numbers(action: SiteAction) -> list[int]:
    payload = action.message.payload if isinstance(action, Send) else action.payload  # type: ignore[union-attr]
    return list(payload.array)


# ---- the life of a collective


def test_begin_asks_for_ready_and_waits() -> None:
    machine = SiteMachine("job", 1, NAMES)
    actions = machine.begin(0, TWO, giving(1, 2))
    assert actions == [SendControl(Ready("job", 1, 0, TWO.digest, "allreduce sum int64 [2]", 0))]
    assert machine.in_flight == (0,)
    assert "the release of collective 0" in str(machine.waiting_for(0))


def test_leaf_sends_up_and_delivers_what_comes_down() -> None:
    machine, actions = released(2)
    acknowledged, sent = actions
    assert acknowledged == SendControl(PlanAck("job", 2, 1))
    assert isinstance(sent, Send)
    assert (sent.dst, sent.message.direction, sent.message.src, sent.path) == (1, "up", 2, 0)
    assert numbers(sent) == [10, 11]
    delivered, complete = machine.on_message(chunk(1, "down", 100, 200))
    assert isinstance(delivered, Deliver)
    assert numbers(delivered) == [100, 200]
    assert complete == Complete(0)
    assert (machine.in_flight, machine.completed_below) == ((), 1)


def test_inner_site_adds_then_forwards_both_ways() -> None:
    machine, actions = released(1)
    assert [type(action) for action in actions] == [SendControl]
    (up,) = machine.on_message(chunk(2, "up", 5, 6))
    assert isinstance(up, Send)
    assert (up.dst, up.path) == (0, 3)  # the path that the policy names for this hop
    assert numbers(up) == [15, 17]
    down, delivered, complete = machine.on_message(chunk(0, "down", 1, 2))
    assert isinstance(down, Send)
    assert (down.dst, down.message.direction) == (2, "down")
    assert isinstance(delivered, Deliver)
    assert complete == Complete(0)


def test_root_has_the_result_when_all_children_are_in() -> None:
    machine, _ = released(0)
    down, delivered, complete = machine.on_message(chunk(1, "up", 1, 1))
    assert isinstance(down, Send)
    assert down.dst == 1
    assert numbers(delivered) == numbers(down) == [11, 12]
    assert complete == Complete(0)


def test_sums_build_up_in_the_contribution_where_it_is_owned() -> None:
    mine = np.array([1, 2], dtype=np.int64)
    machine = SiteMachine("job", 0, NAMES)
    machine.begin(0, TWO, lambda chunk: ArrayPayload(mine, owned=True))
    machine.on_message(release(0, 1, policy(1)))
    machine.on_message(chunk(1, "up", 10, 10))
    assert list(mine) == [11, 12]


def test_a_contribution_that_is_not_owned_is_only_read() -> None:
    mine = np.array([1, 2], dtype=np.int64)
    mine.flags.writeable = False
    machine = SiteMachine("job", 0, NAMES)
    machine.begin(0, TWO, lambda chunk: ArrayPayload(mine))
    machine.on_message(release(0, 1, policy(1)))
    down, *_ = machine.on_message(chunk(1, "up", 10, 10))
    assert numbers(down) == [11, 12]


def test_parts_may_be_contributed_one_after_another() -> None:
    spec = CollectiveSpec("allreduce", "sum", "int64", (Part(1), Part(1)))
    machine = SiteMachine("job", 2, NAMES)
    machine.begin(0, spec)
    assert machine.contribute(0, 1, giving(7)) == []  # before the release: kept
    actions = machine.on_message(release(0, 1, policy(1)))
    assert [a.message.part for a in actions if isinstance(a, Send)] == [1]
    assert "the contribution of dc3 to chunk 0" in str(machine.waiting_for(0))
    (sent,) = machine.contribute(0, 0, giving(8))
    assert isinstance(sent, Send)
    assert sent.message.part == 0


def test_nothing_moves_for_an_empty_collective() -> None:
    _, actions = released(1, spec=collectives.allreduce(0, "int64"))
    assert actions == [SendControl(PlanAck("job", 1, 1)), Complete(0)]


def test_single_site() -> None:
    machine = SiteMachine("job", 0, ("dc1",))
    machine.begin(0, TWO, giving(1, 2))
    alone = Plan("alone", (Tree(0, 1.0, 0.0, (None,)),))
    _, delivered, complete = machine.on_message(release(0, 1, Policy(1, 0, alone, 2)))
    assert numbers(delivered) == [1, 2]
    assert complete == Complete(0)


def test_broadcast_passes_through_and_the_source_gets_nothing_back() -> None:
    spec = collectives.broadcast(2, src=1, n_sites=3, dtype="int64")
    middle, actions = released(1, spec=spec)
    assert [a.dst for a in actions if isinstance(a, Send)] == [0]
    forwarded, complete = middle.on_message(chunk(0, "down", 10, 11))
    assert isinstance(forwarded, Send)
    assert forwarded.dst == 2
    assert complete == Complete(0)
    _, actions = released(2, spec=spec)
    assert not [a for a in actions if isinstance(a, Send)]


# ---- races


def test_child_before_parent() -> None:
    """The race of the published code: a child sends under the new plan before its parent has heard of it.

    The parent holds the chunk and handles it under the plan that it names, not under the old one.
    """
    parent, _ = released(1)
    parent.on_message(chunk(2, "up", 0, 0))
    parent.on_message(chunk(0, "down", 0, 0))
    parent.begin(1, TWO, giving(1, 2))
    early = chunk(
        0, "up", 30, 40, seq=1, version=2
    )  # under LINE_TO_2 site 0 is a child of 1; before it was its parent
    assert parent.on_message(early) == []
    assert parent.held == 1
    assert "1 chunks from other sites are already here" in str(parent.waiting_for(1))
    acknowledged, up = parent.on_message(release(1, 2, policy(2, LINE_TO_2, from_seq=1)))
    assert acknowledged == SendControl(PlanAck("job", 1, 2))
    assert isinstance(up, Send)
    assert (up.dst, up.message.version) == (2, 2)
    assert numbers(up) == [31, 42]
    assert parent.held == 0


def test_chunk_of_a_collective_not_begun_here_is_held() -> None:
    machine = SiteMachine("job", 1, NAMES)
    assert machine.on_message(chunk(2, "up", 5, 6)) == []
    machine.begin(0, TWO, giving(1, 1))
    _, up = machine.on_message(release(0, 1, policy(1)))
    assert numbers(up) == [6, 7]


def test_two_collectives_in_flight_under_two_policies() -> None:
    machine, _ = released(1)
    machine.begin(1, TWO, giving(1, 2))
    machine.on_message(release(1, 2, policy(2, LINE_TO_2, from_seq=1), retired_below=1))
    (new,) = machine.on_message(chunk(0, "up", 1, 1, seq=1, version=2))
    (old,) = machine.on_message(chunk(2, "up", 1, 1, seq=0, version=1))
    assert isinstance(new, Send)
    assert isinstance(old, Send)
    assert (new.dst, old.dst) == (2, 0)
    *_, complete = machine.on_message(chunk(2, "down", 1, 1, seq=1, version=2))
    assert complete == Complete(1)
    assert (machine.completed_below, machine.in_flight) == (0, (0,))
    *_, complete = machine.on_message(chunk(0, "down", 1, 1))
    assert complete == Complete(0)
    assert machine.completed_below == 2


def test_duplicates_are_dropped_before_during_and_after() -> None:
    machine = SiteMachine("job", 1, NAMES)
    machine.begin(0, TWO, giving(1, 1))
    machine.on_message(chunk(2, "up", 5, 6))
    machine.on_message(chunk(2, "up", 5, 6))
    _, up = machine.on_message(release(0, 1, policy(1)))
    assert numbers(up) == [6, 7]
    assert machine.on_message(chunk(2, "up", 5, 6)) == []
    assert machine.on_message(release(0, 1, policy(1))) == []
    machine.on_message(chunk(0, "down", 9, 9))
    for late in (chunk(2, "up", 5, 6), chunk(0, "down", 9, 9), release(0, 1, policy(1))):
        assert machine.on_message(late) == []
    assert machine.duplicates == 6
    assert numbers(up) == [6, 7]


def test_a_result_twice_is_delivered_once() -> None:
    machine, _ = released(2, spec=collectives.allreduce(4, "int64"))
    assert len(machine.on_message(chunk(1, "down", 1, 1, index=0))) == 1
    assert machine.on_message(chunk(1, "down", 1, 1, index=0)) == []
    assert machine.in_flight == (0,)


def test_policies_are_dropped_when_retired_and_unused() -> None:
    machine, _ = released(2)
    machine.begin(1, TWO, giving(1, 2))
    machine.on_message(release(1, 2, policy(2, from_seq=1)))
    assert machine.installed == (1, 2)
    machine.begin(2, TWO, giving(1, 2))
    machine.on_message(release(2, 2, None, retired_below=2))
    assert machine.installed == (1, 2)  # collective 0 still needs the first
    machine.on_message(chunk(1, "down", 0, 0))
    assert machine.installed == (2,)
    assert machine.version == 2


def test_policies_that_others_replace_before_they_begin_are_dropped_at_once() -> None:
    machine, _ = released(2)
    for version in range(2, 1000):
        announced = Announce("job", 1, version, policy(version, from_seq=1), 0, version)
        machine.on_message(announced)
    assert machine.installed == (1, 999)  # collective 0 runs under the first
    # One that was overtaken is acknowledged, and not kept either.
    machine.on_message(Announce("job", 1, 1001, policy(1001, from_seq=1), 0, 1001))
    actions = machine.on_message(Announce("job", 1, 1000, policy(1000, from_seq=1), 0, 1000))
    assert actions == [SendControl(PlanAck("job", 2, 1000))]
    assert machine.installed == (1, 1001) and machine.version == 1001
    machine.begin(1, TWO, giving(1, 2))
    machine.on_message(Announce("job", 2, 1001, None, 0, 1002))
    assert machine._open[1].policy is not None and machine._open[1].policy.version == 1001


# ---- what no correct peer sends


def refused(machine: SiteMachine, message: ChunkMessage | Release, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        machine.on_message(message)


def test_refused_chunks() -> None:
    machine, _ = released(1)
    good = chunk(2, "up", 5, 6)
    refused(machine, replace(good, job="other"), "message of job other")
    refused(machine, replace(good, version=2), "names policy 2, newer than policy 1")
    refused(machine, replace(good, version=0), "names policy 0, older than policy 1")
    refused(machine, replace(good, src=0), r"from dc1: dc2 expects it from dc3")
    refused(machine, replace(good, src=1), "from site 1")
    refused(machine, replace(good, src=7), "from site 7")
    refused(machine, replace(good, chunk=1), "there are only 1 chunks")
    refused(machine, replace(good, tree=1), "says part 0, tree 1; at dc2 it is part 0, tree 0")
    refused(machine, replace(good, part=1), "says part 1")
    refused(machine, replace(good, payload=values(5)), "has 8 bytes, not 16")
    refused(machine, chunk(2, "down", 1, 1), "from dc3: dc2 expects it from dc1")
    refused(machine, chunk(0, "down", 1, 1), "came before dc2 had sent its own partial sum")
    (up,) = machine.on_message(good)  # none of it did any harm
    assert numbers(up) == [15, 17]


def test_a_held_chunk_under_another_policy_is_refused_at_the_release() -> None:
    machine = SiteMachine("job", 1, NAMES)
    machine.begin(0, TWO, giving(1, 1))
    machine.on_message(chunk(2, "up", 5, 6, version=4))
    refused(machine, release(0, 1, policy(1)), "names policy 4")


def test_refused_releases() -> None:
    machine = SiteMachine("job", 1, NAMES)
    machine.begin(0, TWO, giving(1, 1))
    refused(machine, release(1, 1, policy(1)), "collective 1, which it has not begun")
    refused(machine, release(0, 2), r"policy 2, which it does not have \(installed: 1\)")
    refused(machine, release(0, 3, policy(2)), "release under policy 3 carries policy 2")
    alone = Policy(2, 0, Plan("alone", (Tree(0, 1.0, 0.0, (None,)),)), 2)
    refused(machine, release(0, 2, alone), "policy 2 is for 1 sites, job job has 3")
    refused(machine, release(0, 2, policy(2, from_seq=5)), "holds from collective 5 on")
    refused(machine, release(0, 1, policy(1, LINE_TO_2)), "two different policies of version 1")
    machine.on_message(release(0, 1))
    refused(machine, release(0, 2), "two releases of collective 0, under policy 1 and under policy 2")


def test_misuse_by_the_runtime() -> None:
    machine = SiteMachine("job", 1, NAMES)
    with pytest.raises(UsageError, match="collective 3"):
        machine.begin(3, TWO)
    machine.begin(0, TWO, giving(1, 1))
    for seq, part in ((0, 0), (0, 1), (1, 0)):
        with pytest.raises(UsageError, match=f"part {part} of collective {seq}"):
            machine.contribute(seq, part, giving(1, 1))
    with pytest.raises(UsageError, match="names site 5, but there are 3"):
        machine.begin(1, collectives.reduce(2, 5))
    with pytest.raises(UsageError, match="no site 3"):
        SiteMachine("job", 3, NAMES)


# ---- endings and introspection


def test_abort_from_here() -> None:
    machine, _ = released(1)
    machine.begin(1, TWO, giving(1, 1))
    told, *failed = machine.abort("the disk is full")
    assert told == SendControl(Abort("job", "the disk is full", 1))
    assert failed == [Failed(0, "the disk is full"), Failed(1, "the disk is full")]
    assert machine.abort("again") == []
    assert machine.on_message(chunk(2, "up", 5, 6)) == []
    with pytest.raises(RunFailedError, match="the disk is full"):
        machine.begin(2, TWO)


def test_abort_from_the_coordinator() -> None:
    machine, _ = released(1)
    assert machine.on_message(Abort("job", "site dc3 was lost")) == [Failed(0, "site dc3 was lost")]


def test_waiting_for_names_what_is_missing_from_whom() -> None:
    machine, _ = released(1, spec=collectives.allreduce(6, "int64"))
    machine.on_message(chunk(2, "up", 1, 1, index=1))
    waiting = machine.waiting_for(0)
    assert str(waiting) == (
        "collective 0 of job job (allreduce sum int64 [6]) under policy 1, 3 of 3 chunks open at dc2: "
        "the partial sum of 2 chunks (0, 2) from dc3; the result of chunk 1 from dc1"
    )
    assert waiting.sites == (0, 2)
    assert "workers of dc2 to submit collective 1" in str(machine.waiting_for(1))
    empty, _ = released(1, spec=collectives.allreduce(0, "int64"))
    assert "complete at dc2" in str(empty.waiting_for(0))
