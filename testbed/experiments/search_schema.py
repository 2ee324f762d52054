"""What an experiment file may say of hyper-parameter searches; part of `testbed.experiments.schema`."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

SPACE_KEYS = ("model", "lr", "batch", "momentum", "optimizer")
POLICIES = ("fair", "fifo_lm", "sincronia", "beamer")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,31}", re.ASCII)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TunerEntry(_Strict):
    """One search. Its trials are training jobs of several workers, all tuners of an experiment run at once.

    Attributes:
        name: Of the search; tuner1, tuner2, ... where left out.
        kind: halving, hyperband, pbt, asha, random or grid.
        options: Of its kind, as docs/coflows.md lists them: halving has trials, eta, rungs, iterations and resume.
        workers: Of every trial, each at a site of its own.
        sites: To draw them from, by the experiment's seed; all where left out.
        space: What is searched: choices, or {low, high, log}, for model, lr, batch, momentum and optimizer.
        sampler: Where configurations come from; grid takes every combination in turn.
        seed: Added to the turn's own, so that tuners alike search differently; its place where left out.
    """

    name: str | None = None
    kind: str = "halving"
    options: dict[str, Any] = {}
    workers: int = Field(default=2, ge=2, le=64)
    sites: tuple[str, ...] = ()
    space: dict[str, Any] = {}
    sampler: Literal["random", "grid", "optuna"] = "random"
    seed: int | None = Field(default=None, ge=0, lt=2**31)

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str | None) -> str | None:
        if name is not None and not _NAME.fullmatch(name):
            raise ValueError(f"{name[:60]!r} is not a tuner's name; use letters, digits and '_'")
        return name

    @field_validator("space")
    @classmethod
    def _known_keys(cls, space: dict[str, Any]) -> dict[str, Any]:
        for key in space:
            if key not in SPACE_KEYS:
                raise ValueError(f"{key[:60]!r} cannot be searched; what can: {', '.join(SPACE_KEYS)}")
        return space


class PolicyEntry(_Strict):
    """One order of coflows; with tuners, a turn of the experiment.

    Attributes:
        name: An ordering of docs/coflows.md.
        options: Of that ordering.
        label: How it is shown; without it the name.
    """

    name: str
    options: dict[str, Any] = {}
    label: str | None = None

    @property
    def ordering(self) -> dict[str, Any]:
        """What the registry of orderings makes one of."""
        return {"name": self.name, "options": self.options}

    @property
    def shown(self) -> str:
        return self.label or self.name


def policy_entry(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value
