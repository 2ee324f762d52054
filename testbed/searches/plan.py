"""From an experiment with tuners to jobs: where trials train and what a synchronisation puts on links. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from agents.coflow.base import Job, largest
from agents.coflow.coordinator import JobNeeds
from agents.coflow.fabric import Fabric
from agents.coflow.fifo import FifoLm
from agents.coflow.pattern import Hop, flows_of, link_loads
from agents.coflow.registry import get_ordering
from agents.config import AddressBook, Config
from agents.planning.registry import get_scheduler
from agents.search.base import Parameters, Sampler, TrialRun, Tuner
from agents.search.registry import make_tuner
from agents.search.samplers import GridSampler
from agents.search.space import Choice, Space
from agents.views import network_view
from testbed.coflow.search_workload import expected
from testbed.experiments.manifest import WorkerRow
from testbed.experiments.models import mlp_layers, parameter_count
from testbed.experiments.schema import Experiment
from testbed.experiments.search_check import names_of, policies_of
from testbed.experiments.search_schema import SPACE_KEYS, TunerEntry
from testbed.experiments.spec import LoadedExperiment, Segment
from topologies.addressing import Management
from topologies.model import Topology

FLOAT_BYTES = 4


@dataclass(frozen=True)
class TrialJob:
    """A job that is the n-th trial of a tuner in every turn.

    members  its sites, by their index in the topology
    flows    bytes between sites of one synchronisation, per byte of model
    loads    seconds on each directed link, per byte of model
    delay_s  of the longest way that a chunk takes, up to a root and down to a leaf
    """

    tuner: str
    trial: int
    members: tuple[int, ...]
    flows: Mapping[Hop, float]
    loads: Mapping[int, float]
    delay_s: float

    @property
    def name(self) -> str:
        """Unique within the run."""
        return f"{self.tuner}-{self.trial}"

    def needs(self, run: TrialRun, model_bytes: float, compute_s: float, name: str = "") -> JobNeeds:
        """What a coflow coordinator is told of one run of the trial."""
        return JobNeeds(
            name or self.name,
            run.iterations,
            {link: seconds * model_bytes for link, seconds in self.loads.items()},
            sum(self.flows.values()) * model_bytes,
            len(self.members),
            compute_s,
        )


@dataclass(frozen=True)
class SearchPlan:
    """All jobs of an experiment, by tuner and trial."""

    jobs: Mapping[tuple[str, int], TrialJob]
    routes: Mapping[Hop, tuple[int, ...]]
    topology: Topology

    def workers(self, rows: Iterable[WorkerRow]) -> tuple[WorkerRow, ...]:
        """Of all workers those that train: the first of every site that some trial has, for all of its trials."""
        used = {name for job in self.jobs.values() for name in self.sites(job)}
        return tuple(row for row in rows if row.worker == 0 and row.site in used)

    def sites(self, job: TrialJob) -> tuple[str, ...]:
        """The names of a trial's sites, by rank."""
        return tuple(self.topology.site_names[site] for site in job.members)

    def fabric(self, efficiency: float) -> Fabric:
        """The links as flows see them; payload gets `efficiency` of every rate."""
        directed = self.topology.directed
        number = {(link.src, link.dst): link.index for link in directed}
        routes = {pair: tuple(number[hop] for hop in pairwise(path)) for pair, path in self.routes.items()}
        return Fabric(tuple(link.rate.bps / 8 * efficiency for link in directed), routes)


def plan_searches(experiment: LoadedExperiment) -> SearchPlan:
    """The sites of every trial are drawn once, by the experiment's seed: the same in all turns and worlds."""
    spec, topology = experiment.spec, experiment.topology
    config = network_of(topology)
    rates = {hop: float(bps) for hop, bps in topology.rates().items()}
    links = {(link.src, link.dst): link.index for link in topology.directed}
    delays = {(link.src, link.dst): link.delay.seconds for link in topology.directed}
    # As the agents send: over the direct link where there is one, else over the primary path.
    routes = {pair: pair if pair in links else paths[0] for pair, paths in config.paths.items()}
    jobs: dict[tuple[str, int], TrialJob] = {}
    for name, entry in zip(names_of(spec), spec.tuners, strict=True):
        choice = [topology.index(site) for site in entry.sites] or list(range(len(topology.site_names)))
        for trial in range(trial_count(entry)):
            rng = random.Random(f"{spec.seed}:sites:{name}:{trial}")
            members = tuple(sorted(rng.sample(sorted(set(choice)), entry.workers)))
            names = tuple(topology.site_names[site] for site in members)
            plan = get_scheduler(spec.schedulers[0].scheduler, names).plan(network_view(config, rates, members))
            flows = flows_of(plan, 1.0, members)
            loads = link_loads(flows, routes, links, rates)
            longest = max((sum(delays[hop] for hop in pairwise(routes[pair])) for pair in flows), default=0.0)
            jobs[name, trial] = TrialJob(name, trial, members, flows, loads, 2 * longest)
    return SearchPlan(jobs, routes, topology)


