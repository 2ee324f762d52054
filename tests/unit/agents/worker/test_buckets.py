"""That DDP fills its buckets as `agents.backward` says: what the simulated world hands over is what torch does."""

# No `from __future__ import annotations` here: DDP looks at the annotations of a communication hook.

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from agents.backward import fill_buckets
from agents.worker.models import build_model, reads
from agents.worker.training import MIB
from testbed.experiments.models import gradient_sizes, parameter_count

torch.set_num_threads(1)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch):
    """A group of this process only."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def buckets_of_ddp(name: str, bucket_bytes: int) -> list[list[int]]:
    """The elements of every bucket that DDP hands over, of three iterations."""
    model = build_model(name, 1)
    replica = DistributedDataParallel(model, bucket_cap_mb=bucket_bytes / MIB, init_sync=False)
    seen: list[int] = []

    def hook(_state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        assert bucket.index() == len(seen)
        seen.append(bucket.buffer().numel())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    replica.register_comm_hook(None, hook)
    found = []
    for _ in range(3):
        seen.clear()
        inputs = torch.randint(1, 99, (2, 12)) if reads(name) == "text" else torch.rand(2, 1, 28, 28)
        nn.functional.cross_entropy(replica(inputs), torch.tensor([1, 2])).backward()
        found.append(list(seen))
    return found


@pytest.mark.parametrize("name", ["2nn", "cnn", "textcnn", "mlp-500k", "mlp-20k"])
@pytest.mark.parametrize("bucket_bytes", [1024, 160_000, 500_000, 1_048_576])
def test_buckets_are_those_of_ddp(alone: None, name: str, bucket_bytes: int) -> None:
    gradients = gradient_sizes(name)
    assert sum(gradients) == parameter_count(name)
    first, *others = buckets_of_ddp(name, bucket_bytes)
    assert first == [parameter_count(name)], "before the first iteration DDP does not know the order"
    assert others == [list(fill_buckets(gradients, bucket_bytes))] * 2
