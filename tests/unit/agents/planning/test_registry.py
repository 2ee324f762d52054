"""Schedulers by name."""

from __future__ import annotations

import re

import pytest

from agents.planning.base import Scheduler
from agents.planning.netstorm import NetStorm
from agents.planning.registry import get_scheduler, scheduler_names, scheduler_style, scheduler_summary
from agents.planning.star import Star
from topologies.errors import UsageError

SITES = ("dc1", "dc2", "dc3")


def test_every_name_gives_a_scheduler_of_that_name() -> None:
    for name in scheduler_names():
        scheduler = get_scheduler(name, SITES)
        assert isinstance(scheduler, Scheduler)
        assert scheduler.name == name
        assert scheduler_summary(name)


def test_looks_are_distinct() -> None:
    styles = [scheduler_style(name) for name in scheduler_names()]
    assert len({s.colour for s in styles}) == len({s.marker for s in styles}) == len(styles)
    assert all(re.fullmatch("#[0-9A-F]{6}", s.colour) for s in styles)
    assert scheduler_style("star-dc2") == scheduler_style("star") == scheduler_style("star-first")


def test_star_spellings() -> None:
    for spec in (
        "star-best",
        {"name": "star-best"},
        {"name": "star", "options": {"server": "best"}},
        {"name": "star-best", "options": {"server": "best"}},
    ):
        assert get_scheduler(spec, SITES) == Star("best", "star-best")
    assert get_scheduler("star", SITES) == get_scheduler({"name": "star", "options": None}, SITES)


def test_netstorm_with_options() -> None:
    assert get_scheduler({"name": "netstorm", "options": {"roots": 2}}, SITES) == NetStorm(2)


def test_a_site_called_like_a_placement_wins() -> None:
    spec = {"name": "star", "options": {"server": "best"}}
    assert get_scheduler(spec, ("first", "best")) == Star(1, "star-best")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("netstrom", "did you mean netstorm"),
        ("star-bset", "did you mean star-best"),
        (
            {"name": "netstorm", "options": {"root": 3}},
            "no option 'root' (known options: roots, pull, paths, seed, link_order)",
        ),
        ({"name": "star", "options": {"server": "dc22"}}, "did you mean dc2"),
        ({"name": "star-best", "options": {"server": "all"}}, "stands for server best, not 'all'"),
        ({"scheduler": "star"}, "does not name a scheduler"),
        ({"name": "star", "server": "all"}, "does not name a scheduler"),
        ({"name": 3}, "does not name a scheduler"),
    ],
)
def test_what_cannot_be_asked_for(spec: object, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        get_scheduler(spec, SITES)  # type: ignore[arg-type]
