"""The `torch.distributed` backend `stormbed`: every collective goes through the agent of this worker's site.

A Python subclass of `ProcessGroup`; checked with torch 2.13. The methods and their argument lists are torch's
(torch/distributed/distributed_c10d.py, and PyProcessGroup.hpp for the calls that DDP makes from C++).

Collectives keep their order of calls, which must be the same at every rank; `send` and `recv` stand beside
that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch

from agents.worker.arguments import (
    Batch,
    check_tag,
    concatenated,
    listed,
    reduce_op,
    root_rank,
    split_into,
    timeout_seconds,
)
from agents.worker.buffers import for_reduction, for_transfer
from agents.worker.group import BACKEND, Group
from agents.worker.work import CollectiveWork

__all__ = ["BACKEND", "StormbedProcessGroup"]

# Exchanges of all-to-all are point to point. Tags of users are not negative.
ALL_TO_ALL_TAG: Final = -1


class StormbedProcessGroup(Group):
    """All workers of a job, as `torch.distributed` sees them; see `Group` for the arguments."""

    # --- reductions ---

    def allreduce(self, tensors: Any, opts: Any = None) -> CollectiveWork:
        return self._reduce_all("allreduce", listed(tensors), reduce_op(opts), timeout_seconds(opts))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> CollectiveWork:
        return self._reduce_all("allreduce", listed(tensors), reduce_op(opts), timeout_seconds(opts))

    def allreduce_in_class(self, tensor: torch.Tensor, cls: int) -> CollectiveWork:
        """The sum over all ranks, whose chunks go over the network in a class: 7 before all others, 0 last."""
        return self._reduce_all("allreduce", [tensor], "sum", None, cls)

    def _reduce_all(
        self, kind: str, tensors: list[torch.Tensor], op: str, timeout_s: float | None, cls: int = 0
    ) -> CollectiveWork:
        record = self._begin(kind, tensors)
        batch = Batch()
        if record.elements:
            # Several tensors travel as one: a wide-area network charges by the round trip.
            whole = tensors[0] if len(tensors) == 1 else concatenated(tensors)
            buffer = for_reduction(whole, op, self._world)
            batch.add(partial(self.client.allreduce, buffer.array, buffer.op, cls), buffer)
            if len(tensors) > 1:
                batch.finishers.append(lambda: split_into(whole, tensors))
        return self._launch(record, batch, tensors, timeout_s)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None) -> CollectiveWork:
        (tensor,) = listed(tensors)
        root = root_rank(opts)
        record = self._begin("reduce", [tensor])
        batch = Batch()
        if record.elements:
            name = reduce_op(opts if op is None else op)
            buffer = for_reduction(tensor, name, self._world, written=root == self._rank)
            batch.add(partial(self.client.reduce, buffer.array, root, buffer.op), buffer)
        return self._launch(record, batch, [tensor], timeout_seconds(opts))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> CollectiveWork:
        (output,) = listed(outputs)
        (parts,) = inputs
        record = self._begin("reduce_scatter", [output, *parts])
        batch = Batch()
        self._scatter_reduced(batch, output, list(parts), reduce_op(opts))
        return self._launch(record, batch, [output], timeout_seconds(opts))

    def reduce_scatter_single(
        self, output: torch.Tensor, inputs: torch.Tensor, opts: Any = None
    ) -> CollectiveWork:
        return self.reduce_scatter_single_coalesced([output], [inputs], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> CollectiveWork:
        record = self._begin("reduce_scatter", [*outputs, *inputs])
        batch = Batch()
        for output, whole in zip(outputs, inputs, strict=True):
            self._scatter_reduced(batch, output, self._in_parts(whole, output), reduce_op(opts))
        return self._launch(record, batch, outputs, timeout_seconds(opts))

    def _scatter_reduced(
        self, batch: Batch, output: torch.Tensor, parts: list[torch.Tensor], op: str
    ) -> None:
        """One reduction to each rank, so every element crosses the network once."""
        self._expect_parts("reduce_scatter", parts, output.numel())
        if not output.numel():
            return
        for rank, part in enumerate(parts):
            mine = rank == self._rank
            if mine:
                output.detach().copy_(part.detach().reshape(output.shape))
            buffer = for_reduction(output if mine else part, op, self._world, written=mine)
            batch.add(partial(self.client.reduce, buffer.array, rank, buffer.op), buffer)

    # --- transfers ---

    def broadcast(self, tensors: Any, opts: Any = None) -> CollectiveWork:
        (tensor,) = listed(tensors)
        root = root_rank(opts)
        record = self._begin("broadcast", [tensor])
        batch = Batch()
        if record.elements:
            buffer = for_transfer(tensor, written=root != self._rank)
            batch.add(partial(self.client.broadcast, buffer.array, root), buffer)
        return self._launch(record, batch, [tensor], timeout_seconds(opts))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> CollectiveWork:
        (tensor,) = listed(inputs)
        (parts,) = outputs
        record = self._begin("allgather", [tensor, *parts])
        batch = Batch()
        self._gather_everywhere(batch, list(parts), tensor)
        return self._launch(record, batch, [list(parts)], timeout_seconds(opts))

    def allgather_coalesced(
        self, outputs: Any, inputs: list[torch.Tensor], opts: Any = None
    ) -> CollectiveWork:
        # Outputs are one list per rank of one tensor per input.
        record = self._begin("allgather", [*inputs, *(t for per_rank in outputs for t in per_rank)])
        batch = Batch()
        for index, tensor in enumerate(inputs):
            self._gather_everywhere(batch, [per_rank[index] for per_rank in outputs], tensor)
        return self._launch(record, batch, [list(per_rank) for per_rank in outputs], timeout_seconds(opts))

    def all_gather_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> CollectiveWork:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> CollectiveWork:
        record = self._begin("allgather", [*inputs, *outputs])
        batch = Batch()
        for output, tensor in zip(outputs, inputs, strict=True):
            self._gather_everywhere(batch, self._in_parts(output, tensor), tensor)
        return self._launch(record, batch, outputs, timeout_seconds(opts))

    def _gather_everywhere(self, batch: Batch, parts: list[torch.Tensor], tensor: torch.Tensor) -> None:
        self._expect_parts("allgather", parts)
        if parts[self._rank].numel() != tensor.numel():
            given_here, own = tensor.numel(), parts[self._rank].numel()
            raise RuntimeError(f"allgather: this rank gives {given_here} elements, its output has {own}")
        if len({part.numel() for part in parts}) > 1:
            self._gather_uneven(batch, parts, tensor)
            return
        if not tensor.numel():
            return
        given = for_transfer(tensor, written=False)
        taken = [for_transfer(part, written=True) for part in parts]
        batch.add(partial(self.client.allgather, given.array, [b.array for b in taken]), *taken)

    def _gather_uneven(self, batch: Batch, parts: list[torch.Tensor], tensor: torch.Tensor) -> None:
        """One broadcast from each rank: every rank knows all lengths from its outputs."""
        parts[self._rank].detach().copy_(tensor.detach().reshape(parts[self._rank].shape))
        for rank, part in enumerate(parts):
            if part.numel():
                buffer = for_transfer(part, written=rank != self._rank)
                batch.add(partial(self.client.broadcast, buffer.array, rank), buffer)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> CollectiveWork:
        (tensor,) = listed(inputs)
        root = root_rank(opts)
        parts: list[torch.Tensor] = list(outputs[0]) if outputs and root == self._rank else []
        record = self._begin("gather", [tensor, *parts])
        batch = Batch()
        if root == self._rank:
            self._expect_parts("gather", parts, tensor.numel())
        if tensor.numel():
            given = for_transfer(tensor, written=False)
            taken = [for_transfer(part, written=True) for part in parts]
            out = [b.array for b in taken] if root == self._rank else None
            batch.add(partial(self.client.gather, given.array, out, root), *taken)
        return self._launch(record, batch, [parts], timeout_seconds(opts))

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> CollectiveWork:
        (tensor,) = listed(outputs)
        root = root_rank(opts)
        parts: list[torch.Tensor] = list(inputs[0]) if inputs and root == self._rank else []
        record = self._begin("scatter", [tensor, *parts])
        batch = Batch()
        if root == self._rank:
            self._expect_parts("scatter", parts, tensor.numel())
        if tensor.numel():
            taken = for_transfer(tensor, written=True)
            arrays = [for_transfer(part, written=False).array for part in parts]
            given = arrays if root == self._rank else None
            batch.add(partial(self.client.scatter, taken.array, given, root), taken)
        return self._launch(record, batch, [tensor], timeout_seconds(opts))

    def barrier(self, opts: Any = None) -> CollectiveWork:
        record = self._begin("barrier", [])
        batch = Batch()
        batch.add(self.client.barrier)
        return self._launch(record, batch, [], timeout_seconds(opts))

    # --- point to point ---

    def send(self, tensors: Any, destination: int, tag: int = 0) -> CollectiveWork:
        (tensor,) = listed(tensors)
        check_tag(tag)
        record = self._begin("send", [tensor])
        batch = Batch()
        if record.elements:
            buffer = for_transfer(tensor, written=False)
            batch.add(partial(self.client.send, buffer.array, destination, tag), buffer)
        return self._launch(record, batch, [tensor], None)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> CollectiveWork:
        (tensor,) = listed(tensors)
        check_tag(tag)
        record = self._begin("recv", [tensor])
        batch = Batch()
        if record.elements:
            buffer = for_transfer(tensor, written=True)
            batch.add(partial(self.client.recv, buffer.array, source, tag), buffer)
        return self._launch(record, batch, [tensor], None)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> CollectiveWork:
        raise RuntimeError("stormbed receives from a named rank: give recv a src")

    def alltoall(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> CollectiveWork:
        record = self._begin("alltoall", [*inputs, *outputs])
        self._expect_parts("alltoall", inputs)
        self._expect_parts("alltoall", outputs)
        batch = Batch()
        for rank, (output, tensor) in enumerate(zip(outputs, inputs, strict=True)):
            if rank == self._rank:
                output.detach().copy_(tensor.detach().reshape(output.shape))
                continue
            if output.numel():
                taken = for_transfer(output, written=True)
                batch.add(partial(self.client.recv, taken.array, rank, ALL_TO_ALL_TAG), taken)
            if tensor.numel():
                given = for_transfer(tensor, written=False)
                batch.add(partial(self.client.send, given.array, rank, ALL_TO_ALL_TAG))
        return self._launch(record, batch, outputs, timeout_seconds(opts))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: Sequence[int] = (),
        input_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> CollectiveWork:
        outputs = self._rows(output, output_sizes)
        inputs = self._rows(tensor, input_sizes)
        if all(part.is_contiguous() for part in outputs):
            return self.alltoall(outputs, inputs, opts)
        raise RuntimeError("all_to_all_single: the output must be contiguous")

    def _rows(self, tensor: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        if not sizes:
            rows, rest = divmod(tensor.shape[0], self._world)
            if rest:
                raise RuntimeError(f"all_to_all_single: {tensor.shape[0]} rows over {self._world} ranks")
            sizes = [rows] * self._world
        return list(torch.split(tensor.detach(), list(sizes)))

    # Names that earlier releases of torch call.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
