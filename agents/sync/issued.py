"""The policies that a coordinator has issued, and which of them some site may still need (part of its machine)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agents.sync.policy import Policy
from agents.sync.transfer_coordinator import TransferCoordinator


@dataclass
class Switch:
    """A change of plan inside collective `seq`, waiting for the promises of the sites: (limit, total)."""

    seq: int
    number: int
    policy: Policy
    promised: dict[int, tuple[int, int]] = field(default_factory=dict)


class IssuedPolicies:
    """Of one job over `n_sites`.

    current        the newest policy, None before the first
    retained       version -> policy, as far as some site may still need it
    retired_below  every site has installed this version and completed all collectives of the older ones
    """

    def __init__(self, n_sites: int) -> None:
        self.current: Policy | None = None
        self.retained: dict[int, Policy] = {}
        self.retired_below = 0
        self._n = n_sites
        self._acked: dict[int, set[int]] = {}
        self._deciding: dict[int, TransferCoordinator] = {}

    @property
    def version(self) -> int:
        """Of the newest policy; 0 before the first."""
        return 0 if self.current is None else self.current.version

    def issue(self, policy: Policy, deciding: TransferCoordinator | None = None) -> None:
        """This is the newest policy from now on, with what decides its transfers one by one, if they are.

        What it supersedes goes at once: else every plan that is made while one collective lasts would be kept
        until that is complete.
        """
        self.current = policy
        self.retained[policy.version] = policy
        self._acked[policy.version] = set()
        if deciding is not None:
            self._deciding[policy.version] = deciding
        self._forget(superseded(self.retained))

    def acknowledge(self, version: int, site: int) -> bool:
        """A site has installed a version; whether that is news."""
        if version not in self._acked:
            return False
        self._acked[version].add(site)
        return True

    def acked(self, version: int) -> frozenset[int]:
        """The sites that have installed a retained version."""
        return frozenset(self._acked.get(version, ()))

    def retire(self, completed: int) -> None:
        """Forget the policies before one that all sites have, once their collectives are complete everywhere
        (every collective below `completed` is).
        """
        for version, policy in self.retained.items():
            if len(self._acked[version]) == self._n and policy.from_seq <= completed:
                self.retired_below = max(self.retired_below, version)
        self._forget([v for v in self.retained if v < self.retired_below])

    def deciding(self, seq: int) -> TransferCoordinator | None:
        """What decides the transfers of a released collective."""
        version = max((v for v, policy in self.retained.items() if policy.from_seq <= seq), default=0)
        return self._deciding.get(version)

    @property
    def all_deciding(self) -> tuple[TransferCoordinator, ...]:
        """What decides the transfers of collectives that may be under way."""
        return tuple(self._deciding.values())

    def _forget(self, versions: list[int]) -> None:
        for version in versions:
            del self.retained[version]
            del self._acked[version]
            self._deciding.pop(version, None)


def superseded(policies: Mapping[int, Policy]) -> list[int]:
    """The versions that a newer one replaces from their first collective on, so that none begins under them.

    Both ends may forget these at once: a policy is issued for collectives that nobody may begin yet.
    """
    found: list[int] = []
    taken: int | None = None
    for version in sorted(policies, reverse=True):
        first = policies[version].from_seq
        if taken is not None and first >= taken:
            found.append(version)
        else:
            taken = first
    return found
