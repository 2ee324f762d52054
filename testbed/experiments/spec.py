"""What an experiment is: the file, its defaults, and the turns it comes to. Pure but for reading the file."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
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

from agents.options import AuxiliaryOptions, AwarenessOptions
from testbed.experiments.models import is_model, is_tensor, parameter_count, tensor_sizes
from testbed.timeline import RunDynamics, TimelineEntry
from topologies.errors import CannotHonourError, InvalidFileError, UsageError
from topologies.files import Document, parse_yaml, read_yaml
from topologies.load import load_topology
from topologies.model import Topology, nearest
from topologies.units import Delay

LIBRARY = Path(__file__).parent / "library"
MANAGEMENT = "management"

DATA = ("digits", "synthetic")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_MODEL_FORMS = "mlp-SIZE such as mlp-2m, 2nn, cnn (FedAvg's), tensor-SIZE such as tensor-1m"


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

    `batch` is per worker; `chunk_elements` is how finely gradients are cut for the network; `deadline_s` is
    how long one collective may take before the run fails. Rank 0 measures the accuracy on the test data after
    every `eval_every` iterations (0: never) and keeps its last parameters with `save_parameters`.
    """

    model: str
    data: str = "digits"
    batch: int = Field(default=32, ge=1, le=4096)
    lr: float = Field(default=0.05, gt=0)
    iterations: int = Field(default=10, ge=1, le=1_000_000)
    chunk_elements: int = Field(default=100_000, ge=1, le=100_000_000)
    compute: Compute = Compute()
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = Field(default=0.0, ge=0, lt=1)
    eval_every: int = Field(default=0, ge=0)
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
    `label` is how it is shown; without it the scheduler's own name. `awareness` and `auxiliary` replace the
    experiment's.
    """

    name: str
    options: dict[str, Any] = {}
    awareness: AwarenessOptions | None = None
    auxiliary: AuxiliaryOptions | None = None
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
    plans anew while a scheduler's turn lasts, `auxiliary` lets chunks take other paths; see `agents.options`.
    """

    name: str
    topology: str
    scale: float = Field(default=1.0, gt=0, le=1000)
    dynamics: RunDynamics = RunDynamics()
    training: Training
    schedulers: tuple[Annotated[SchedulerEntry, BeforeValidator(_entry)], ...] = Field(min_length=1)
    awareness: AwarenessOptions = AwarenessOptions()
    auxiliary: AuxiliaryOptions = AuxiliaryOptions()
    repeats: int = Field(default=1, ge=1, le=1000)
    order: Literal["declared", "shuffled"] = "declared"
    seed: int = Field(default=1, ge=0, lt=2**31)
    coordinator: str = MANAGEMENT
    world: Literal["emulated", "simulated"] = "emulated"
    timeline: tuple[TimelineEntry, ...] = Field(default=(), max_length=10_000)

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:60]!r} is not a name; use letters, digits, '.', '_' and '-'")
        return name

    @field_validator("coordinator")
    @classmethod
    def _out_of_band_only(cls, value: str) -> str:
        if value != MANAGEMENT:
            raise ValueError(
                f"a coordinator at a site ({value[:40]}) is not supported by this version; write {MANAGEMENT}"
            )
        return value

    @model_validator(mode="after")
    def _counts_fit(self) -> Self:
        for number, entry in enumerate(self.schedulers):
            iterations = entry.iterations or self.training.iterations
            if entry.warmup >= iterations:
                raise ValueError(
                    f"schedulers[{number}].warmup: {entry.warmup} of {iterations} leave none to measure"
                )
        return self


@dataclass(frozen=True)
class Segment:
    """One scheduler's turn in one repeat; `label` is unique in the run, `shown` is the scheduler's.

    `elements` is what every worker hands over each iteration. A `tensor-` model of several sizes gives one
    segment a size, shown as `netstorm/2000000`.
    """

    label: str
    shown: str
    scheduler: dict[str, Any]
    elements: int
    repeat: int
    iterations: int
    warmup: int
    seed: int
    awareness: AwarenessOptions = field(default_factory=AwarenessOptions)
    auxiliary: AuxiliaryOptions = field(default_factory=AuxiliaryOptions)


