"""Which way `link test` goes, and what it says where nothing passes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testbed.emulation import link_test
from testbed.emulation.routes import Route, chosen_route, routes_between
from topologies.errors import DeadlineError, RunFailedError
from topologies.load import topology_from_dict

# From a to b the way around is the faster one, so the direct link is path 1.
DETOUR = topology_from_dict(
    {
        "name": "detour",
        "sites": {"a": {}, "b": {}, "c": {}, "d": {}},
        "links": [
            {"endpoints": ["a", "b"], "rate": "5mbit"},
            {"endpoints": ["b", "c"], "rate": "50mbit"},
            {"endpoints": ["a", "c"], "rate": "50mbit"},
            {"endpoints": ["c", "d"], "rate": "50mbit"},
        ],
    }
)
NOBODY = "http://127.0.0.1:9"


def entry(intact: bool, primary: list[str] | None) -> dict[str, Any]:
    return {
        "src": "a",
        "dst": "b",
        "paths": [
            {"path": 0, "sites": ["a", "c", "b"], "intact": True},
            {"path": 1, "sites": ["a", "b"], "intact": intact},
        ],
        "primary": {"path": 0, "sites": primary, "moved": False},
    }


def test_neighbours_are_measured_over_their_link_and_others_where_packets_go_now() -> None:
    assert chosen_route(DETOUR, entry(True, ["a", "c", "b"])) == Route(1, (0, 1))
    assert chosen_route(DETOUR, entry(False, ["a", "c", "b"])) == Route(0, (0, 2, 1))
    with pytest.raises(RunFailedError, match="no way is left from a to b"):
        chosen_route(DETOUR, entry(False, None))


def test_without_a_controller_only_the_links_of_neighbours_are_known() -> None:
    assert routes_between(DETOUR, NOBODY, 0, 1) == (Route(1, (0, 1)), Route(1, (1, 0)))
    for src, dst, cut in ((0, 3, ()), (0, 1, (0,))):
        with pytest.raises(RunFailedError, match="the controller does not answer"):
            routes_between(DETOUR, NOBODY, src, dst, cut)


def test_where_nothing_passes_the_test_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer:
        stdout = json.dumps({"error": "no TCP connection from site 1 to site 2"})

    monkeypatch.setattr(link_test, "run", lambda *args, **kwargs: Answer)
    with pytest.raises(RunFailedError, match="nothing passes between these two sites") as caught:
        link_test._traffic([], [], kind="load")
    assert caught.value.exit_code == 5

    def late(*args: object, **kwargs: object) -> None:
        raise DeadlineError("the command", 30)

    monkeypatch.setattr(link_test, "run", late)
    with pytest.raises(RunFailedError, match="the measurement was not over after"):
        link_test._traffic([], [], kind="load")
