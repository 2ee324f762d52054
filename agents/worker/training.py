"""Training of one model over one group of workers: what a worker does between two messages of the runner."""

# No `from __future__ import annotations` here: DDP looks at the annotations of a communication hook, and
# refuses strings.

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from agents.backward import share_of_time
from agents.compute import Pass, cpu_share
from agents.data import Batches, Dataset, load_dataset
from agents.planning.registry import library_of
from agents.worker.gloo import Gloo
from agents.worker.models import build_model, parameter_count, reads
from agents.worker.overlap import in_classes
from agents.worker.parameters import Arrays, parameters_of
from agents.worker.process_group import StormbedProcessGroup
from agents.worker.segment import Segment
from agents.worker.split import Hook, Split, telling
from agents.worker.work import Record
from topologies.errors import UsageError

MIB: Final = 1024 * 1024
_FLOATING: Final = frozenset({"float16", "bfloat16", "float32", "float64"})


@dataclass(frozen=True)
class Iteration:
    """One iteration of one worker. Times are CLOCK_MONOTONIC.

    Attributes:
        number: counted from 0 in its segment.
        start_ns: before the forward pass.
        ready_ns: the last gradient was handed over.
        done_ns: the last result arrived.
        end_ns: the step of the optimizer was taken.
        loss: of this worker's batch.
        computed_ns: the forward and backward pass themselves, without padding to a declared time.
        accuracy: on the test data; None where it was not measured.
        batch: samples of this worker.
    """

    number: int
    start_ns: int
    ready_ns: int
    done_ns: int
    end_ns: int
    loss: float
    computed_ns: int
    accuracy: float | None
    batch: int


def make_optimizer(model: nn.Module, segment: Segment) -> torch.optim.Optimizer:
    if segment.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=segment.lr)
    return torch.optim.SGD(model.parameters(), lr=segment.lr, momentum=segment.momentum)


