"""Train a small network with DistributedDataParallel: every rank on its own points, all with the same parameters.

testbed torchrun examples/ddp.py --epochs 3

Nothing in it knows of the testbed: it is written for gloo, and for any launcher that sets RANK and WORLD_SIZE.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def points(count: int) -> TensorDataset:
    """The same points at every rank; each takes its share of them."""
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, torch.sin(x).sum(dim=1, keepdim=True))


def train(epochs: int) -> None:
    torch.manual_seed(dist.get_rank())  # DDP sends rank 0's first weights to all
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 512), nn.ReLU(), nn.Linear(512, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = points(2304)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for x, y in DataLoader(data, batch_size=64, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(x) / len(sampler)
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1} loss {total.item() / dist.get_world_size():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    epochs = parser.parse_args().epochs
    dist.init_process_group("gloo")
    train(epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
