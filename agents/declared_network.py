"""The network as it was declared, and the paths that it offers between sites."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from topologies.model import Topology
from topologies.paths import Path, direct_path_number, path_sets


@dataclass(frozen=True)
class DeclaredNetwork:
    """A topology with its path sets, which are found when they are first asked for."""

    topology: Topology

    @cached_property
    def paths(self) -> dict[tuple[int, int], tuple[Path, ...]]:
        """The paths that the network offers."""
        return path_sets(self.topology)

    def first_hops(self, site: int) -> dict[tuple[int, int], int]:
        """By (destination, path number): the neighbour where the path leaves `site`."""
        return {
            (dst, number): path[1]
            for (src, dst), paths in self.paths.items()
            if src == site
            for number, path in enumerate(paths)
        }

    def path(self, src: int, dst: int, number: int) -> Path:
        """A path by its number; the primary for one that the pair does not have, as in the network."""
        paths = self.paths[src, dst]
        return paths[number if 0 <= number < len(paths) else 0]

    def path_delay_s(self, path: Path) -> float:
        """The declared delay of a path, one way."""
        delays = {(link.src, link.dst): link.delay.seconds for link in self.topology.directed}
        return sum(delays[hop] for hop in pairwise(path))

    def hop_paths(self, members: tuple[int, ...]) -> dict[tuple[int, int], int]:
        """Path numbers for pairs of a job's sites, by their place in `members`: the direct path where there
        is one.

        Pairs that take path 0 are left out.
        """
        numbers = {}
        for u, src in enumerate(members):
            for v, dst in enumerate(members):
                number = direct_path_number(self.paths, src, dst) if src != dst else None
                if number:
                    numbers[u, v] = number
        return numbers
