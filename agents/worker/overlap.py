"""Buckets that travel while the backward pass still runs, those of earlier layers in a higher class.

The backward pass begins with the last layers, so their buckets are full first. DDP calls the hook with each of them,
and the hook hands it to the agents at once. What comes later belongs to earlier layers, is waited for by everything
after it, and must not queue behind what was sent before: each further bucket has the next higher class (0, 1, .. 7),
which lanes and links serve first.

A declared compute time is spread over the buckets: the forward pass takes a third of it, as a backward pass costs
about twice as much, and the backward pass takes its time in proportion to the parameters (own).
"""

# No `from __future__ import annotations` here: DDP looks at the annotations of a communication hook.

from typing import Final

import torch
import torch.distributed as dist

from agents.sync.spec import MOST_CLASS
from agents.worker.process_group import StormbedProcessGroup
from agents.worker.split import Hook

FORWARD: Final = 1 / 3


def class_of(bucket: int) -> int:
    """The class of a bucket by its place among them, 0 being full first."""
    return min(MOST_CLASS, bucket)


def share_of_time(done: int, parameters: int) -> float:
    """Which share of an iteration's compute time is over when so many parameters have their gradients."""
    return FORWARD + (1 - FORWARD) * done / parameters


def in_classes(group: StormbedProcessGroup) -> Hook:
    """What DDP does with a bucket by itself, in the class of its place."""

    def hook(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        tensor = bucket.buffer().div_(group.size())
        work = group.allreduce_in_class(tensor, class_of(bucket.index()))
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future

    return hook
