"""The model itself: it has to notice what a wrong set of rules does, or the proofs that use it prove
nothing."""

from dataclasses import replace

import pytest

from controller.rules import FlowRule, Kind, RuleId, plan_rules
from controller.table import ModelError, ModelNetwork, ModelSwitch, Packet
from topologies.load import load_topology
from topologies.paths import path_sets

OURS = RuleId(Kind.PATH).cookie
PING = Packet(ipv4_src="10.0.0.1", ipv4_dst="10.0.0.2")


def rule(
    priority: int, output: int | None = None, *, table: int = 0, goto: int | None = None, **match: int | str
) -> FlowRule:
    return FlowRule(table, priority, tuple(sorted(match.items())), OURS, output=output, goto=goto)


def switch(*rules: FlowRule) -> ModelSwitch:
    made = ModelSwitch(1)
    for held in rules:
        made.add(held)
    return made


def test_the_highest_priority_wins_whatever_the_order() -> None:
    low, high = rule(1, 2), rule(5, 3, ipv4_dst="10.0.0.2")
    assert switch(low, high).process(PING, 1) == switch(high, low).process(PING, 1) == 3
    assert switch(low, high).process(replace(PING, ipv4_dst="10.0.0.9"), 1) == 2


def test_no_match_is_a_drop() -> None:
    assert switch().process(PING, 1) is None
    assert switch(rule(1, 2, eth_type=0x0806)).process(PING, 1) is None


def test_equal_priorities_that_both_match_are_an_error() -> None:
    with pytest.raises(ModelError, match="equal priority"):
        switch(rule(5, 2, ipv4_dst="10.0.0.2"), rule(5, 3, ipv4_src="10.0.0.1")).process(PING, 1)
    # A third rule above them settles it.
    assert (
        switch(rule(5, 2, ipv4_dst="10.0.0.2"), rule(5, 3, ipv4_src="10.0.0.1"), rule(6, 4)).process(PING, 1)
        == 4
    )


def test_a_packet_never_leaves_where_it_came_in() -> None:
    assert switch(rule(1, 2)).process(PING, 2) is None


def test_flooding_copying_and_going_back_are_errors() -> None:
    with pytest.raises(ModelError, match="flooded"):
        switch(rule(1, 0xFFFFFFFB)).process(PING, 1)
    with pytest.raises(ModelError, match="leaves by the ports"):
        switch(rule(1, 2, goto=1), rule(1, 3, table=1)).process(PING, 1)
    with pytest.raises(ModelError, match="goes back"):
        switch(rule(1, goto=0)).process(PING, 1)


def test_metadata_is_written_under_its_mask_and_starts_at_zero() -> None:
    write = FlowRule(0, 1, (), OURS, write_metadata=(0b101, 0b100), goto=1)
    assert switch(write, rule(1, 2, table=1, metadata=0b100)).process(PING, 1) == 2
    assert switch(write, rule(1, 2, table=1, metadata=0b101)).process(PING, 1) is None
    assert switch(rule(1, 2, metadata=0)).process(PING, 1) == 2


def test_adding_replaces_and_deleting_spares_foreign_rules() -> None:
    held = switch(rule(1, 2))
    held.process(PING, 1)
    assert [entry.packets for entry in held.entries] == [1]
    held.add(rule(1, 3))
    assert [(entry.rule.output, entry.packets) for entry in held.entries] == [(3, 0)]
    held.delete(rule(1))
    assert held.entries == ()
    foreign = FlowRule(0, 1, (), cookie=7, output=2)
    held.add(foreign)
    held.delete(rule(1))
    assert held.rules == {foreign}


def test_the_network_notices_a_circle() -> None:
    topology = load_topology("triangle")
    network = ModelNetwork(topology)
    # dc1 -> dc2 -> dc3 -> dc1: ports 2, 3 follow the links dc1-dc2, dc2-dc3, dc1-dc3.
    network.install({1: (rule(1, 2),), 2: (rule(1, 3),), 3: (rule(1, 3),)})
    with pytest.raises(ModelError, match="circles"):
        network.send(0, 1)


@pytest.mark.parametrize("wrong_port", [3, None, 9])
def test_one_wrong_rule_is_seen(wrong_port: int | None) -> None:
    topology = load_topology("triangle")
    paths = path_sets(topology)
    network = ModelNetwork(topology)
    network.install(plan_rules(topology, paths))
    assert network.send(0, 1).sites == paths[0, 1][0] == (0, 1)
    right = next(r for r in network.switches[1].rules if r.cookie == RuleId(Kind.PATH, 0, 0, 1).cookie)
    network.switches[1].add(replace(right, output=wrong_port))
    journey = network.send(0, 1)
    assert journey.sites != (0, 1) or journey.delivered_to != 1


def test_bytes_and_packets_are_counted() -> None:
    held = switch(rule(1, 2))
    held.process(PING, 1)
    held.process(replace(PING, length=900), 1)
    assert [(entry.packets, entry.bytes) for entry in held.entries] == [(2, 1000)]
