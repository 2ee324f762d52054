"""`agents.numpy_worker` with torch beside it: `python -m agents.worker.tensors`, for experiments that name gloo.

The same integers, the same comparison of every element of every sum; only who sums differs from segment to segment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch

from agents.local import LocalClient
from agents.numpy_worker import Reduce, Segment, serve
from agents.planning.registry import library_of
from agents.worker.gloo import Gloo, explain, meeting, sum_over

_gloo: list[Gloo] = []


def choose(client: LocalClient, segment: Segment) -> Reduce | None:
    """Gloo where the segment names it, else the agents."""
    if not segment.scheduler or not library_of(segment.scheduler):
        return None
    if not _gloo:
        store = meeting(os.environ, client.rank, client.world_size)
        _gloo.append(Gloo(client.rank, client.world_size, store))
    group = _gloo[0].group(segment.timeout_s)

    def reduce(arrays: Sequence[Any]) -> None:
        try:
            sum_over(group, arrays)
        except RuntimeError as error:
            raise explain(error) from error

    return reduce


if __name__ == "__main__":
    torch.set_num_threads(1)
    status = serve(choose)
    # Threads of gloo may still let go of Python objects, which a dying interpreter answers with an abort.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
