"""PyTorch's own backend gloo in the same workers and over the same WAN: what users would take instead.

The workers find each other at MASTER_ADDR and MASTER_PORT, and gloo speaks over the interface that
GLOO_SOCKET_IFNAME names, as it does for any script of its users. The agents and the coordinator only begin and end
the segment.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from agents.planning.gloo import NAME
from agents.worker.work import Record
from topologies.errors import RunFailedError, UsageError

MEETING_SECONDS: Final = 120.0
KEYS: Final = ("MASTER_ADDR", "MASTER_PORT")


def meeting(environment: Mapping[str, str], rank: int, world: int) -> dist.Store:
    """The store of all ranks that the environment names; without one, a store of this process alone.

    The backend stormbed needs none. Waits until every rank is there. RunFailedError when one does not come.
    """
    if not all(key in environment for key in KEYS):
        return dist.HashStore()
    address, port = (environment[key] for key in KEYS)
    try:
        limit = timedelta(seconds=MEETING_SECONDS)
        return dist.TCPStore(address, int(port), world, is_master=rank == 0, timeout=limit)
    except (ValueError, RuntimeError) as error:
        raise RunFailedError(f"rank {rank} met nobody at {address}:{port}: {_first_line(error)}") from error


class Gloo:
    """Gloo over all ranks, made when first used; every rank has to use it at the same point.

    Args:
        rank, world: of this process.
        store: where all ranks meet.
    """

    def __init__(self, rank: int, world: int, store: dist.Store) -> None:
        self._rank = rank
        self._world = world
        self._store = store
        self._group: dist.ProcessGroup | None = None
        self._records: list[Record] = []

    @property
    def used(self) -> bool:
        """Whether gloo carries something by now."""
        return self._group is not None

    def group(self, timeout_s: float) -> dist.ProcessGroup:
        """The process group; `timeout_s` is how long one collective may take, as the first caller says.

        UsageError without a place to meet, RunFailedError when gloo cannot connect all ranks.
        """
        if self._group is None:
            if isinstance(self._store, dist.HashStore):
                raise UsageError(f"scheduler {NAME} needs {' and '.join(KEYS)} in the environment")
            try:
                limit = timedelta(seconds=timeout_s)
                if dist.is_initialized():
                    self._group = dist.new_group(backend=NAME, timeout=limit)
                else:
                    whom: dict[str, Any] = {"rank": self._rank, "world_size": self._world, "store": self._store}
                    dist.init_process_group(NAME, timeout=limit, **whom)
                    self._group = dist.group.WORLD
            except RuntimeError as error:
                raise RunFailedError(f"rank {self._rank}: {NAME}: {_first_line(error)}") from error
        assert self._group is not None
        return self._group

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What DDP does by itself, with a note of when."""
        tensor = bucket.buffer()
        record = Record(
            "allreduce", str(tensor.dtype).removeprefix("torch."), tensor.numel(), time.monotonic_ns()
        )
        self._records.append(record)

        def done(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            result = future.value()
            record.done_ns = time.monotonic_ns()
            return result

        future: torch.futures.Future[torch.Tensor] = default_hooks.allreduce_hook(self._group, bucket).then(done)
        return future

    def take_records(self) -> list[Record]:
        """The collectives since the last call, oldest first."""
        taken, self._records = self._records, []
        return taken


def _first_line(error: BaseException) -> str:
    # Of torch's errors the first line says what happened, the rest is a stack of C++.
    return (str(error).splitlines() or [type(error).__name__])[0]


def explain(error: BaseException) -> RunFailedError:
    """An error of gloo's own in one line."""
    return RunFailedError(f"{NAME}: {_first_line(error)}")


def sum_over(group: dist.ProcessGroup, arrays: Any) -> None:
    """Replaces each numpy array by its sum over all ranks."""
    works = [dist.all_reduce(torch.from_numpy(array), group=group, async_op=True) for array in arrays]
    for work in works:
        work.wait()
