"""DistributedDataParallel over the backend, beside the same training in a single process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .hub import run_ranks

torch.set_num_threads(1)


class TwoHeads(nn.Module):
    """Uses one of two heads a step: without find_unused_parameters DDP would wait for the other for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.heads = nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 2)])

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        return self.heads[head](self.norm(self.body(x)))


def test_several_buckets_rebuilt_and_first_weights_of_rank_0():
    def body(rank, world):
        torch.manual_seed(rank)  # different weights: DDP must bring those of rank 0 to all
        model = nn.Sequential(
            nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 3)
        )
        replica = DistributedDataParallel(model, bucket_cap_mb=0.2)
        torch.manual_seed(0)
        alone = nn.Sequential(
            nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 3)
        )
        for a, b in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.equal(a, b)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, alone)]
        generator = torch.Generator().manual_seed(5)
        collectives = []
        for _ in range(4):
            x, y = (
                torch.randn(6 * world, 20, generator=generator),
                torch.randint(3, (6 * world,), generator=generator),
            )
            mine = slice(6 * rank, 6 * rank + 6)
            dist.group.WORLD.take_records()
            for net, inputs, targets, optimizer in [
                (replica, x[mine], y[mine], optimizers[0]),
                (alone, x, y, optimizers[1]),
            ]:
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(inputs), targets).backward()
                optimizer.step()
            collectives.append([r.kind for r in dist.group.WORLD.take_records()])
        for a, b in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-5)
        # The first step has one bucket, then integers say how the buckets are rebuilt.
        assert collectives[0] == ["allreduce"]
        assert collectives[1][:2] == ["broadcast", "broadcast"] and collectives[1].count("allreduce") > 1
        assert collectives[2] == collectives[3] == ["allreduce"] * collectives[1].count("allreduce")

    run_ranks(3, body)


def test_unused_parameters_and_buffers():
    def body(rank, world):
        torch.manual_seed(0)
        model = TwoHeads()
        replica = DistributedDataParallel(model, find_unused_parameters=True)
        for step in range(3):
            model.zero_grad()
            # Rank 0 uses head 0, the others head 1; in the last step nobody uses head 1.
            replica(torch.randn(5, 4), head=0 if rank == 0 or step == 2 else 1).sum().backward()
            assert (
                model.heads[0].bias.grad.tolist() == [5.0 * (1 if step == 2 else 1 / world)] * 2 or step < 2
            )
            assert (model.heads[1].weight.grad is None) == (step == 2)
        gathered = [torch.zeros(8) for _ in range(world)]
        with torch.no_grad():
            replica(torch.randn(5, 4), head=0)  # brings rank 0's buffers to all before it computes
        dist.all_gather(gathered, model.body.weight.grad.sum(1))
        assert all(torch.equal(gathered[0], other) for other in gathered)
        return model.norm.num_batches_tracked.item()

    assert run_ranks(2, body) == [4, 4]


def test_buffers_follow_rank_0():
    def body(rank, world):
        model = nn.BatchNorm1d(3)
        replica = DistributedDataParallel(model)
        for _ in range(2):
            replica(torch.full((4, 3), float(rank)) + torch.arange(4.0)[:, None]).sum().backward()
        # What a rank saw in the last step is its own; all before is rank 0's.
        before = 0.9 * 1.5 * 0.1
        return [round(v, 5) for v in (model.running_mean - 0.1 * (1.5 + rank) - before).tolist()]

    assert run_ranks(2, body) == [[0.0] * 3] * 2


def test_a_compression_hook_of_torch():
    def body(rank, world):
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model = nn.Linear(3, 1, bias=False)
        replica = DistributedDataParallel(model)
        replica.register_comm_hook(None, fp16_compress_hook)
        replica(torch.full((1, 3), float(rank + 1))).sum().backward()
        assert torch.allclose(model.weight.grad, torch.full((1, 3), (world + 1) / 2), rtol=1e-2)
        assert [r.dtype for r in dist.group.WORLD.take_records() if r.kind == "allreduce"] == ["float16"]

    run_ranks(2, body)


def test_a_site_that_leaves_ends_backward_with_the_cause():
    def body(rank, world):
        model = nn.Linear(3, 1)
        replica = DistributedDataParallel(model, init_sync=False)
        replica(torch.ones(1, 3)).sum().backward()
        with pytest.raises(RuntimeError, match=r"allreduce \(float32, 4 elements\): site dc2 left"):
            for _ in range(2):
                replica(torch.ones(1, 3)).sum().backward()
        assert str(dist.group.WORLD.failure) == "site dc2 left: its agent is gone"

    # The second step's two broadcasts pass; its gradients do not.
    run_ranks(2, body, fail_after=3)
