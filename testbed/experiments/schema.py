"""What an experiment file may say: its keys, their defaults, and what is wrong within the file alone. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from agents.coflow.levels import Enforcement
from agents.options import AuxiliaryOptions, AwarenessOptions, PolicyOptions
from testbed.experiments.models import TEXT_MODEL, is_model, is_tensor, parameter_count, tensor_sizes
from testbed.experiments.search_schema import PolicyEntry, TunerEntry, policy_entry
from testbed.timeline import RunDynamics, TimelineEntry
from topologies.units import Delay

MANAGEMENT = "management"

TEXT = "docstrings"
DATA = ("digits", "synthetic", TEXT)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_MODEL_FORMS = "mlp-SIZE such as mlp-2m, 2nn, cnn (FedAvg's), textcnn (of text), tensor-SIZE such as tensor-1m"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Compute(_Strict):
    """The time a worker's gradients take: lognormal with this mean and coefficient of variation.

    `sites` overrides the mean for single sites. The real computation still happens; the rest is waited. In a
    file the word `real` stands for no declared time at all.
    """

    mean: Delay | None = None
    cv: float = Field(default=0.0, ge=0, le=1)
    sites: dict[str, Delay] = {}

    @property
    def real(self) -> bool:
        return self.mean is None

    @model_validator(mode="before")
    @classmethod
    def _real_or_a_mean(cls, value: object) -> object:
        if value == "real":
            return {}
        if isinstance(value, dict) and value and not value.get("mean"):
            raise ValueError("a declared compute time needs its `mean`, for example {mean: 200ms, cv: 0.1}")
        if isinstance(value, str):
            raise ValueError(f"{value[:40]!r} is neither the word real nor a map with `mean`")
        return value

    @model_validator(mode="after")
    def _above_zero(self) -> Self:
        for where, mean in (
            ("mean", self.mean),
            *((f"sites.{site}", mean) for site, mean in self.sites.items()),
        ):
            if mean is not None and mean.ns == 0:
                raise ValueError(
                    f"{where}: a declared compute time is above zero; leave it out, or write real"
                )
        return self

    @model_serializer(mode="wrap")
    def _real_as_a_word(self, handler: SerializerFunctionWrapHandler) -> Any:
        return "real" if self.real else handler(self)


class Training(_Strict):
    """What every worker does.

    `batch` is per worker; with `batches: split` the joint batch is divided anew after each iteration, so that all
    workers compute for about as long, and a declared compute time is that of `batch` samples;
    with `overlap` gradients travel in buckets of about `bucket_bytes` while the backward pass still runs, those of
    earlier layers in a higher class; `chunk_elements` is how finely gradients are cut for the network;
    `deadline_s` is how long one collective may take before the run fails.
    Rank 0 measures the accuracy on the test data after
    every `eval_every` iterations (0: never) and keeps its last parameters with `save_parameters`. Reports say how
    long each scheduler took to `target_accuracy`; without it, to the highest accuracy that all of them reached.
    """

    model: str
    data: str = "digits"
    batch: int = Field(default=32, ge=1, le=4096)
    batches: Literal["equal", "split"] = "equal"
    lr: float = Field(default=0.05, gt=0)
    iterations: int = Field(default=10, ge=1, le=1_000_000)
    overlap: bool = False
    bucket_bytes: int = Field(default=1_048_576, ge=1024, le=2**30)
    chunk_elements: int = Field(default=100_000, ge=1, le=100_000_000)
    compute: Compute = Compute()
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = Field(default=0.0, ge=0, lt=1)
    eval_every: int = Field(default=0, ge=0)
    target_accuracy: float | None = Field(default=None, gt=0, le=1)
    save_parameters: bool = False
    deadline_s: float = Field(default=300.0, gt=0, le=86_400)

    @field_validator("model")
    @classmethod
    def _known_model(cls, model: str) -> str:
        if not is_model(model):
            raise ValueError(f"unknown model {model[:60]!r}; a model is {_MODEL_FORMS}")
        return model

    @field_validator("data")
    @classmethod
    def _known_data(cls, data: str) -> str:
        if data not in DATA and not data.endswith(".npz"):
            raise ValueError(f"unknown data {data[:60]!r}; data are {', '.join(DATA)} or a .npz file")
        return data

    @model_validator(mode="before")
    @classmethod
    def _text_for_textcnn(cls, value: object) -> object:
        if isinstance(value, dict) and value.get("model") == TEXT_MODEL:
            return {"data": TEXT} | value
        return value

    @model_validator(mode="after")
    def _data_fit_the_model(self) -> Self:
        if self.data in DATA and (self.data == TEXT) != (self.model == TEXT_MODEL):
            kind, fitting = ("text", TEXT) if self.model == TEXT_MODEL else ("images", "digits")
            raise ValueError(f"model {self.model} reads {kind}, not {self.data}; write data: {fitting}")
        return self

    @property
    def numpy_only(self) -> bool:
        """Whether the workers need no torch: they add integers, and check the sums."""
        return is_tensor(self.model)

    @property
    def tensors(self) -> tuple[int, ...]:
        """The sizes in elements of the tensors of a `tensor-` model, one all-reduce each."""
        return tensor_sizes(self.model)

    @property
    def parameters(self) -> int:
        """The number of parameters, which is what every worker hands over each iteration."""
        return parameter_count(self.model)


class SchedulerEntry(_Strict):
    """One scheduler's turn.

    `iterations` overrides the training's, the first `warmup` of them are not counted.
    `label` is how it is shown; without it the scheduler's own name. `awareness`, `auxiliary` and `policy`
    replace the experiment's, `batches` and `overlap` the training's.
    """

    name: str
    options: dict[str, Any] = {}
    awareness: AwarenessOptions | None = None
    auxiliary: AuxiliaryOptions | None = None
    policy: PolicyOptions | None = None
    batches: Literal["equal", "split"] | None = None
    overlap: bool | None = None
    iterations: int | None = Field(default=None, ge=1, le=1_000_000)
    warmup: int = Field(default=0, ge=0)
    label: str | None = None

    @field_validator("label")
    @classmethod
    def _plain_label(cls, label: str | None) -> str | None:
        if label is not None and not _NAME.fullmatch(label):
            raise ValueError(f"{label[:60]!r} is not a label; use letters, digits, '.', '_' and '-'")
        return label

    @property
    def scheduler(self) -> dict[str, Any]:
        """What the agents' registry makes a scheduler of."""
        return {"name": self.name, "options": self.options}


