"""Declared compute times: how long workers take for their gradients, drawn alike in every world.

Apart from `agents.worker` because the simulated world draws the same times without torch.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

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
