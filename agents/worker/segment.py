"""What a worker is told about one segment of a job: so many iterations of training under one scheduler."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agents.compute import Compute
from topologies.validation import validated

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Segment(BaseModel):
    """One segment. Fields that concern others (the coordinator, the runner) are ignored.

    Attributes:
        label: names it in the trace.
        scheduler: as the experiment gives it; only recorded.
        iterations: steps of every worker.
        model: see `agents.worker.models`.
        data: see `agents.data`.
        batch: samples per worker and iteration.
        batches: `equal`, or `split`: after each iteration the joint batch is divided anew, so that all workers
            compute for about as long (`agents.planning.batches`).
        lr, momentum, optimizer: of `torch.optim.SGD` (momentum for sgd only) or `torch.optim.Adam`.
        compute: `real`, or a declared time that a pass is padded to.
        seed: of the first weights, of the order of the data, of synthetic data, of compute times.
        eval_every: rank 0 measures the accuracy on the test data after every so many iterations; 0 never.
        fresh: start from the first weights; False goes on from where the segment before ended.
        bucket_cap_mb: DDP's bucket size in MiB; None puts all gradients into one bucket, so that an iteration
            is one collective.
        overlap: hand each bucket over as soon as its gradients are there, those of earlier layers in a higher class.
        save_parameters: rank 0 writes its parameters at the end, for `agents.worker.reference`.
        timeout_s: the longest that one collective may take.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    label: str
    scheduler: str | dict[str, Any] = ""
    iterations: Annotated[int, Field(ge=1)]
    model: str = "mlp-2m"
    data: str = "digits"
    batch: Annotated[int, Field(ge=1)] = 32
    batches: Literal["equal", "split"] = "equal"
    lr: Positive = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    optimizer: Literal["sgd", "adam"] = "sgd"
    compute: Literal["real"] | Compute = "real"
    seed: Annotated[int, Field(ge=0)] = 0
    eval_every: Annotated[int, Field(ge=0)] = 0
    fresh: bool = True
    bucket_cap_mb: Positive | None = None
    overlap: bool = False
    save_parameters: bool = False
    timeout_s: Positive = 1800.0

    @property
    def data_key(self) -> tuple[str, int, bool]:
        """What decides the data set: its source, the seed where it is drawn, and whether it is text."""
        return self.data, self.seed if self.data == "synthetic" else 0, self.model == "textcnn"

    @property
    def scheduler_name(self) -> str:
        return self.scheduler if isinstance(self.scheduler, str) else str(self.scheduler.get("name", ""))


def parse_segment(given: dict[str, Any]) -> Segment:
    """Checks what a worker was told. Raises UsageError naming the field."""
    return validated(Segment, given, f"segment {given.get('label', '?')!r}")