def _entry(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class Experiment(_Strict):
    """An experiment file. The same one runs in the emulated and in the simulated world.

    `scale` multiplies every rate of the topology, for machines that cannot carry them all at once; it is
    shown beside every result. `dynamics` and `timeline` change links during the run; see `testbed.timeline`.
    `repeats` runs the whole list of schedulers again, with the next seed. `order: shuffled` draws the order
    of the turns anew for each repeat, by its seed, so that what drifts on the machine meanwhile favours no
    scheduler; reports keep the order of the file. `awareness` measures the links and
    plans anew while a scheduler's turn lasts, `auxiliary` lets chunks take other paths, `policy` says how a
    new plan comes into force; see `agents.options`. `coordinator` is `management` (out of band, no traffic on
    the WAN) or a site, as its name or `{site: NAME}`.

    With `tuners` (or one `tuner`) the experiment is of hyper-parameter searches: all of them run at once under
    one of the `policies` after the other, every trial synchronises by the one scheduler, and `training` says
    what the searches leave open. `enforcement` is who keeps the order of coflows: the senders' gates, the
    network's classes, or both. `trainer` is what trials train with.
    """

    name: str
    topology: str
    scale: float = Field(default=1.0, gt=0, le=1000)
    dynamics: RunDynamics = RunDynamics()
    training: Training
    schedulers: tuple[Annotated[SchedulerEntry, BeforeValidator(_entry)], ...] = Field(min_length=1)
    awareness: AwarenessOptions = AwarenessOptions()
    auxiliary: AuxiliaryOptions = AuxiliaryOptions()
    policy: PolicyOptions = PolicyOptions()
    repeats: int = Field(default=1, ge=1, le=1000)
    order: Literal["declared", "shuffled"] = "declared"
    seed: int = Field(default=1, ge=0, lt=2**31)
    coordinator: str = MANAGEMENT
    world: Literal["emulated", "simulated"] = "emulated"
    timeline: tuple[TimelineEntry, ...] = Field(default=(), max_length=10_000)
    tuners: tuple[TunerEntry, ...] = Field(default=(), max_length=64)
    policies: tuple[Annotated[PolicyEntry, BeforeValidator(policy_entry)], ...] = ()
    enforcement: Enforcement = "both"
    trainer: Literal["numpy", "torch"] = "numpy"

    @model_validator(mode="before")
    @classmethod
    def _one_tuner(cls, value: object) -> object:
        if isinstance(value, dict) and "tuner" in value:
            if "tuners" in value:
                raise ValueError("give tuner or tuners, not both")
            rest = {key: entry for key, entry in value.items() if key != "tuner"}
            return {**rest, "tuners": [value["tuner"]]}
        return value

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:60]!r} is not a name; use letters, digits, '.', '_' and '-'")
        return name

    @field_validator("coordinator", mode="before")
    @classmethod
    def _place_of_the_coordinator(cls, value: object) -> object:
        if isinstance(value, dict):
            if set(value) != {"site"} or not isinstance(value["site"], str):
                raise ValueError(f"the coordinator runs out of band ({MANAGEMENT}) or at a site: {{site: NAME}}")
            return value["site"]
        return value

    @property
    def coordinator_site(self) -> str | None:
        """The site where the coordinator runs; None: out of band."""
        return None if self.coordinator == MANAGEMENT else self.coordinator

    @model_validator(mode="after")
    def _counts_fit(self) -> Self:
        for number, entry in enumerate(self.schedulers):
            iterations = entry.iterations or self.training.iterations
            if entry.warmup >= iterations:
                raise ValueError(
                    f"schedulers[{number}].warmup: {entry.warmup} of {iterations} leave none to measure"
                )
        return self
