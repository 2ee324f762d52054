"""Reads the arguments that torch hands to a process group, and collects what they ask of the client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from agents.worker.buffers import Buffer
from agents.worker.work import Handle

_OPS: Final = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "avg"),
    (dist.ReduceOp.PRODUCT, "prod"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.BAND, "band"),
    (dist.ReduceOp.BOR, "bor"),
    (dist.ReduceOp.BXOR, "bxor"),
)


@dataclass
class Batch:
    """Calls on the client that make up one collective of torch, and what is to be done with their results."""

    calls: list[Callable[[], Handle]] = field(default_factory=list)
    finishers: list[Callable[[], None]] = field(default_factory=list)

    def add(self, call: Callable[[], Handle], *buffers: Buffer) -> None:
        self.calls.append(call)
        self.finishers.extend(buffer.finish for buffer in buffers if buffer.finish is not None)


def listed(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def reduce_op(opts: Any) -> str:
    given = getattr(opts, "reduceOp", opts)
    if given is None:
        return "sum"
    for op, name in _OPS:
        if given == op:
            return name
    raise RuntimeError(f"stormbed has no reduce operation {given}: {', '.join(name for _, name in _OPS)}")


def root_rank(opts: Any) -> int:
    return 0 if opts is None else int(getattr(opts, "rootRank", opts))


def timeout_seconds(opts: Any) -> float | None:
    """Seconds, or None where the caller leaves it to the group (torch passes -1 ms then)."""
    timeout = getattr(opts, "timeout", None)
    return timeout.total_seconds() if isinstance(timeout, timedelta) and timeout > timedelta(0) else None


def check_tag(tag: int) -> None:
    if tag < 0:
        raise RuntimeError(f"tag {tag}: tags are not negative")


def concatenated(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def split_into(whole: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    for tensor, part in zip(tensors, torch.split(whole, [t.numel() for t in tensors]), strict=True):
        tensor.detach().copy_(part.view(tensor.shape))
