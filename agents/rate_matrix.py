"""What a coordinator knows of the links' rates, and when that is reason to plan anew. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from agents.awareness import relative_change
from agents.options import AwarenessOptions
from agents.planning.base import NetworkView, Plan
from agents.planning.timing import timing_of

Link = tuple[int, int]
Rates = Mapping[Link, float]

PUBLISHED_SEED: Final = 2
_MB_PER_S: Final = 8e6
_LEAST: Final = 0.1  # the published draw may give 0.0, which would mean no link at all


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured rate in bit/s and when it was reported, in seconds of the coordinator's clock."""

    rate: float
    at: float


class RateMatrix:
    """Measured rates of directed links over a prior.

    Args:
        prior: bit/s of every directed link that exists.
        decay_s: an estimate of age t counts exp(-t / decay_s), the prior the rest; None: an estimate stays.
            The prior is what the link is good for, so a link that looked bad is tried again.
    """

    def __init__(self, prior: Rates, decay_s: float | None = None) -> None:
        self._prior = dict(prior)
        self._decay_s = decay_s
        self.estimates: dict[Link, Estimate] = {}

    def report(self, path: tuple[int, ...], rate: float, now: float) -> None:
        """A path was measured. One link: that is its rate. Several: each of them carries at least that,

        which raises links that nobody measured since.
        """
        hops = [hop for hop in pairwise(path) if hop in self._prior]
        if len(path) == 2:
            for hop in hops:
                self.estimates[hop] = Estimate(rate, now)
            return
        current = self.rates(now)
        for hop in hops:
            if rate > current[hop]:
                self.estimates[hop] = Estimate(rate, now)

    def rates(self, now: float) -> dict[Link, float]:
        """bit/s of every directed link, as far as is known now."""
        return {link: self._rate(link, prior, now) for link, prior in self._prior.items()}

    def _rate(self, link: Link, prior: float, now: float) -> float:
        estimate = self.estimates.get(link)
        if estimate is None:
            return prior
        if self._decay_s is None or estimate.rate >= prior:
            return estimate.rate  # going back to a lower prior would be no optimism
        weight = math.exp(-max(0.0, now - estimate.at) / self._decay_s)
        return prior + (estimate.rate - prior) * weight


def make_matrix(options: AwarenessOptions, declared: Rates) -> RateMatrix:
    """The matrix that a job's options ask for."""
    prior = published_prior(declared) if options.prior == "published" else declared
    return RateMatrix(prior, options.decay_s if options.estimator == "unbiased" else None)


def mean_change(snapshot: Rates, current: Rates) -> float:
    """The mean relative change over the entries that differ (published check_change); 0 when none does."""
    changes = [relative_change(old, current[link]) for link, old in snapshot.items() if current[link] != old]
    return math.fsum(changes) / len(changes) if changes else 0.0


def predicted_gain(current: Plan, proposed: Plan, network: NetworkView) -> float:
    """How much more the proposed plan carries on the network as it is now, relative to the current one."""
    old = timing_of(current.trees, network).rate_bps
    new = timing_of(proposed.trees, network).rate_bps
    if old == new:
        return 0.0
    return new / old - 1 if old else math.inf


def published_prior(links: Rates, seed: int = PUBLISHED_SEED) -> dict[Link, float]:
    """What the published scheduler assumes at boot: 0.0 to 99.9 MB/s a link, equal in both directions.

    Source: van.cc, Start: glibc's rand() % 1000 / 10 after srand(2), for every directed link in order; the
    later direction of a link decides for both.
    """
    numbers = glibc_rand(seed)
    prior: dict[Link, float] = {}
    for u, v in sorted(links):
        value = max(_LEAST, next(numbers) % 1000 / 10)
        prior[u, v] = value * _MB_PER_S
        if (v, u) in links:
            prior[v, u] = prior[u, v]
    return prior


def glibc_rand(seed: int) -> Iterator[int]:
    """The numbers of glibc's rand() after srand(seed)."""
    state = [seed]
    for i in range(1, 31):
        state.append(16807 * state[i - 1] % 2147483647)
    state += state[:3]
    for i in range(34, 344):
        state.append((state[i - 31] + state[i - 3]) & 0xFFFFFFFF)
    while True:
        state = state[-31:]
        state.append((state[-31] + state[-3]) & 0xFFFFFFFF)
        yield state[-1] >> 1
