"""`star`: the parameter server, as stock MXNet runs it. The baseline of the NetStorm paper.

Every site sends to the server and gets the result back from it; nothing is summed on the way. The network is
sparse, so most of these hops are relayed: the network carries them over its primary path, and on shared links
the flows of several sites add up. Three servers are worth reporting (NetStorm's exact placement is not
published):

* `first`  the server at site 0, placed without looking at the network;
* `best`   the server at the site with the least modelled synchronisation time;
* `all`    every site serves, as stock MXNet does with one server a host, and tensors are placed as it places
           them: below `big_array` elements (MXNET_KVSTORE_BIGARRAY_BOUND, 1,000,000) whole at the server of
           (key * 9973) mod servers, whatever their size; from there on in equal contiguous parts, one a
           server (kvstore_dist.h: EncodeDefaultKey; `agents.chunks.place_keys`);
* or the name of a site.

Modelled synchronisation time of a server r, per megabit of model, used by `best`: all N-1 flows towards r and
all N-1 flows back run together over their primary paths, in steady state, so the busiest link decides:
    T(r) = max over arcs a of  w(a) * (number of the 2(N-1) primary paths that use a).
Sites whose T differs by less than 1e-9 relative are equal, and the lowest index wins.

Score: a star has one level of logical hops, so NetStorm's Q is the dearest of them in the direction root ->
leaf, Q(r) = max over v of relay cost(r, v), and score = 1/Q in Mbit/s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from agents.planning.base import BIG_ARRAY, NetworkView, Plan, Tree
from agents.planning.options import whole_number
from agents.planning.routes import at_most
from topologies.errors import UsageError
from topologies.model import nearest

PLACEMENTS = ("first", "best", "all")


@dataclass(frozen=True)
class Star:
    """server: one of first, best, all, or the index of a site; name: as shown in results; big_array: elements
    from which `all` splits a tensor.
    """

    server: str | int
    name: str
    big_array: int = BIG_ARRAY

    @classmethod
    def from_options(cls, options: Mapping[str, Any], site_names: Sequence[str]) -> Star:
        """From `server: first | best | all | SITE`, where a site that is called like one of the words wins, and
        `big_array`.
        """
        server = options.get("server", "first")
        big_array = whole_number("star", "big_array", options.get("big_array", BIG_ARRAY), least=0)
        if server in site_names:
            return cls(list(site_names).index(server), f"star-{server}", big_array)
        if server not in PLACEMENTS:
            raise UsageError(
                f"scheduler star has no server {server!r}",
                hint=nearest(str(server), (*PLACEMENTS, *site_names)),
            )
        return cls(server, f"star-{server}", big_array)

    def plan(self, network: NetworkView) -> Plan:
        """One tree per server; parents are logical hops that the network relays."""
        if self.server == "all":
            roots = list(range(network.n))
        elif self.server == "best":
            roots = [best_server(network)]
        elif self.server == "first":
            roots = [0]
        else:
            roots = [int(self.server)]
        share = 1 / len(roots)
        trees = tuple(_star(network, root, share) for root in roots)
        return Plan(self.name, trees, cut="quota" if len(roots) == 1 else "keys", big_array=self.big_array)


def modelled_time(network: NetworkView, server: int) -> float:
    """T(server) of the module's text, in seconds per megabit of model."""
    uses: Counter[tuple[int, int]] = Counter()
    for site in range(network.n):
        if site != server:
            uses.update(pairwise(network.relay(site, server)))
            uses.update(pairwise(network.relay(server, site)))
    return max((network.cost(arc) * count for arc, count in uses.items()), default=0.0)


def best_server(network: NetworkView) -> int:
    """The site of least modelled time; among equals the lowest index."""
    times = [modelled_time(network, site) for site in range(network.n)]
    least = min(times)
    return next(site for site, time in enumerate(times) if at_most(time, least))


def _star(network: NetworkView, root: int, share: float) -> Tree:
    others = [site for site in range(network.n) if site != root]
    for site in others:
        network.relay_cost(site, root)  # raises where a site cannot reach the server
    dearest = max((network.relay_cost(root, site) for site in others), default=0.0)
    parents = tuple(None if site == root else root for site in range(network.n))
    return Tree(root, share, 1 / dearest if dearest else 0.0, parents)
