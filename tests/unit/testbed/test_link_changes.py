"""What a run does between two turns that have links change."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from testbed.experiments import changes
from testbed.experiments.changes import LinkChanges
from testbed.experiments.rundir import RunDirectory
from testbed.experiments.spec import experiment_from_text

EXPERIMENT = """
name: cut
topology: triangle
timeline: [{at: 1s, action: %s, link: dc1-dc2}]
dynamics: {kind: uniform, rate: [20mbit, 90mbit], replay: %s}
training: {model: tensor-1k}
schedulers: [netstorm]
"""


class Links:
    """A testbed of which dc2-dc3 was cut by hand before the run."""

    def call(self, verb: str, **fields: Any) -> list[dict[str, str]]:
        assert verb == "links"
        pairs = [(a, b) for a in ("dc1", "dc2", "dc3") for b in ("dc1", "dc2", "dc3") if a != b]
        return [{"src": a, "dst": b, "state": "down" if {a, b} == {"dc2", "dc3"} else "up"} for a, b in pairs]


def await_return(
    tmp_path: Path, answers: list[list[str]], action: str = "link-down", replay: str = "segment"
) -> tuple[int, tuple[str, ...]]:
    """How often the coordinator was asked, and what the run notes."""
    asked = 0

    def links_down() -> list[str]:
        nonlocal asked
        asked += 1
        return answers[min(asked, len(answers)) - 1]

    experiment = experiment_from_text(EXPERIMENT % (action, replay))
    with RunDirectory(tmp_path / "run", experiment, "emulated") as run:
        LinkChanges(experiment, Links(), run).await_return(links_down)  # type: ignore[arg-type]
        notes = run.manifest.notes
        run.finish(None, None)
    return asked, notes


def test_the_next_turn_waits_until_the_coordinator_knows_that_cables_are_mended(tmp_path: Path) -> None:
    """dc2-dc3 stays cut, since it was so before: only what the turn has cut is waited for."""
    answers = [["dc1-dc2", "dc2-dc3"], ["dc1-dc2", "dc2-dc3"], ["dc2-dc3"]]
    assert await_return(tmp_path, answers) == (3, ())


def test_it_waits_for_a_while_only_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "RETURN_S", 0.2)
    began = time.monotonic()
    asked, (note,) = await_return(tmp_path, [["dc1-dc2", "dc2-dc3"]])
    assert asked > 1
    assert time.monotonic() - began > 0.2
    assert note == "a turn began 0.2 s after cables were mended, of which nobody had told it"


@pytest.mark.parametrize(("action", "replay"), [("blackhole", "segment"), ("link-down", "run")])
def test_nothing_is_asked_where_no_turn_mends_a_cable(tmp_path: Path, action: str, replay: str) -> None:
    assert await_return(tmp_path, [["dc1-dc2"]], action, replay) == (0, ())
