"""What the collectives must do, written against torch.distributed alone: the same for a switchboard in a test
and for agents across a network. Each check is run by every rank of an initialised group."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

FLOATS = [torch.float16, torch.float32, torch.float64, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
Op = dist.ReduceOp


def reduced(tensor: torch.Tensor, op: object = Op.SUM) -> torch.Tensor:
    dist.all_reduce(tensor, op=op)
    return tensor


def all_reduce_of_every_dtype(rank: int, world: int) -> None:
    total = sum(range(1, world + 1))
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX]:
        tensor = torch.arange(5).to(dtype) * (rank + 1)
        assert torch.equal(reduced(tensor), torch.arange(5).to(dtype) * total), dtype
    scalar = torch.tensor(float(rank))
    assert reduced(scalar).item() == sum(range(world))


def all_reduce_with_every_operation(rank: int, world: int) -> None:
    ranks = list(range(world))
    for dtype in [*FLOATS, *INTEGERS]:
        made = torch.tensor([rank + 1, 3 - rank]).to(dtype)
        assert reduced(made.clone(), Op.PRODUCT).tolist() == [
            torch.tensor([r + 1 for r in ranks]).prod().item(),
            torch.tensor([3 - r for r in ranks]).prod().item(),
        ]
        assert reduced(made.clone(), Op.MAX).tolist() == [world, 3]
        assert reduced(made.clone(), Op.MIN).tolist() == [1, 3 - (world - 1)]
    for dtype in FLOATS:
        mean = reduced(torch.tensor([float(rank), 1.0]).to(dtype), Op.AVG)
        assert mean.dtype is dtype
        assert torch.allclose(mean.double(), torch.tensor([(world - 1) / 2, 1.0]).double(), rtol=1e-2)
    # Integers are divided towards zero.
    assert reduced(torch.tensor([-1 if rank == 0 else 0, 2 * world]), Op.AVG).tolist() == [0, 2 * world]
    bits = [1 << r for r in ranks]
    assert reduced(torch.tensor([1 << rank]), Op.BOR).item() == sum(bits)
    assert reduced(torch.tensor([1 << rank, 7]), Op.BAND).tolist() == [0 if world > 1 else 1, 7]
    assert reduced(torch.tensor([1 << rank, 1]), Op.BXOR).tolist() == [sum(bits), world % 2]


def all_reduce_of_bool(rank: int, world: int) -> None:
    made = torch.tensor([True, rank == 0, False])
    for op, expected in [
        (Op.SUM, [True, True, False]),
        (Op.MAX, [True, True, False]),
        (Op.BOR, [True, True, False]),
        (Op.PRODUCT, [True, world == 1, False]),
        (Op.MIN, [True, world == 1, False]),
        (Op.BXOR, [world % 2 == 1, True, False]),
    ]:
        result = reduced(made.clone(), op)
        assert result.dtype is torch.bool and result.tolist() == expected, op


def bfloat16_is_summed_in_float32(rank: int, world: int) -> None:
    # 256 + 1 rounds back to 256 in bfloat16; the sum over the ranks must not.
    tensor = torch.tensor([256.0 if rank == 0 else 1.0], dtype=torch.bfloat16)
    expected = torch.tensor([256.0 + (world - 1)]).to(torch.bfloat16)
    assert torch.equal(reduced(tensor), expected)


def any_strides(rank: int, world: int) -> None:
    total = sum(range(1, world + 1))
    base = torch.zeros(4, 6)
    view = base.t()[::2, 1:3]
    view.copy_(torch.arange(6.0).view(3, 2) * (rank + 1))
    reduced(view)
    assert torch.equal(view, torch.arange(6.0).view(3, 2) * total)
    assert base.count_nonzero() == 5  # nothing beside the view was written
    images = torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last) * (rank + 1)
    assert torch.equal(reduced(images), torch.full((2, 3, 4, 5), float(total)))
    source = torch.arange(6.0).view(2, 3)
    received = source.t() if rank == 0 else torch.zeros(2, 3).t()
    dist.broadcast(received, 0)
    assert torch.equal(received, source.t())
    negated = torch.tensor([1 + 2j * (rank + 1)]).conj().imag  # a view that negates when it is read
    assert negated.is_neg() and reduced(negated).tolist() == [-2.0 * total]
    parameter = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert reduced(parameter).tolist() == [world] * 3


def nothing_to_exchange(rank: int, world: int) -> None:
    empty = torch.empty(0, 3)
    assert reduced(empty).shape == (0, 3)
    dist.broadcast(empty, 0)
    dist.all_gather([torch.empty(0) for _ in range(world)], torch.empty(0))
    dist.reduce(empty, 0)
    dist.gather(torch.empty(0), [torch.empty(0) for _ in range(world)] if rank == 0 else None, 0)
    dist.scatter(torch.empty(0), [torch.empty(0) for _ in range(world)] if rank == 0 else None, 0)
    work = dist.all_reduce(empty, async_op=True)
    assert work.is_completed() and work.wait()
    assert work.get_future().wait()[0] is empty


def broadcast_of_every_dtype(rank: int, world: int) -> None:
    source = world - 1
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX, torch.bool]:
        expected = torch.tensor([0, 1, 1, 3]).to(dtype)
        tensor = expected.clone() if rank == source else torch.zeros(4, dtype=dtype)
        dist.broadcast(tensor, source)
        assert torch.equal(tensor, expected), dtype


def gathers(rank: int, world: int) -> None:
    for dtype in [torch.float32, torch.bfloat16, torch.int64, torch.bool]:
        mine = torch.tensor([rank, 1]).to(dtype)
        expected = [torch.tensor([r, 1]).to(dtype) for r in range(world)]
        parts = [torch.zeros(2, dtype=dtype) for _ in range(world)]
        dist.all_gather(parts, mine)
        assert all(torch.equal(a, b) for a, b in zip(parts, expected, strict=True))
        whole = torch.zeros(2 * world, dtype=dtype)
        dist.all_gather_into_tensor(whole, mine)
        assert torch.equal(whole, torch.cat(expected))
        for root in range(world):
            parts = [torch.zeros(2, dtype=dtype) for _ in range(world)]
            dist.gather(mine, parts if rank == root else None, root)
            if rank == root:
                assert all(torch.equal(a, b) for a, b in zip(parts, expected, strict=True))
    uneven = [torch.zeros(r, dtype=torch.bfloat16) for r in range(world)]  # rank 0 gives nothing
    dist.all_gather(uneven, torch.full((rank,), float(rank), dtype=torch.bfloat16))
    assert [part.tolist() for part in uneven] == [[float(r)] * r for r in range(world)]


def scatters(rank: int, world: int) -> None:
    for root in range(world):
        taken = torch.zeros(3)
        parts = [torch.full((3,), 10.0 * root + r) for r in range(world)] if rank == root else None
        dist.scatter(taken, parts, root)
        assert taken.tolist() == [10.0 * root + rank] * 3


def reductions_to_one_rank(rank: int, world: int) -> None:
    total = sum(range(1, world + 1))
    for root in range(world):
        tensor = torch.full((4,), float(rank + 1))
        dist.reduce(tensor, root, op=Op.SUM)
        # Elsewhere the tensor stays what it was.
        assert tensor.tolist() == [float(total if rank == root else rank + 1)] * 4
    output = torch.zeros(2)
    dist.reduce_scatter(output, [torch.full((2,), float(r + rank)) for r in range(world)])
    assert output.tolist() == [float(world * rank + sum(range(world)))] * 2
    given = torch.arange(2.0 * world) + rank
    dist.reduce_scatter_tensor(output, given, op=Op.AVG)
    assert torch.allclose(output, torch.tensor([2.0 * rank, 2.0 * rank + 1]) + (world - 1) / 2)
    assert torch.equal(given, torch.arange(2.0 * world) + rank)


def all_to_all(rank: int, world: int) -> None:
    outputs = [torch.zeros(2) for _ in range(world)]
    dist.all_to_all(outputs, [torch.full((2,), 10.0 * rank + r) for r in range(world)])
    assert [o.tolist() for o in outputs] == [[10.0 * r + rank] * 2 for r in range(world)]
    output = torch.zeros(world, dtype=torch.int64)
    dist.all_to_all_single(output, torch.arange(world) + 10 * rank)
    assert output.tolist() == [10 * r + rank for r in range(world)]
    # Rank r sends r + 1 rows to each.
    output = torch.zeros(sum(range(1, world + 1)), 2)
    dist.all_to_all_single(
        output,
        torch.full((world * (rank + 1), 2), float(rank)),
        list(range(1, world + 1)),
        [rank + 1] * world,
    )
    assert output[:, 0].tolist() == [float(r) for r in range(world) for _ in range(r + 1)]


def point_to_point(rank: int, world: int) -> None:
    following, previous = (rank + 1) % world, (rank - 1) % world
    received = torch.zeros(3, dtype=torch.bfloat16)
    sending = dist.isend(torch.full((3,), float(rank), dtype=torch.bfloat16), following, tag=7)
    dist.recv(received, previous, tag=7)
    sending.wait()
    assert received.tolist() == [float(previous)] * 3
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.tensor([rank]), following),
            dist.P2POp(dist.irecv, column := torch.zeros(1, 2, dtype=torch.int64)[:, 0], previous),
        ]
    )
    for work in works:
        work.wait()
    assert column.item() == previous
    with pytest.raises(RuntimeError, match="give recv a src"):
        dist.recv(torch.zeros(1))


def coalesced(rank: int, world: int) -> None:
    total = sum(range(1, world + 1))
    tensors = [torch.full((2,), float(rank + 1)), torch.full((3, 1), 10.0 * (rank + 1))]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert tensors[0].tolist() == [total] * 2
    assert tensors[1].tolist() == [[10.0 * total]] * 3
    outputs = [torch.zeros(world), torch.zeros(2 * world)]
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_gather_into_tensor(outputs[0], torch.tensor([float(rank)]))
        dist.all_gather_into_tensor(outputs[1], torch.tensor([float(rank)] * 2))
    manager.wait()
    assert outputs[0].tolist() == list(range(world))
    assert outputs[1].tolist() == [float(r) for r in range(world) for _ in range(2)]


def objects(rank: int, world: int) -> None:
    gathered: list[object] = [None] * world
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": r, "text": "x" * r} for r in range(world)]
    given = [{"seed": 3}, "abc"] if rank == 0 else [None, None]
    dist.broadcast_object_list(given, 0)
    assert given == [{"seed": 3}, "abc"]
    dist.barrier()


def asynchronous(rank: int, world: int) -> None:
    total = float(sum(range(1, world + 1)))
    tensors = [torch.full((100,), (rank + 1) * (i + 1.0)) for i in range(5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    doubled = works[3].get_future().then(lambda future: future.value()[0] * 2)
    for index in (4, 0, 2, 1, 3):
        assert works[index].wait()
        assert works[index].is_completed()
        assert tensors[index].tolist() == [total * (index + 1)] * 100
    assert torch.equal(doubled.wait(), tensors[3] * 2)
    assert works[0].get_future().wait()[0] is tensors[0]
    done = works[1].get_future()
    assert done is works[1].get_future() and done.done()


def refusals(rank: int, world: int) -> None:
    """Every rank refuses alike, before anything is sent: the group goes on."""
    with pytest.raises(RuntimeError, match="band works on integers and bool, not on float32"):
        reduced(torch.ones(1), Op.BAND)
    with pytest.raises(RuntimeError, match="avg is not defined for bool"):
        reduced(torch.ones(1, dtype=torch.bool), Op.AVG)
    with pytest.raises(RuntimeError, match="dense tensors"):
        reduced(torch.eye(2).to_sparse())
    with pytest.raises(RuntimeError, match="on the cpu, not on meta"):
        reduced(torch.empty(2, device="meta"))
    with pytest.raises(RuntimeError, match="no reduce operation"):
        reduced(torch.ones(1), dist._make_nccl_premul_sum(2.0))
    with pytest.raises(RuntimeError, match=f"2 tensors given for {world} ranks"):
        dist.all_gather([torch.zeros(1)] * 2, torch.zeros(1))
    with pytest.raises(RuntimeError, match="this rank gives 2 elements, its output has 1"):
        dist.all_gather([torch.zeros(1)] * world, torch.zeros(2))
    with pytest.raises(RuntimeError, match="reduce_scatter: the tensor for rank 0 has 2 elements, not 1"):
        dist.reduce_scatter(torch.zeros(1), [torch.zeros(2)] * world)
    assert reduced(torch.ones(1)).item() == world


CHECKS = [
    all_reduce_of_every_dtype,
    all_reduce_with_every_operation,
    all_reduce_of_bool,
    bfloat16_is_summed_in_float32,
    any_strides,
    nothing_to_exchange,
    broadcast_of_every_dtype,
    gathers,
    scatters,
    reductions_to_one_rank,
    all_to_all,
    point_to_point,
    coalesced,
    objects,
    asynchronous,
    refusals,
]
