"""Collectives, policies and control messages as values, and what a site derives from a policy."""

from __future__ import annotations

import json

import msgpack
import pytest

from agents.planning.base import NetworkView, Plan, Tree
from agents.planning.netstorm import NetStorm
from agents.planning.registry import get_scheduler
from agents.planning.timing import hops
from agents.sync import spec as collectives
from agents.sync.messages import (
    Abort,
    PlanAck,
    ProtocolError,
    Ready,
    Release,
    control_from_dict,
    control_to_dict,
)
from agents.sync.policy import Policy, hop_paths_of
from agents.sync.relations import Relation
from agents.sync.spec import CollectiveSpec, Part, site_mask
from topologies.errors import StormbedError
from topologies.load import load_topology
from topologies.paths import path_sets

LINE = Tree(0, 1.0, 0.0, (None, 0, 1, 2))  # 3 -> 2 -> 1 -> 0
TOPOLOGY = load_topology("netstorm-9")
VIEW = NetworkView.from_topology(TOPOLOGY)


def policy(scheduler: str = "netstorm", chunk_elements: int = 10) -> Policy:
    plan = get_scheduler(scheduler, TOPOLOGY.site_names).plan(VIEW)
    return Policy(3, 7, plan, chunk_elements, hop_paths_of(plan, path_sets(TOPOLOGY)))


# ---- collectives


def test_shapes_of_the_collectives() -> None:
    (part,) = collectives.allreduce(5).parts
    assert part == Part(5, None, None)
    (part,) = collectives.broadcast(5, 1, 3).parts
    assert (part.contributors, part.targets) == ({1}, {0, 2})
    (part,) = collectives.reduce(5, 2).parts
    assert (part.contributors, part.targets) == (None, {2})
    ranks = (0, 0, 2)
    gathered = collectives.gather(5, 0, ranks).parts
    assert [(set(p.contributors or ()), set(p.targets or ())) for p in gathered] == [
        ({0}, set()),
        ({0}, set()),
        ({2}, {0}),
    ]
    scattered = collectives.scatter(5, 0, ranks).parts
    assert [(set(p.contributors or ()), set(p.targets or ())) for p in scattered] == [
        ({0}, set()),
        ({0}, set()),
        ({0}, {2}),
    ]
    everywhere = collectives.allgather(5, ranks, 3).parts
    assert [set(p.targets or ()) for p in everywhere] == [{1, 2}, {1, 2}, {0, 1}]
    assert collectives.barrier().nbytes == 1


def test_digests_tell_collectives_apart() -> None:
    specs = [
        collectives.allreduce(5),
        collectives.allreduce(6),
        collectives.allreduce(5, "float64"),
        collectives.allreduce(5, op="max"),
        collectives.reduce(5, 0),
        collectives.reduce(5, 1),
        collectives.broadcast(5, 0, 3),
        CollectiveSpec("allreduce", "sum", "float32", (Part(5), Part(5))),
    ]
    assert len({s.digest for s in specs}) == len(specs)
    assert collectives.allreduce(5).digest == collectives.allreduce(5).digest == "cba0ea8fd3c122da"
    many = CollectiveSpec("allreduce", "sum", "float32", (Part(1),) * 9)
    assert many.summary == "allreduce sum float32 [1, 1, 1, 1, ...]"


@pytest.mark.parametrize(
    ("kind", "op", "dtype", "part", "message"),
    [
        ("alltoall", None, "float32", Part(1, frozenset({0})), "unknown collective 'alltoall'"),
        ("allreduce", "avg", "float32", Part(1), "unknown operator 'avg'"),
        ("allreduce", "sum", "float17", Part(1), "unknown element type 'float17'"),
        ("allreduce", "bxor", "float32", Part(1), "bxor is not defined on float32"),
        ("allreduce", "sum", "float32", Part(-1), "-1 elements"),
        ("allreduce", "sum", "float32", Part(1, frozenset()), "no contributor"),
        ("broadcast", None, "float32", Part(1), "exactly one site"),
        ("gather", None, "float32", Part(1, frozenset({0, 1})), "exactly one site"),
    ],
)
def test_impossible_collectives(kind: str, op: str | None, dtype: str, part: Part, message: str) -> None:
    with pytest.raises(StormbedError, match=message):
        CollectiveSpec(kind, op, dtype, (part,))


# ---- relations and roles


def test_relation() -> None:
    relation = Relation(Tree(1, 1.0, 0.0, (1, None, 1, 2, 2), (2, None, 1, 1, 1)))
    assert relation.push_children == ((), (0, 2), (3, 4), (), ())
    assert relation.depth == [1, 0, 1, 2, 2]
    assert relation.below_push == [0b00001, 0b11111, 0b11100, 0b01000, 0b10000]
    assert relation.pull_children == ((), (2, 3, 4), (0,), (), ())
    assert relation.below_pull == [0b00001, 0b11111, 0b00101, 0b01000, 0b10000]


def test_roles_of_an_allreduce() -> None:
    relation = Relation(LINE)
    role = relation.role(1, 0b1111, 0b1111)
    assert (role.own, role.up_from, role.up_to) == (True, 0b0100, 0)
    assert (role.down_from, role.down_to, role.deliver) == (0, (2,), True)
    root = relation.role(0, 0b1111, 0b1111)
    assert (root.up_to, root.down_from, root.merges) == (None, None, True)


