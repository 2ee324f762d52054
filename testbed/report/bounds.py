"""The time that no scheduler can beat on a run's links."""

from __future__ import annotations

from testbed.experiments.manifest import Manifest
from topologies.errors import StormbedError


def bound_seconds(manifest: Manifest, nbytes: int) -> float | None:
    """The least seconds in which `nbytes` at every site can be summed and spread over the run's links.

    The links are as they were when the run began, which need not be as the topology declares. None where there
    is no such time: a single site, links that do not join all sites, or links that changed during the run.
    """
    if manifest.changed_by_hand:
        return None
    if manifest.experiment.get("dynamics", "none") != "none" or manifest.experiment.get("timeline"):
        return None
    # Imported here: the linear programme's library takes longer to load than most reports take.
    from testbed.simulation.bounds import bound

    sites: dict[str, int] = {}
    for link in manifest.links:
        sites.setdefault(link.src, len(sites))
        sites.setdefault(link.dst, len(sites))
    rates = {
        (sites[link.src], sites[link.dst]): float(link.rate_bps)
        for link in manifest.links
        if link.state == "up"
    }
    if not rates:
        return None
    try:
        return bound(rates, nbytes).seconds
    except StormbedError:
        return None
