"""An experiment ready to run: its file found and checked against its topology, and the turns it comes to.

Pure but for reading the files. What a file may say is `testbed.experiments.schema`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agents.options import AuxiliaryOptions, AwarenessOptions, PolicyOptions
from testbed.experiments.schema import DATA, MANAGEMENT, Compute, Experiment, SchedulerEntry, Training
from testbed.experiments.search_check import check_searches, policies_of
from topologies.errors import CannotHonourError, InvalidFileError, UsageError
from topologies.files import Document, parse_yaml, read_yaml
from topologies.load import load_topology
from topologies.model import Topology, nearest

__all__ = [
    "DATA",
    "LIBRARY",
    "MANAGEMENT",
    "Compute",
    "Experiment",
    "LoadedExperiment",
    "SchedulerEntry",
    "Segment",
    "Training",
    "experiment_from_text",
    "list_experiments",
    "load_experiment",
    "open_experiment",
]

LIBRARY = Path(__file__).parent / "library"


@dataclass(frozen=True)
class Segment:
    """One scheduler's turn in one repeat; `label` is unique in the run, `shown` is the scheduler's.

    `elements` is what every worker hands over each iteration. A `tensor-` model of several sizes gives one
    segment a size, shown as `netstorm/2000000`. `library` is what exchanges gradients instead of the agents, such as
    gloo; empty for their own schedulers. `batches` is `equal`, or `split` where the joint batch is divided by speed.
    With `overlap` gradients are handed over while the backward pass still runs.
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
    policy: PolicyOptions = field(default_factory=PolicyOptions)
    library: str = ""
    batches: str = "equal"
    overlap: bool = False


LAYERS = "leave it out, or train a model that has layers, such as mlp-2m"


def no_backward(model: str) -> str:
    return f"model {model} has no backward pass that gradients could overlap with"


