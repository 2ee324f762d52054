"""Configurations from Optuna, by ask and tell; the search itself stays `agents.search`'s.

Optuna prunes nothing here: it learns of every score at a boundary, and of trials that were not chosen to go on as
pruned ones, which its tree-structured Parzen estimator takes into account.
"""

from __future__ import annotations

from typing import Any

from agents.search.base import Outcome, Parameters
from agents.search.space import Choice, Domain, Space
from topologies.errors import CannotHonourError


class OptunaSampler:
    """A `Sampler` on a study in memory.

    space    what the search varies
    seed     of Optuna's own sampler, the TPE
    maximise whether larger scores are better
    startup  random trials before it models anything

    CannotHonourError where Optuna is not installed.
    """

    def __init__(self, space: Space, seed: int, *, maximise: bool = False, startup: int = 10) -> None:
        try:
            import optuna
        except ImportError as error:
            raise CannotHonourError(
                "Optuna is not installed here", hint="pip install 'stormbed[search]', or sampler: random"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._states = {
            "stopped": optuna.trial.TrialState.PRUNED,
            "failed": optuna.trial.TrialState.FAIL,
        }
        # Whole stages are asked for at once: without the liar they would come out alike.
        tpe = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True)
        self._study = optuna.create_study(sampler=tpe, direction="maximize" if maximise else "minimize")
        self._distributions = {
            name: _distribution(optuna.distributions, domain) for name, domain in space.domains.items()
        }
        self._trials: dict[int, Any] = {}
        self._last: dict[int, float] = {}

    def ask(self, trial: int) -> Parameters:
        self._trials[trial] = self._study.ask(self._distributions)
        return dict(self._trials[trial].params)

    def report(self, trial: int, iterations: int, score: float) -> None:
        self._trials[trial].report(score, iterations)
        self._last[trial] = score

    def end(self, trial: int, outcome: Outcome) -> None:
        own = self._trials.pop(trial)
        score = self._last.pop(trial, None)
        if outcome == "complete":
            self._study.tell(own, score)
        else:
            self._study.tell(own, state=self._states[outcome])


def _distribution(kinds: Any, domain: Domain) -> Any:
    if isinstance(domain, Choice):
        return kinds.CategoricalDistribution(domain.values)
    if domain.whole:
        return kinds.IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return kinds.FloatDistribution(domain.low, domain.high, log=domain.log)