def test_only_subtrees_with_contributors_and_targets_take_part() -> None:
    relation = Relation(LINE)
    contributors, targets = 0b0100, 0b0010  # from 2 to 1, over the root 0
    roles = [relation.role(site, contributors, targets) for site in range(4)]
    assert [(r.own, r.up_from, r.up_to, r.merges) for r in roles] == [
        (False, 0b0010, None, True),
        (False, 0b0100, 0, True),
        (True, 0, 1, True),
        (False, 0, None, False),
    ]
    assert [(r.down_from, r.down_to, r.deliver) for r in roles] == [
        (None, (1,), False),
        (0, (), True),
        (None, (), False),
        (None, (), False),
    ]


def test_nothing_moves_that_nobody_wants() -> None:
    for site in range(4):
        role = Relation(LINE).role(site, 0b1111, 0)
        assert not (role.own or role.up_from or role.merges or role.down_to or role.deliver)


def test_masks() -> None:
    assert site_mask(None, 3) == 0b111
    assert site_mask(frozenset({0, 2}), 3) == 0b101
    assert site_mask(frozenset(), 3) == 0


# ---- chunk tables


def test_large_float_allreduces_are_spread_and_nothing_else_is() -> None:
    it = policy()
    main = it.plan.main_tree
    assert {c.tree for c in it.chunk_table(collectives.allreduce(500))} == set(range(9))
    for spec in (
        collectives.allreduce(10),
        collectives.allreduce(500, "int64"),
        collectives.reduce(500, 2),
        collectives.broadcast(500, 1, 9),
        collectives.allgather(500, range(9), 9),
        collectives.barrier(),
    ):
        assert {c.tree for c in it.chunk_table(spec)} == {main}, spec.kind


def test_shares_decide_how_much_a_tree_carries() -> None:
    it = policy(chunk_elements=100)
    table = it.chunk_table(collectives.allreduce(1_000_000))
    for number, tree in enumerate(it.plan.trees):
        carried = sum(chunk.size for chunk in table if chunk.tree == number)
        assert carried == pytest.approx(
            tree.share * 1_000_000, abs=8 * 100
        )  # eight others overshoot by less than a chunk


def test_every_site_has_the_same_table_after_the_wire() -> None:
    it = policy()
    twin = Policy.from_dict(msgpack.unpackb(msgpack.packb(it.to_dict())))
    assert twin.chunk_table(collectives.allreduce(12_345)) == it.chunk_table(collectives.allreduce(12_345))


def test_order_on_links() -> None:
    spec = collectives.allreduce(500)
    chunk = policy().chunk_table(spec)[4]
    assert policy().link_key(2, spec)(chunk, "up", 0, 1) == (0.0, 0)
    by_index = Policy(1, 0, Plan("own", (LINE,), "index"), 10)
    assert by_index.link_key(2, spec)(chunk, "down", 0, 1) == (2.0, 4)


# ---- hops and the wire


def test_neighbours_use_their_direct_link_and_others_the_primary_path() -> None:
    sets = path_sets(TOPOLOGY)
    for scheduler in ("netstorm", "star-all"):
        it = policy(scheduler)
        for tree in it.plan.trees:
            for ends in hops(tree):
                path = sets[ends][it.path(*ends)]
                direct = ends[1] in TOPOLOGY.neighbours(ends[0])
                assert path == (ends if direct else sets[ends][0])


def test_pull_hops_have_paths_too() -> None:
    tree = Tree(0, 1.0, 0.0, (None, 0, 0), (None, 2, 0))
    triangle = load_topology("triangle")
    hops = hop_paths_of(Plan("own", (tree,)), path_sets(triangle))
    assert set(hops) == {(1, 0), (2, 0), (2, 1), (0, 2)}


@pytest.mark.parametrize("scheduler", ["netstorm", "star-best"])
def test_policies_survive_the_wire(scheduler: str) -> None:
    it = policy(scheduler)
    for through in (
        lambda plain: msgpack.unpackb(msgpack.packb(plain)),
        lambda plain: json.loads(json.dumps(plain)),
    ):
        assert Policy.from_dict(through(it.to_dict())) == it
    pulled = Policy(1, 0, Plan("own", (Tree(0, 1.0, 0.0, (None, 0, 0), (None, 2, 0)),), "index"), 5)
    assert Policy.from_dict(pulled.to_dict()) == pulled


def test_control_messages_survive_the_wire() -> None:
    for message in (
        Ready("job", 1, 2, "abc", "allreduce", 1),
        PlanAck("job", 1, 3),
        Release("job", 4, 3, policy(), 2),
        Release("job", 5, 3, None),
        Abort("job", "cause", 2),
        Abort("job", "cause"),
    ):
        assert control_from_dict(msgpack.unpackb(msgpack.packb(control_to_dict(message)))) == message


@pytest.mark.parametrize(
    "plain", [{}, {"type": "hello"}, {"type": "abort"}, {"type": "abort", "job": "j", "x": 1}]
)
def test_what_is_no_control_message(plain: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match="message"):
        control_from_dict(plain)


def test_netstorm_uses_neighbours_only() -> None:
    for tree in NetStorm().plan(VIEW).trees:
        for site, parent in enumerate(tree.parents):
            assert parent is None or parent in TOPOLOGY.neighbours(site)


def test_a_class_is_part_of_what_sites_agree_on() -> None:
    assert collectives.allreduce(5, cls=3).digest != collectives.allreduce(5).digest
    with pytest.raises(StormbedError, match="class 8"):
        collectives.allreduce(5, cls=8)