_OF_SEGMENTS = ("awareness", "auxiliary", "policy")
_TRAINING_OF_SEGMENTS = ("iterations", "batches", "overlap")


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
    def libraries(self) -> frozenset[str]:
        """What exchanges gradients instead of the agents in some segment, such as gloo."""
        return frozenset(segment.library for segment in self.segments if segment.library)

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

    def effective(self) -> tuple[Any, ...]:
        """What the run depends on: two that are equal in it come to the same run.

        Keys that a scheduler's entry may say for itself count as its segment has them.
        """
        spec = self.spec.model_dump(mode="json", exclude={"schedulers": True, **dict.fromkeys(_OF_SEGMENTS, True)})
        for key in _TRAINING_OF_SEGMENTS:
            spec["training"].pop(key, None)
        return spec, self.segments

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
        overrides: keys that replace those of the file; a dot goes down, as in `training.chunk_elements` or
            `schedulers.0.options`.

    Raises:
        InvalidFileError: naming the file, the line, the key and what to do.
    """
    path = find_experiment(name_or_path)
    document = read_yaml(path)
    if overrides and isinstance(document.data, dict):
        for key, value in overrides.items():
            _override(document.data, key, value)
    spec = document.validate(Experiment)
    topology = _load_topology(spec.topology, path.parent, document)
    return _check(document, spec, topology, path.read_text(encoding="utf-8"))


def _override(data: Any, key: str, value: Any) -> None:
    """Put a value where a dotted key says, making maps on the way."""
    *above, last = key.split(".")
    place = data
    for depth, step in enumerate([*above, last]):
        here = ".".join([*above, last][:depth])
        if isinstance(place, list):
            if not step.isdecimal() or int(step) >= len(place):
                raise InvalidFileError(f"{key}: {here} is a list of {len(place)}", hint="its entries are 0, 1, ...")
        elif not isinstance(place, dict):
            raise InvalidFileError(f"{key}: {here} is {place!r:.40}, not a map", hint=f"set {here} itself")
        at: Any = int(step) if isinstance(place, list) else step
        if depth == len(above):
            place[at] = value
        elif isinstance(place, dict):
            place = place.setdefault(at, {})
        else:
            place = place[at]


def experiment_from_text(text: str, source: str = "experiment") -> LoadedExperiment:
    """An experiment from YAML text; its topology is of the library or a path from here."""
    document = parse_yaml(text, source)
    spec = document.validate(Experiment)
    return _check(document, spec, _load_topology(spec.topology, Path(), document), text)


def find_experiment(name_or_path: str | Path) -> Path:
    """The file of an experiment; InvalidFileError where a plain word is neither in the library nor a file."""
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
    at = spec.coordinator_site
    if at is not None and at not in topology.site_names:
        raise document.error(
            ("coordinator",),
            f"{topology.name} has no site {at!r} for the coordinator",
            hint=nearest(at, ("management", *topology.site_names)),
        )
    _check_network_options(document, spec)
    if spec.training.overlap and spec.training.numpy_only:
        raise document.error(
            ("training", "overlap"),
            no_backward(spec.training.model),
            hint=LAYERS,
        )
    scaled = topology if spec.scale == 1 else topology.scaled(spec.scale)
    _check_changes(document, spec, scaled)
    return LoadedExperiment(
        spec=spec,
        topology=scaled,
        text=text,
        source=Path(document.source),
        segments=_plan_segments(document, spec, topology),
    )


def _plan_turns(document: Document, spec: Experiment, topology: Topology) -> tuple[Segment, ...]:
    """With tuners a turn is a policy's."""
    check_searches(document, spec, topology)
    (entry,) = spec.schedulers
    return tuple(
        Segment(
            label=policy.shown if spec.repeats == 1 else f"{policy.shown}#{repeat + 1}",
            shown=policy.shown,
            scheduler=entry.scheduler,
            elements=spec.training.parameters,
            repeat=repeat,
            iterations=spec.training.iterations,
            warmup=0,
            seed=spec.seed + repeat,
        )
        for repeat in range(spec.repeats)
        for policy in policies_of(spec)
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
    for place, awareness, _ in turns:
        if awareness.estimator == "published" and awareness.min_message_bytes > chunk_bytes:
            raise document.error(
                (*place, "awareness"),
                f"no message would be timed: chunks have at most {chunk_bytes} bytes, and the published "
                f"estimator times those of {awareness.min_message_bytes} or more",
                hint=f"set min_message_bytes: {chunk_bytes}, or the published chunk_elements: 1000000",
            )


def _plan_segments(document: Document, spec: Experiment, topology: Topology) -> tuple[Segment, ...]:
    from agents.planning.registry import get_scheduler, library_of

    if spec.tuners:
        return _plan_turns(document, spec, topology)
    if spec.policies:
        raise document.error(("policies",), "there are no tuners whose coflows these could order", hint="add tuners")
    shown: list[str] = []
    for number, entry in enumerate(spec.schedulers):
        try:
            name = entry.label or get_scheduler(entry.scheduler, topology.site_names).name
            if (entry.batches or spec.training.batches) == "split" and spec.training.numpy_only:
                raise UsageError(
                    f"model {spec.training.model} has no batches to split", hint="write batches: equal"
                )
            if entry.overlap and spec.training.numpy_only:
                raise UsageError(no_backward(spec.training.model), hint=LAYERS)
            if library := library_of(entry.scheduler):
                _check_library(library, entry, spec, topology)
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
            library = library_of(entry.scheduler)
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
                        # No chunk of the agents is under way to be measured, or to take another path.
                        awareness=AwarenessOptions() if library else entry.awareness or spec.awareness,
                        auxiliary=AuxiliaryOptions() if library else entry.auxiliary or spec.auxiliary,
                        policy=PolicyOptions() if library else _policy_of(entry, spec),
                        batches=entry.batches or spec.training.batches,
                        overlap=spec.training.overlap if entry.overlap is None else entry.overlap,
                        library=library,
                    )
                )
    return tuple(segments)


def _policy_of(entry: SchedulerEntry, spec: Experiment) -> PolicyOptions:
    """As the file says; where it does not say how often to plan, the scheduler does."""
    from agents.planning.registry import plans_every

    policy = entry.policy or spec.policy
    named = "every" in policy.model_fields_set
    return policy if named else policy.model_copy(update={"every": plans_every(entry.scheduler)})


def _check_library(library: str, entry: SchedulerEntry, spec: Experiment, topology: Topology) -> None:
    """Raise UsageError where a library cannot do what an entry asks for."""
    for key, given in (("awareness", entry.awareness), ("auxiliary", entry.auxiliary)):
        if given is not None and given.on:
            raise UsageError(f"{library} exchanges gradients without the agents, so it has no {key}")
    crowded = [name for name, site in topology.sites.items() if site.workers > 1]
    if spec.world == "simulated" and crowded:
        raise UsageError(
            f"the simulated world knows {library} with one worker a site; {crowded[0]} has "
            f"{topology.sites[crowded[0]].workers}",
            hint="use world: emulated, or leave it out",
        )