def network_of(topology: Topology) -> Config:
    """Paths and views as the agents have them; the addresses are nobody's."""
    addresses = AddressBook.of_testbed(len(topology.site_names), Management("10.199.0.0/24"))
    return Config(topology, addresses, Path())


def trial_count(entry: TunerEntry) -> int:
    """How many trials a tuner has at most."""
    return sum(rung.trials for rung in make_search(entry, 0).rungs() if rung.rung == 0)


def make_search(entry: TunerEntry, seed: int) -> Tuner:
    """The search itself, minimising the loss on the test data."""
    space = Space.parse(entry.space, owner="space")
    sampler: Sampler | None = None
    if entry.sampler == "grid" and entry.kind != "grid":
        sampler = GridSampler(space)
    elif entry.sampler == "optuna":
        from testbed.experiments.optuna_sampler import OptunaSampler

        sampler = OptunaSampler(space, seed)
    return make_tuner(entry.kind, space, entry.options, goal="min", seed=seed, sampler=sampler)


def tuner_seed(segment: Segment, entry: TunerEntry, number: int) -> int:
    """Of a tuner's configurations in a turn; the same under every policy of a repeat."""
    return segment.seed * 1_009 + (number if entry.seed is None else entry.seed)


def needs_of(job: TrialJob, spec: Experiment, run: TrialRun, name: str = "") -> JobNeeds:
    """What a coflow coordinator is told of one run of a trial, whose job it knows by this name."""
    mean = spec.training.compute.mean
    return job.needs(run, model_bytes(settings_of(spec, run.parameters)), 0.0 if mean is None else mean.seconds, name)


def trial_seed(seed: int, trial: int) -> int:
    """Of a trial's first weights and order of data."""
    return (seed * 1_000_003 + trial) % 2**31


def settings_of(spec: Experiment, parameters: Parameters) -> dict[str, Any]:
    """What a trial trains: the experiment's `training` but for what is searched."""
    return {key: parameters.get(key, getattr(spec.training, key)) for key in SPACE_KEYS}


def model_bytes(settings: Mapping[str, Any]) -> int:
    return parameter_count(settings["model"]) * FLOAT_BYTES


def layers_of(settings: Mapping[str, Any]) -> tuple[int, ...]:
    return mlp_layers(settings["model"])


def ordering_of(plan: SearchPlan, spec: Experiment, shown: str) -> dict[str, Any]:
    """A policy's ordering; FIFO-LM without a threshold gets the percentile of the sizes that may occur."""
    policy = next(policy for policy in policies_of(spec) if policy.shown == shown)
    ordering = get_ordering(policy.ordering)
    if isinstance(ordering, FifoLm) and ordering.threshold is None:
        threshold = ordering.with_sizes(possible_sizes(plan, spec)).threshold
        return {"name": policy.name, "options": {**policy.options, "threshold": threshold}}
    return policy.ordering


def possible_sizes(plan: SearchPlan, spec: Experiment) -> list[float]:
    """Bytes of one synchronisation of each trial, for each model that it may come to train."""
    sizes = []
    for name, entry in zip(names_of(spec), spec.tuners, strict=True):
        domain = Space.parse(entry.space).domains.get("model")
        models = domain.values if isinstance(domain, Choice) else (spec.training.model,)
        for (tuner, _), job in plan.jobs.items():
            if tuner == name:
                total = sum(job.flows.values())
                sizes += [total * parameter_count(str(model)) * FLOAT_BYTES for model in models]
    return sizes


def ahead_of(needs: Sequence[JobNeeds], search: Tuner, stage: int) -> tuple[dict[int, float], float]:
    """What the stages after one are expected to need: seconds on each link, and one after the other."""
    jobs = [Job(k, job.iterations, job.compute, job.loads) for k, job in enumerate(needs)]
    return expected(jobs, search.after(stage))


def alone_s(needs: Sequence[JobNeeds]) -> float:
    """What no order can beat for a stage: its links' loads, and its jobs one iteration after the other."""
    total: dict[int, float] = {}
    for job in needs:
        for link, load in job.loads.items():
            total[link] = total.get(link, 0.0) + job.iterations * load
    longest = max((job.iterations * (job.compute + largest(job.loads)) for job in needs), default=0.0)
    return max(longest, max(total.values(), default=0.0))