@dataclass(frozen=True)
class LoadedExperiment:
    """An experiment that has been checked against its topology.

    `topology` is scaled; `text` is the file as it was found; `segments` in the order of the file, repeat by
    repeat.
    """

    spec: Experiment
    topology: Topology
    text: str
    source: Path
    segments: tuple[Segment, ...]

    @property
    def turns(self) -> tuple[Segment, ...]:
        """The segments in the order in which they run."""
        if self.spec.order == "declared":
            return self.segments
        turns: list[Segment] = []
        for repeat in range(self.spec.repeats):
            of_repeat = [segment for segment in self.segments if segment.repeat == repeat]
            random.Random(f"order of turns {self.spec.seed + repeat}").shuffle(of_repeat)
            turns += of_repeat
        return tuple(turns)

    @property
    def changes(self) -> bool:
        """Whether links change by themselves during the run."""
        return self.spec.dynamics.kind != "none" or bool(self.spec.timeline)

    @property
    def data(self) -> str:
        """The training data's name, or its file's absolute path (given from the experiment's)."""
        data = self.spec.training.data
        return data if data in DATA else str((self.source.parent / data).absolute())

    def resolved(self) -> dict[str, Any]:
        """The experiment with every default written out, as plain data."""
        return self.spec.model_dump(mode="json")

    def resolved_yaml(self) -> str:
        return yaml.safe_dump(self.resolved(), sort_keys=False, allow_unicode=True)


def list_experiments() -> tuple[str, ...]:
    """The names of the experiments that come with the project, sorted."""
    return tuple(sorted(file.stem for file in LIBRARY.glob("*.yaml")))


def load_experiment(name_or_path: str | Path) -> Experiment:
    """An experiment of the library by its name, or one from a file, checked against its topology.

    Raises:
        InvalidFileError: naming the file, the line, the key and what to do.
    """
    return open_experiment(name_or_path).spec


def open_experiment(name_or_path: str | Path, overrides: Mapping[str, Any] | None = None) -> LoadedExperiment:
    """An experiment ready to run: the file's contents, its topology at scale, and its segments.

    Args:
        name_or_path: a plain word is looked up in the library first, then as a file.
        overrides: top-level keys that replace those of the file.

    Raises:
        InvalidFileError: naming the file, the line, the key and what to do.
    """
    path = _find(name_or_path)
    document = read_yaml(path)
    if overrides and isinstance(document.data, dict):
        for key, value in overrides.items():
            document.data[key] = value
    spec = document.validate(Experiment)
    topology = _load_topology(spec.topology, path.parent, document)
    return _check(document, spec, topology, path.read_text(encoding="utf-8"))


def experiment_from_text(text: str, source: str = "experiment") -> LoadedExperiment:
    """An experiment from YAML text; its topology is of the library or a path from here."""
    document = parse_yaml(text, source)
    spec = document.validate(Experiment)
    return _check(document, spec, _load_topology(spec.topology, Path(), document), text)


def _find(name_or_path: str | Path) -> Path:
    if isinstance(name_or_path, str) and re.fullmatch(r"[\w-]+", name_or_path):
        if name_or_path in list_experiments():
            return LIBRARY / f"{name_or_path}.yaml"
        if not Path(name_or_path).exists():
            raise InvalidFileError(
                f"there is no experiment {name_or_path!r}, neither in the library nor as a file",
                hint=nearest(name_or_path, list_experiments()),
            )
    return Path(name_or_path)


def _load_topology(name: str, folder: Path, document: Document) -> Topology:
    # A file is meant from where the experiment stands, so that the pair can be moved together.
    beside = folder / name
    is_file = "/" in name or Path(name).suffix != ""
    try:
        return load_topology(beside if is_file and beside.exists() else name)
    except InvalidFileError as error:
        if is_file:
            raise
        raise document.error(("topology",), error.message, hint=error.hint) from None


