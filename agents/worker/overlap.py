"""Buckets that travel while the backward pass still runs, those of earlier layers in a higher class.

DDP calls the hook with each bucket that is full, and the hook hands it to the agents at once, in the class that
`agents.backward` gives it.
"""

# No `from __future__ import annotations` here: DDP looks at the annotations of a communication hook.

import torch
import torch.distributed as dist

from agents.backward import class_of
from agents.worker.process_group import StormbedProcessGroup
from agents.worker.split import Hook


def in_classes(group: StormbedProcessGroup) -> Hook:
    """What DDP does with a bucket by itself, in the class of its place."""

    def hook(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        tensor = bucket.buffer().div_(group.size())
        work = group.allreduce_in_class(tensor, class_of(bucket.index()))
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future

    return hook
