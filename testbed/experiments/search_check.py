"""Whether the searches of an experiment file can be run, so that no run finds out halfway. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agents.coflow.registry import get_ordering
from agents.planning.base import NetworkView
from agents.planning.registry import get_scheduler, library_names
from agents.search.base import SearchError
from agents.search.registry import make_rules, tuner_names
from agents.search.samplers import GridSampler
from agents.search.space import Choice, Space
from testbed.experiments.models import is_model, is_tensor, mlp_layers
from testbed.experiments.schema import Experiment
from testbed.experiments.search_schema import POLICIES, PolicyEntry, TunerEntry
from topologies.errors import CannotHonourError, InvalidFileError, StormbedError, UsageError
from topologies.files import Document
from topologies.model import Topology, nearest


def policies_of(spec: Experiment) -> tuple[PolicyEntry, ...]:
    """The orders that are compared; the four of the Beamer study where the file names none."""
    return spec.policies or tuple(PolicyEntry(name=name) for name in POLICIES)


def names_of(spec: Experiment) -> tuple[str, ...]:
    """The tuners' names."""
    return tuple(entry.name or f"tuner{number + 1}" for number, entry in enumerate(spec.tuners))


def check_searches(document: Document, spec: Experiment, topology: Topology) -> None:
    """Raises InvalidFileError naming the line, the key and what to do."""
    _check_shared(document, spec, topology)
    shown: list[str] = []
    for number, policy in enumerate(spec.policies):
        try:
            get_ordering(policy.ordering)
        except StormbedError as error:
            raise document.error(("policies", number), error.message, hint=error.hint) from None
        if policy.shown in shown:
            raise document.error(
                ("policies", number), f"two turns would both be shown as {policy.shown!r}", hint="give one a `label`"
            )
        shown.append(policy.shown)
    names = names_of(spec)
    for number, entry in enumerate(spec.tuners):
        if names[number] in names[:number]:
            raise document.error(("tuners", number), f"two tuners are called {names[number]!r}", hint="rename one")
        _check_tuner(document, spec, topology, number, entry)


def _check_shared(document: Document, spec: Experiment, topology: Topology) -> None:
    if len(spec.schedulers) != 1:
        raise document.error(
            ("schedulers",),
            f"{len(spec.schedulers)} schedulers, but all trials synchronise by one and the policies are compared",
            hint="keep one, such as ring",
        )
    entry = spec.schedulers[0]
    if entry.name in library_names():
        raise document.error(
            ("schedulers", 0),
            f"{entry.name} synchronises without the agents, which carry out the policies",
            hint="synchronise by one of the agents' own, such as ring or star",
        )
    try:
        plan = get_scheduler(spec.schedulers[0].scheduler, topology.site_names).plan(
            NetworkView.from_topology(topology)
        )
    except (UsageError, CannotHonourError) as error:
        raise document.error(("schedulers", 0), error.message, hint=error.hint) from None
    if plan.transfers is not None:
        raise document.error(
            ("schedulers", 0),
            f"{plan.scheduler} decides per transfer, so the trials' loads are not known before",
            hint="synchronise by one that plans ahead, such as ring or star",
        )
    if spec.awareness.on or spec.auxiliary.on:
        key = "awareness" if spec.awareness.on else "auxiliary"
        raise document.error((key,), "searches take the network as declared", hint=f"leave {key} out")
    if spec.dynamics.kind != "none" or spec.timeline:
        key = "timeline" if spec.timeline else "dynamics"
        raise document.error((key,), "links do not change during searches in this version", hint=f"leave {key} out")
    if spec.training.overlap:
        raise document.error(
            ("training", "overlap"), "trials hand over all their gradients at once", hint="leave overlap out"
        )
    if spec.world == "simulated" and spec.trainer == "torch":
        raise document.error(
            ("trainer",), "the simulated world trains without torch", hint="trainer: numpy, or world: emulated"
        )


def _check_tuner(document: Document, spec: Experiment, topology: Topology, number: int, entry: TunerEntry) -> None:
    place = ("tuners", number)

    def refuse(key: str, message: str, hint: str = "") -> InvalidFileError:
        return document.error((*place, key), message, hint=hint)

    if entry.kind not in tuner_names():
        raise refuse("kind", f"unknown tuner {entry.kind!r}", nearest(entry.kind, tuner_names()))
    for site in entry.sites:
        if site not in topology.site_names:
            raise refuse("sites", f"{topology.name} has no site {site!r}", nearest(site, topology.site_names))
    sites = len(set(entry.sites) or topology.site_names)
    if entry.workers > sites:
        raise refuse("workers", f"{entry.workers} workers, each at a site of its own, and {sites} sites")
    try:
        make_rules(entry.kind, entry.options)
    except StormbedError as error:
        raise refuse("options", error.message, error.hint) from None
    except TypeError as error:
        raise refuse("options", f"{entry.kind}: {error}") from None
    try:
        space = Space.parse(entry.space, owner="space")
        if entry.sampler == "grid" or entry.kind == "grid":
            GridSampler(space)
    except SearchError as error:
        raise refuse("space", error.message, error.hint) from None
    if entry.kind == "pbt" and {"model", "optimizer"} & set(entry.space):
        fixed = next(name for name in ("model", "optimizer") if name in entry.space)
        raise refuse("space", f"pbt copies trained states, so {fixed} cannot be searched", "fix it under training")
    for key, value in _values(space, spec):
        problem = _problem(key, value, spec.trainer)
        if problem is not None:
            raise refuse("space" if key in entry.space else "kind", problem)


def _values(space: Space, spec: Experiment) -> Iterable[tuple[str, Any]]:
    """Every value that a trial may come to have, as far as single ones matter."""
    fixed = spec.training
    for key in ("model", "lr", "batch", "momentum", "optimizer"):
        domain = space.domains.get(key)
        if domain is None:
            yield key, getattr(fixed, key)
        elif isinstance(domain, Choice):
            yield from ((key, value) for value in domain.values)
        else:
            yield from ((key, domain.low), (key, domain.high))


def _problem(key: str, value: Any, trainer: str) -> str | None:
    """Why a trial cannot have this value, or None."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if key == "model":
        if not isinstance(value, str) or not is_model(value) or is_tensor(value):
            return f"{value!r} is no model that can be trained; mlp-SIZE, 2nn, cnn"
        if trainer == "numpy" and not mlp_layers(value):
            return f"the numpy trainer cannot train {value!r}; a perceptron (mlp-SIZE, 2nn), or trainer: torch"
    elif key == "optimizer":
        if value not in ("sgd", "adam"):
            return f"there is no optimizer {value!r}; sgd, adam"
        if trainer == "numpy" and value != "sgd":
            return f"the numpy trainer has no optimizer {value!r}; sgd, or trainer: torch"
    elif key == "batch" and not (number and isinstance(value, int) and 1 <= value <= 4096):
        return f"a batch of {value!r}; a whole number from 1 to 4096"
    elif key == "lr" and not (number and value > 0):
        return f"a learning rate of {value!r}; more than 0"
    elif key == "momentum" and not (number and 0 <= value < 1):
        return f"a momentum of {value!r}; from 0 to below 1"
    return None
