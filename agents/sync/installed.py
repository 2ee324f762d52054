"""The policies that a site has, and which of them it may still need (part of its machine)."""

from __future__ import annotations

from collections.abc import Collection

from agents.sync.issued import superseded
from agents.sync.messages import ProtocolError, Release
from agents.sync.policy import Policy


class InstalledPolicies:
    """Of one job at one site. Policies may overtake each other.

    job, me, n_sites  the job, how errors call the site, and how many there are
    newest            the newest version; 0 before the first
    retired_below     older versions are needed only by collectives that run under them here
    """

    def __init__(self, job: str, me: str, n_sites: int) -> None:
        self.newest = 0
        self.retired_below = 0
        self._job, self._me, self._n = job, me, n_sites
        self._policies: dict[int, Policy] = {}
        self._overtaken: set[int] = set()  # versions below the newest that are still to come

    @property
    def versions(self) -> tuple[int, ...]:
        """Those that are kept."""
        return tuple(sorted(self._policies))

    def __getitem__(self, version: int) -> Policy:
        return self._policies[version]

    def install(self, policy: Policy) -> bool:
        """Whether it is new here, and to be acknowledged. ProtocolError for one that cannot be of this job."""
        version = policy.version
        if policy.n_sites != self._n:
            raise ProtocolError(
                f"policy {version} is for {policy.n_sites} sites, job {self._job} has {self._n}"
            )
        if version > self.newest or version in self._overtaken:
            self._policies[version] = policy
            self._overtaken.update(range(self.newest + 1, version))
            self._overtaken.discard(version)
            self.newest = max(self.newest, version)
            return True
        if self._policies.get(version, policy) != policy:
            raise ProtocolError(f"{self._me} got two different policies of version {version}")
        return False

    def of(self, release: Release) -> Policy:
        """The policy that a release names. ProtocolError when it is not here, or does not hold yet."""
        policy = self._policies.get(release.version)
        if policy is None:
            installed = ", ".join(map(str, self.versions)) or "none"
            raise ProtocolError(
                f"{self._me} got the release of collective {release.seq} under policy {release.version}, "
                f"which it does not have (installed: {installed})"
            )
        if policy.from_seq > release.seq:
            raise ProtocolError(
                f"collective {release.seq} is released under policy {policy.version}, "
                f"which holds from collective {policy.from_seq} on"
            )
        return policy

    def has_all_up_to(self, version: int) -> bool:
        """Whether no policy up to a version can be missing."""
        return self.newest >= version and not self._overtaken

    def at(self, seq: int) -> Policy:
        """The newest one that holds for a collective; there is one once all are here."""
        return self._policies[max(v for v, policy in self._policies.items() if policy.from_seq <= seq)]

    def retire(self, below: int) -> None:
        """The coordinator's word on `retired_below`."""
        self.retired_below = max(self.retired_below, below)

    def drop(self, in_use: Collection[int]) -> None:
        """Forget what no collective begins or runs under any more, these being in use here."""
        over = {version for version in self._policies if version < self.retired_below}
        for version in over.union(superseded(self._policies)).difference(in_use):
            del self._policies[version]

    def clear(self) -> None:
        """The job has stopped."""
        self._policies.clear()
