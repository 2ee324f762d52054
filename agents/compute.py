"""Declared compute times: how long workers take for their gradients, drawn alike in every world.

Apart from `agents.worker` because the simulated world draws the same times without torch.
"""

from __future__ import annotations

import math
import os
import time
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from topologies.errors import UsageError

CPU_SHARE: Final = "STORMBED_CPU_SHARE"
"""The share of a core that this worker is to be held to by waiting, where no control group does it."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ComputeTime(BaseModel):
    """How long one forward and backward pass takes: lognormal with this mean and coefficient of variation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean_s: Positive
    cv: NotNegative = 0.0

    def draw(self, seed: int, rank: int, iteration: int) -> float:
        """Seconds, the same for the same arguments."""
        if not self.cv:
            return self.mean_s
        variance = math.log1p(self.cv**2)
        generator = np.random.default_rng([seed, rank, iteration])
        return float(generator.lognormal(math.log(self.mean_s) - variance / 2, math.sqrt(variance)))


class Compute(ComputeTime):
    """A compute time for all sites, with exceptions for some."""

    sites: dict[str, ComputeTime] = Field(default_factory=dict)

    def at(self, site: str) -> ComputeTime:
        return self.sites.get(site, self)


class Pass:
    """One forward and backward pass of a worker: how long it has to wait before it may end.

    A declared time is waited for. So is the time in which a worker held to `share` of a core would have used the
    CPU time that this one has: both are the same wait, so the longer one counts.

    Args:
        compute: the declared time, or `real` for none.
        site: the worker's.
        share: of a core, above 0 and at most 1.
    """

    def __init__(self, compute: Literal["real"] | Compute, site: str, share: float = 1.0) -> None:
        self._compute = None if compute == "real" else compute.at(site)
        self._share = share
        self._begun_s = self._cpu_s = self._declared_s = 0.0

    @property
    def waits(self) -> bool:
        """Whether there can be anything to wait for."""
        return self._compute is not None or self._share < 1

    def begin(self, seed: int, rank: int, iteration: int, part: float = 1.0) -> None:
        """It starts now, with so much of a batch, which takes as much of the declared time."""
        self._begun_s, self._cpu_s = time.monotonic(), time.process_time()
        self._declared_s = 0.0 if self._compute is None else part * self._compute.draw(seed, rank, iteration)

    def left_s(self, part: float = 1.0) -> float:
        """How long so much of it still has to last, in seconds."""
        throttled_s = (time.process_time() - self._cpu_s) / self._share if self._share < 1 else 0.0
        return max(0.0, max(part * self._declared_s, throttled_s) - (time.monotonic() - self._begun_s))


def cpu_share() -> float:
    """What the environment says this worker is to be held to; 1 where it says nothing. Raises UsageError."""
    text = os.environ.get(CPU_SHARE, "1")
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UsageError(f"{CPU_SHARE} is {text[:20]!r}, which is no share of a core", hint="write for example 0.5")
    return share
