"""Searches by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from agents.search.asha import Asha, AshaRules
from agents.search.base import Goal, Sampler, SearchError, Tuner
from agents.search.halving import Halving, HalvingRules, Hyperband, HyperbandRules
from agents.search.population import Population, PopulationRules
from agents.search.samplers import GridSampler, RandomSampler
from agents.search.space import Space
from agents.search.waves import Grid, Waves, WavesRules
from topologies.errors import UsageError, nearest

Rules = HalvingRules | HyperbandRules | PopulationRules | AshaRules | WavesRules

_RULES: dict[str, type[Rules]] = {
    "halving": HalvingRules,
    "hyperband": HyperbandRules,
    "pbt": PopulationRules,
    "asha": AshaRules,
    "random": WavesRules,
    "grid": WavesRules,
}


def tuner_names() -> tuple[str, ...]:
    return tuple(_RULES)


def has_barrier(name: str) -> bool:
    """Whether the stages of the tuner of this name end with their last job."""
    _rules_of(name)
    return name != Asha.name


def make_rules(name: str, options: Mapping[str, Any] | None = None) -> Rules:
    """What a tuner goes by. UsageError for an unknown name or option, SearchError for a value."""
    kind = _rules_of(name)
    known = [entry.name for entry in fields(kind)]
    for option in options or {}:
        if option not in known:
            raise UsageError(f"{name} has no option {option!r}", hint=nearest(str(option), known))
    return kind(**(options or {}))


def make_tuner(
    name: str,
    space: Space,
    options: Mapping[str, Any] | None = None,
    *,
    goal: Goal = "min",
    seed: int = 0,
    sampler: Sampler | None = None,
) -> Tuner:
    """A search over a space. Without a sampler: every point of the grid for `grid`, random draws for the others."""
    rules = make_rules(name, options)
    if isinstance(rules, WavesRules):
        if name == Grid.name:
            if sampler is not None:
                raise SearchError("grid takes its configurations from the grid", hint="no sampler, or another tuner")
            grid = GridSampler(space)
            return Grid(rules, grid, rules.trials or len(grid), goal)
        if rules.trials is None:
            raise SearchError("random: how many trials?", hint="give trials")
        return Waves(rules, sampler or RandomSampler(space, seed), rules.trials, goal)
    source = sampler or RandomSampler(space, seed)
    if isinstance(rules, PopulationRules):
        return Population(rules, source, space, goal, seed)
    if isinstance(rules, AshaRules):
        return Asha(rules, source, goal)
    if isinstance(rules, HyperbandRules):
        return Hyperband(rules, source, goal)
    return Halving(rules, source, goal)


def _rules_of(name: str) -> type[Rules]:
    kind = _RULES.get(name)
    if kind is None:
        raise UsageError(f"unknown tuner {name!r}", hint=nearest(str(name), tuner_names()))
    return kind
