"""Which way packets from one site to another go now: asked of the controller, which moves primaries."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from testbed.emulation.waiting import wait_for
from topologies.errors import DeadlineError, RunFailedError
from topologies.model import Topology
from topologies.paths import Path, direct_path_number, path_sets

ANSWER_S: Final = 5.0
# A cut is seen by the switches, told to the controller and answered with rules: fractions of a second when idle.
SETTLE_S: Final = 5.0


@dataclass(frozen=True)
class Route:
    """The sites that are passed, and the number that packets carry to pass them."""

    number: int
    path: Path


def chosen_route(topology: Topology, entry: Mapping[str, Any]) -> Route:
    """The direct link where there is one and it is not cut, else where packets without a known number go. Pure.

    Args:
        entry: of a pair, as in the controller's /routes.

    Raises:
        RunFailedError: the cut links part the two sites.
    """
    for path in entry["paths"]:
        if len(path["sites"]) == 2 and path["intact"]:
            return Route(path["path"], _indexes(topology, path["sites"]))
    sites = entry["primary"]["sites"]
    if sites is None:
        raise RunFailedError(
            f"no way is left from {entry['src']} to {entry['dst']}", hint="`testbed link show` tells which are down"
        )
    # Its number is absent where it is none of the pair's paths, and path 0 where that is intact.
    return Route(0, _indexes(topology, sites))


def routes_between(
    topology: Topology, controller_url: str, src: int, dst: int, cut: Sequence[int] = ()
) -> tuple[Route, Route]:
    """There and back.

    Args:
        cut: indexes (in `topology.links`) of the links that are down; waits a moment until the controller has
            followed.

    Raises:
        RunFailedError: nothing is left between them, or the controller does not answer and they are no
            neighbours.
    """
    names = topology.site_names
    down = [list(topology.links[i].endpoints) for i in sorted(cut)]
    answers: dict[tuple[int, int], dict[str, Any]] = {}

    def followed() -> bool:
        for pair in ((src, dst), (dst, src)):
            answers[pair] = _ask(controller_url, names[pair[0]], names[pair[1]])
        return all(answer["links_down"] == down and not answer["rerouting"] for answer in answers.values())

    try:
        wait_for(followed, "the controller to follow the cut links", SETTLE_S)
    except DeadlineError:
        pass  # links that come and go all the time: what it said last is what holds
    except (OSError, ValueError) as error:
        return _without_controller(topology, src, dst, down, str(error))
    there, back = (chosen_route(topology, answer["routes"][0]) for answer in answers.values())
    return there, back


def _without_controller(
    topology: Topology, src: int, dst: int, down: Sequence[Sequence[str]], why: str
) -> tuple[Route, Route]:
    """The rules of direct paths outlive the controller; which way primaries go it alone knows."""
    sets, names = path_sets(topology), topology.site_names
    ends = {names[src], names[dst]}
    numbers = direct_path_number(sets, src, dst), direct_path_number(sets, dst, src)
    if numbers[0] is None or numbers[1] is None or any(set(link) == ends for link in down):
        raise RunFailedError(
            f"which way packets go from {names[src]} to {names[dst]} is not known: "
            f"the controller does not answer ({why})",
            hint="`testbed status` tells what has ended",
        )
    return Route(numbers[0], (src, dst)), Route(numbers[1], (dst, src))


def _ask(controller_url: str, src: str, dst: str) -> dict[str, Any]:
    query = urllib.parse.urlencode({"src": src, "dst": dst})
    # Whatever proxies the machine uses are not for this network.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{controller_url}/routes?{query}", timeout=ANSWER_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _indexes(topology: Topology, sites: Sequence[str]) -> Path:
    return tuple(topology.index(name) for name in sites)
