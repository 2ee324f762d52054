"""The policies that a coordinator has issued, and which of them some site may still need (part of its machine)."""

from __future__ import annotations

from dataclasses import dataclass, field

from agents.sync.policy import Policy


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

    @property
    def version(self) -> int:
        """Of the newest policy; 0 before the first."""
        return 0 if self.current is None else self.current.version

    def issue(self, policy: Policy) -> None:
        """This is the newest policy from now on."""
        self.current = policy
        self.retained[policy.version] = policy
        self._acked[policy.version] = set()

    def acknowledge(self, version: int, site: int) -> bool:
        """A site has installed a version; whether that is news."""
        if version not in self._acked:
            return False
        self._acked[version].add(site)
        return True

    def acked(self, version: int) -> frozenset[int]:
        """The sites that have installed a retained version."""
        return frozenset(self._acked.get(version, ()))

    def retire(self, completed: int) -> list[int]:
        """Forget the policies before one that all sites have, once their collectives are complete everywhere
        (every collective below `completed` is). The versions forgotten.
        """
        for version, policy in self.retained.items():
            if len(self._acked[version]) == self._n and policy.from_seq <= completed:
                self.retired_below = max(self.retired_below, version)
        gone = [v for v in self.retained if v < self.retired_below]
        for version in gone:
            del self.retained[version]
            del self._acked[version]
        return gone

    def version_of(self, seq: int) -> int:
        """The retained policy under which a collective runs, else 0."""
        return max((v for v, policy in self.retained.items() if policy.from_seq <= seq), default=0)
