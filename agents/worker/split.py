"""How the joint batch of an iteration is divided over the workers (`agents.planning.batches`).

Each worker tells all others how long its gradients took, in an all-gather of one number that travels beside the
gradients themselves. All of them come to the same new division from the same numbers, so that nobody has to be asked.
"""

# No `from __future__ import annotations` here: DDP looks at the annotations of a communication hook.

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from agents.planning.batches import next_batches

Hook = Callable[[dist.GradBucket], torch.futures.Future[torch.Tensor]]


class Split:
    """The division of the joint batch, iteration by iteration.

    Args:
        batch: samples a worker has at first.
        rank, world: of this process.

    Attributes:
        sizes: samples of every rank in the iteration under way.
    """

    def __init__(self, batch: int, rank: int, world: int) -> None:
        self.sizes: tuple[int, ...] = (batch,) * world
        self._rank = rank
        self._begun_ns = 0
        self._seconds = torch.zeros(world, dtype=torch.float64)
        self._under_way: dist.Work | None = None

    @property
    def own(self) -> int:
        """Samples of this worker."""
        return self.sizes[self._rank]

    @property
    def weight(self) -> float:
        """b_i N / B: what this worker's mean loss counts, so that the mean over workers is that over samples."""
        return self.own * len(self.sizes) / sum(self.sizes)

    def begin(self, now_ns: int) -> None:
        """The iteration begins."""
        self._begun_ns = now_ns

    def tell(self, group: dist.ProcessGroup) -> None:
        """This worker's gradients are there: every rank has to say so at the same point of its collectives."""
        own = torch.tensor([(time.monotonic_ns() - self._begun_ns) * 1e-9], dtype=torch.float64)
        self._under_way = dist.all_gather_into_tensor(self._seconds, own, group=group, async_op=True)

    def end(self) -> None:
        """The iteration is over: divide anew."""
        if self._under_way is not None:
            self._under_way.wait()
            self._under_way = None
            self.sizes = next_batches(self.sizes, self._seconds.tolist())


def telling(split: Split, group: dist.ProcessGroup, send: Hook) -> Hook:
    """`send`, but that the time is told in front of the last bucket."""

    def hook(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            split.tell(group)
        return send(bucket)

    return hook
