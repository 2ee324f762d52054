"""Transfers decided one by one: machines under hand-made events, and the simulated world."""

from __future__ import annotations

import pytest

from agents.planning.base import NetworkView
from agents.planning.tsengine import TsEngine
from agents.sync.actions import SendToSite
from agents.sync.coordinator_machine import CoordinatorMachine
from agents.sync.messages import (
    ProtocolError,
    Ready,
    TransferMessage,
    control_from_dict,
    control_to_dict,
)
from agents.sync.policy import Policy
from agents.sync.spec import allreduce, broadcast
from topologies.errors import CannotHonourError

PAIR = NetworkView(2, {(0, 1): 1e6, (1, 0): 1e6})
SPEC = allreduce(15)


class Coordinator:
    """Two sites, both released for collective 0 under `rule`, on a clock that the test moves."""

    def __init__(self, rule: TsEngine) -> None:
        self.time = 0.0
        self.machine = CoordinatorMachine("job", ("a", "b"), clock=lambda: self.time)
        self.machine.set_plan(rule.plan(PAIR), 10)
        for site in (0, 1):
            self.machine.on_message(Ready("job", site, 0, SPEC.digest, SPEC.summary, 0))

    def hears(self, site: int, verb: str, chunk: int = 0, **fields: int) -> list[tuple[int, str, int]]:
        """(site, verb, chunk) of the orders that follow from a site's word."""
        chunks = (0, 1) if verb == "offer" else (chunk,)
        message = TransferMessage("job", site, 0, verb, chunks, total=2, nbytes=40, **fields)  # type: ignore[arg-type]
        return shown(self.machine.on_message(message))

    def waits(self, seconds: float) -> list[tuple[int, str, int]]:
        self.time += seconds
        return shown(self.machine.on_time())


def shown(actions: list[SendToSite]) -> list[tuple[int, str, int]]:
    assert all(isinstance(action.message, TransferMessage) for action in actions)
    return [(a.dst, a.message.verb, a.message.chunks[0] if a.message.chunks else -1) for a in actions]  # type: ignore[union-attr]


def test_a_round_of_two_sites() -> None:
    it = Coordinator(TsEngine())
    assert it.machine.next_deadline is None
    assert it.hears(0, "offer") == []
    assert it.hears(1, "offer") == [(1, "send", 0)]  # one transfer at a time
    assert it.machine.next_deadline == 30.0
    it.time = 2.0
    assert it.hears(0, "merged", 0, peer=1, attempt=1) == [(0, "final", 0), (0, "send", 0), (1, "send", 1)]
    assert it.hears(0, "merged", 1, peer=1, attempt=1) == [(0, "final", 1)]
    assert it.hears(1, "received", 0, peer=0, attempt=2) == [(0, "send", 1)]
    closed = it.hears(1, "received", 1, peer=0, attempt=2)
    assert closed == [(0, "closed", -1), (1, "closed", -1)]
    assert it.machine.next_deadline is None
    assert it.hears(1, "received", 1, peer=0, attempt=2) == []


def test_the_lease_of_a_sum_ends_with_a_question_to_the_receiver() -> None:
    it = Coordinator(TsEngine(lease_s=4.0))
    it.hears(0, "offer")
    it.hears(1, "offer")
    assert it.waits(3.9) == []
    assert it.waits(0.1) == [(0, "cancel", 0)]
    # It will not be added: both are paired anew, and the sender's next lease is twice as long.
    assert it.hears(0, "cancelled", 0, peer=1, attempt=1) == [(1, "send", 1)]
    assert it.machine.next_deadline == it.time + 8.0
    assert it.hears(0, "cancelled", 0, peer=1, attempt=1) == []
    assert it.hears(0, "merged", 1, peer=1, attempt=1) == [(0, "final", 1), (0, "send", 1), (1, "send", 0)]
    assert it.machine.next_deadline == it.time + 4.0


def test_a_sum_that_was_added_before_the_question_counts_once() -> None:
    it = Coordinator(TsEngine(lease_s=4.0))
    it.hears(0, "offer")
    it.hears(1, "offer")
    it.waits(4.0)
    assert it.hears(0, "merged", 0, peer=1, attempt=1) == [(0, "final", 0), (0, "send", 0), (1, "send", 1)]


def test_a_receiver_that_does_not_answer_stops_the_job() -> None:
    it = Coordinator(TsEngine(lease_s=4.0))
    it.hears(0, "offer")
    it.hears(1, "offer")
    it.waits(4.0)
    it.time += 4.0
    it.machine.on_time()
    assert it.machine.aborted == "a does not answer about chunk 0 of collective 0 from b to a"
    assert it.machine.next_deadline is None


def test_a_result_that_does_not_arrive_is_sent_again() -> None:
    it = Coordinator(TsEngine(lease_s=4.0))
    it.hears(0, "offer")
    it.hears(1, "offer")
    it.hears(0, "merged", 0, peer=1, attempt=1)
    it.hears(0, "merged", 1, peer=1, attempt=1)
    for failures in range(3):
        assert it.waits(4.0 * 2**failures - 0.5) == []
        assert it.waits(0.5) == [(0, "send", 0)]
    it.time += 32.0
    it.machine.on_time()
    assert it.machine.aborted == (
        "4 transfers in a row did not arrive, at last chunk 0 of collective 0 from a to b (is a link down?)"
    )


def test_what_a_collective_waits_for() -> None:
    it = Coordinator(TsEngine())
    waits = it.machine.waiting_for
    assert (str(waits(0)), waits(0).sites) == ("a, b to contribute to collective 0 of job job", (0, 1))
    it.hears(0, "offer")
    assert waits(0).sites == (1,)
    it.hears(1, "offer")
    assert str(waits(0)) == "collective 0 of job job: chunk 0 from b to a under way"
    assert waits(1).sites == (0, 1)  # nobody is ready for the next one


def test_what_no_site_says() -> None:
    it = Coordinator(TsEngine())
    with pytest.raises(ProtocolError, match="nobody contributed"):
        it.hears(0, "merged", 0, peer=1, attempt=1)
    it.hears(0, "offer")
    with pytest.raises(ProtocolError, match="sent 'send' to the coordinator"):
        it.hears(0, "send", 0)
    star = CoordinatorMachine("job", ("a", "b"), clock=lambda: 0.0)
    with pytest.raises(ProtocolError, match="none are decided"):
        star.on_message(TransferMessage("job", 0, 0, "offer", (0,), total=1))


def test_without_a_clock_the_plan_is_refused() -> None:
    with pytest.raises(CannotHonourError, match="tsengine decides per transfer"):
        CoordinatorMachine("job", ("a", "b")).set_plan(TsEngine().plan(PAIR), 10)


def test_only_all_reduces_of_floating_type_are_decided_per_transfer() -> None:
    policy = Policy(1, 0, TsEngine(server=1).plan(PAIR), 10)
    assert policy.per_transfer(allreduce(11))
    assert policy.per_transfer(allreduce(1))
    assert not policy.per_transfer(allreduce(0))
    assert not policy.per_transfer(allreduce(100, "int32"))
    assert not policy.per_transfer(broadcast(100, 0, 2))
    twin = Policy.from_dict(policy.to_dict())
    assert twin.per_transfer(allreduce(11))
    assert twin.plan.transfers is not None
    assert (twin.plan.transfers.server, twin.plan.transfers.rule) == (1, None)


def test_messages_survive_the_wire() -> None:
    message = TransferMessage("job", 1, 7, "offer", (3, 4), "down", 2, 5, 6, 8)
    plain = control_to_dict(message)
    assert control_from_dict({**plain, "chunks": [3, 4]}) == message