def _check(document: Document, spec: Experiment, topology: Topology, text: str) -> LoadedExperiment:
    for site in spec.training.compute.sites:
        if site not in topology.site_names:
            raise document.error(
                ("training", "compute", "sites", site),
                f"{topology.name} has no site {site!r}",
                hint=nearest(site, topology.site_names),
            )
    _check_network_options(document, spec)
    scaled = topology if spec.scale == 1 else topology.scaled(spec.scale)
    _check_changes(document, spec, scaled)
    return LoadedExperiment(
        spec=spec,
        topology=scaled,
        text=text,
        source=Path(document.source),
        segments=_plan_segments(document, spec, topology),
    )


def _check_changes(document: Document, spec: Experiment, topology: Topology) -> None:
    """Whether dynamics and timeline fit the topology, so that a run does not find out halfway."""
    for number, entry in enumerate(spec.timeline):
        try:
            entry.directions(topology)
        except UsageError as error:
            raise document.error(("timeline", number, "link"), error.message, hint=error.hint) from None
    try:
        spec.dynamics.changes(topology, seed=spec.seed, scale=spec.scale, folder=Path(document.source).parent)
    except UsageError as error:
        raise document.error(("dynamics",), error.message, hint=error.hint) from None


def _check_network_options(document: Document, spec: Experiment) -> None:
    """Whether measuring and other paths can do what they are asked for."""
    chunk_bytes = 4 * spec.training.chunk_elements
    turns = [((), spec.awareness, spec.auxiliary)] + [
        (("schedulers", number), entry.awareness or AwarenessOptions(), entry.auxiliary or AuxiliaryOptions())
        for number, entry in enumerate(spec.schedulers)
    ]
    for place, awareness, auxiliary in turns:
        for key, on in (("awareness", awareness.on), ("auxiliary", auxiliary.on)):
            if on and spec.world == "simulated":
                raise document.error(
                    (*place, key), f"the simulated world has no {key}", hint="use world: emulated"
                )
        if awareness.estimator == "published" and awareness.min_message_bytes > chunk_bytes:
            raise document.error(
                (*place, "awareness"),
                f"no message would be timed: chunks have at most {chunk_bytes} bytes, and the published "
                f"estimator times those of {awareness.min_message_bytes} or more",
                hint=f"set min_message_bytes: {chunk_bytes}, or the published chunk_elements: 1000000",
            )


def _plan_segments(document: Document, spec: Experiment, topology: Topology) -> tuple[Segment, ...]:
    from agents.planning.registry import get_scheduler

    shown: list[str] = []
    for number, entry in enumerate(spec.schedulers):
        try:
            name = entry.label or get_scheduler(entry.scheduler, topology.site_names).name
        except (UsageError, CannotHonourError) as error:
            raise document.error(("schedulers", number), error.message, hint=error.hint) from None
        if name in shown:
            raise document.error(
                ("schedulers", number),
                f"two turns would both be shown as {name!r}",
                hint="give one a `label`",
            )
        shown.append(name)
    sizes = spec.training.tensors or (spec.training.parameters,)
    segments: list[Segment] = []
    for repeat in range(spec.repeats):
        for name, entry in zip(shown, spec.schedulers, strict=True):
            for size in sizes:
                sized = f"{name}/{size}" if len(sizes) > 1 else name
                segments.append(
                    Segment(
                        label=sized if spec.repeats == 1 else f"{sized}#{repeat + 1}",
                        shown=sized,
                        scheduler=entry.scheduler,
                        elements=size,
                        repeat=repeat,
                        iterations=entry.iterations or spec.training.iterations,
                        warmup=entry.warmup,
                        seed=spec.seed + repeat,
                        awareness=entry.awareness or spec.awareness,
                        auxiliary=entry.auxiliary or spec.auxiliary,
                    )
                )
    return tuple(segments)