class Pace:
    """Holds back the last gradients of an iteration until its pass may end.

    With `parameters`, all of the model's, each bucket is held back for its share of that time.
    """

    def __init__(self, rank: int, one_pass: Pass, seed: int, send: Hook, parameters: int = 0) -> None:
        self._parameters = parameters
        self._done = 0
        self._rank = rank
        self._pass = one_pass
        self._seed = seed
        self._send = send
        self.computed_ns = 0

    def begin(self, iteration: int, share: float) -> None:
        """An iteration begins; `share` of the declared batch is computed, in as much of the declared time."""
        self._pass.begin(self._seed, self._rank, iteration, share)
        self._done = 0

    def hook(self, _state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """DDP's communication hook: `send`, later."""
        self._done += bucket.buffer().numel()
        if bucket.is_last():
            self.computed_ns = time.monotonic_ns()
            time.sleep(self._pass.left_s())
        elif self._parameters:
            time.sleep(self._pass.left_s(share_of_time(self._done, self._parameters)))
        return self._send(bucket)


class Training:
    """A model, its optimizer and its data; lives as long as segments go on from one another.

    Args:
        group: all workers.
        site: this worker's site, for compute times per site.
        segment: the first segment, which decides model, data and order.
        dataset: already loaded data, or None.
        gloo: exchanges the gradients of segments that name it; without it they are refused.
    """

    def __init__(
        self,
        group: StormbedProcessGroup,
        site: str,
        segment: Segment,
        dataset: Dataset | None = None,
        gloo: Gloo | None = None,
    ) -> None:
        self._group = group
        self._gloo = gloo
        self._site = site
        self.first = segment
        self.history: list[Segment] = []
        self._iterations = 0
        self._split: Split | None = None
        data = dataset or load_dataset(segment.data, segment.seed, reads(segment.model))
        self._batches = Batches(data, segment.batch, group.size(), segment.seed)
        self.model = build_model(segment.model, segment.seed)
        self._optimizer = make_optimizer(self.model, segment)

    @property
    def dataset(self) -> Dataset:
        return self._batches.dataset

    def parameters(self) -> Arrays:
        return parameters_of(self.model)

    def run(self, segment: Segment) -> Iterator[Iteration]:
        """The iterations of a segment, one after the other, as they end."""
        self._check_continues(segment)
        self.history.append(segment)
        for options in self._optimizer.param_groups:
            options["lr"] = segment.lr
        self._group.take_records()
        group, hook, take = self._exchange(segment)
        self._split = self._split if segment.batches == "split" else None
        if segment.batches == "split":
            self._split = self._split or Split(segment.batch, self._group.rank(), self._group.size())
            hook = telling(self._split, group, hook or partial(default_hooks.allreduce_hook, group))
        pace = None
        one_pass = Pass(segment.compute, self._site, cpu_share())
        if one_pass.waits:
            send = hook or partial(default_hooks.allreduce_hook, group)
            parameters = parameter_count(self.model) if segment.overlap else 0
            pace = Pace(self._group.rank(), one_pass, segment.seed, send, parameters)
        replica = self._replica(segment, group, pace.hook if pace is not None else _as_ddp_has_it(hook))
        for number in range(segment.iterations):
            yield self._step(replica, segment, number, pace, take)

    def _exchange(
        self, segment: Segment
    ) -> tuple[dist.ProcessGroup, Hook | None, Callable[[], Sequence[Record]]]:
        """What exchanges the gradients: its group, a hook where DDP alone would leave no record, the records."""
        if not segment.scheduler or not (library := library_of(segment.scheduler)):
            return self._group, in_classes(self._group) if segment.overlap else None, self._group.take_records
        if self._gloo is None:
            raise UsageError(f"segment {segment.label!r}: these workers have no {library}")
        group = self._gloo.group(segment.timeout_s)
        self._gloo.take_records()
        return group, self._gloo.hook, self._gloo.take_records

    def _check_continues(self, segment: Segment) -> None:
        for name in ("model", "data", "batch", "seed", "optimizer", "momentum"):
            before, now = getattr(self.first, name), getattr(segment, name)
            if before != now:
                raise UsageError(
                    f"segment {segment.label!r} goes on with {name} {now!r} from {before!r}",
                    hint="set fresh: true",
                )

    def _replica(
        self, segment: Segment, group: dist.ProcessGroup, hook: Callable[..., Any] | None
    ) -> DistributedDataParallel:
        cap = segment.bucket_cap_mb
        if cap is None:
            cap = sum(p.numel() * p.element_size() for p in self.model.parameters()) / MIB + 1
        # Every worker draws the same first weights from the seed, so they are not sent through the network:
        # that would be a broadcast of the whole model in front of every segment.
        replica = DistributedDataParallel(
            self.model, process_group=group, bucket_cap_mb=cap, init_sync=False
        )
        if hook is not None:
            replica.register_comm_hook(None, hook)
        return replica

    def _step(
        self,
        replica: DistributedDataParallel,
        segment: Segment,
        number: int,
        pace: Pace | None,
        take: Callable[[], Sequence[Record]],
    ) -> Iteration:
        split = self._split
        sizes = None if split is None else split.sizes
        images, labels = self._batches.of(self._iterations, self._group.rank(), sizes)
        x, y = torch.from_numpy(images), torch.from_numpy(labels)
        start = time.monotonic_ns()
        if pace is not None:
            pace.begin(self._iterations, len(labels) / segment.batch)
        if split is not None:
            split.begin(start)
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(replica(x), y)
        (loss if split is None else loss * split.weight).backward()
        self._optimizer.step()
        if split is not None:
            split.end()
        end = time.monotonic_ns()
        self._iterations += 1
        gradients = _gradients(take())
        ready = max(r.submitted_ns for r in gradients)
        measured = segment.eval_every and (number + 1) % segment.eval_every == 0 and self._group.rank() == 0
        return Iteration(
            number=number,
            start_ns=start,
            ready_ns=ready,
            done_ns=max(r.done_ns for r in gradients),
            end_ns=end,
            loss=float(loss.detach()),
            computed_ns=(pace.computed_ns if pace is not None else ready) - start,
            accuracy=accuracy(self.model, self.dataset) if measured else None,
            batch=len(labels),
        )


def _as_ddp_has_it(hook: Hook | None) -> Callable[..., Any] | None:
    """The hook with the arguments and annotations that DDP asks for."""
    if hook is None:
        return None

    def with_state(_state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return hook(bucket)

    return with_state


def _gradients(records: Sequence[Record]) -> list[Record]:
    """Gradients are the all-reduces of floats; DDP's bookkeeping is broadcasts, and integers."""
    found = [r for r in records if r.kind == "allreduce" and r.dtype in _FLOATING]
    if not found:
        raise RuntimeError("an iteration passed without any gradient being exchanged")
    return found


def accuracy(model: Callable[[torch.Tensor], torch.Tensor], dataset: Dataset) -> float:
    """Share of the test data that the model tells right."""
    with torch.no_grad():
        guesses = model(torch.from_numpy(dataset.test_x)).argmax(1)
    return float((guesses == torch.from_numpy(dataset.test_y)).double().mean())
