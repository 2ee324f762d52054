"""The protocol under many seeds, and proof that the trials would find it broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from agents.sync.coordinator_machine import CoordinatorMachine
from agents.sync.payload import GhostPayload
from agents.sync.policy import Policy, Relation
from agents.sync.site_machine import SiteMachine
from testbed.simulation.trials import FAULTS, Fault, run_trial

SEEDS_PER_BATCH = 200


@pytest.mark.parametrize("batch", range(10))
def test_the_invariant_holds_under_every_seed(batch: int) -> None:
    """docs/architecture.md, section 5. A failure names its seed; `python -m testbed.simulation.trials --first SEED
    --count 1 --trace` replays it.
    """
    first = batch * SEEDS_PER_BATCH
    reports = [run_trial(seed) for seed in range(first, first + SEEDS_PER_BATCH)]
    assert [(r.seed, r.violation) for r in reports if r.violation is not None] == []
    assert {r.fault for r in reports} == set(FAULTS)
    assert all(
        sum(r.duplicates for r in reports if r.fault == fault) > 0 for fault in ("duplicates", "resets")
    )
    assert sum(r.stopped for r in reports) == 2 * SEEDS_PER_BATCH // len(FAULTS)


def test_a_trial_is_a_function_of_its_seed() -> None:
    for seed in (3, 4, 5, 6, 7):
        events: list[list[str]] = [[], []]
        reports = [run_trial(seed, trace.append) for trace in events]
        assert reports[0] == reports[1]
        assert events[0] == events[1]
        assert events[0]


def found(fault: Fault, seeds: int = 100) -> list[str]:
    """The violations that trials with this fault report."""
    first = FAULTS.index(fault)
    reports = [run_trial(first + k * len(FAULTS)) for k in range(seeds)]
    return [r.violation for r in reports if r.violation is not None]


def test_finds_a_machine_that_counts_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    original = GhostPayload.combine

    def twice(self: GhostPayload, op: str, other: GhostPayload) -> GhostPayload:
        return original(original(self, op, other), op, other)

    monkeypatch.setattr(GhostPayload, "combine", twice)
    assert any("counted more than once" in violation for violation in found("none"))


def test_finds_a_site_that_uses_the_newest_policy_for_every_collective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The published code's race: data of one collective under the tree of another."""
    original: Callable[..., Any] = SiteMachine._on_release

    def stale(self: SiteMachine, release: Any) -> Any:
        if release.policy is not None and self.site == 1 and self.installed:
            old = self._policies[max(self.installed)]
            wrong = Policy(release.version, release.seq, old.plan, old.chunk_elements, old.hop_paths)
            release = type(release)(release.job, release.seq, release.version, wrong, release.retired_below)
        return original(self, release)

    monkeypatch.setattr(SiteMachine, "_on_release", stale)
    assert len(found("none")) > 30


def test_finds_chunks_dropped_instead_of_held(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., Any] = SiteMachine.on_message

    def forgetful(self: SiteMachine, message: Any) -> Any:
        actions = original(self, message)
        if self.held:
            self._held.clear()
        return actions

    monkeypatch.setattr(SiteMachine, "on_message", forgetful)
    assert any("hangs" in violation for violation in found("none"))


def test_finds_a_coordinator_that_keeps_a_loss_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoordinatorMachine, "site_lost", lambda self, site, why: [])
    assert any("has not stopped" in violation for violation in found("crash"))


def test_finds_a_tree_that_forgets_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., Any] = Relation.role

    def careless(self: Relation, site: int, contributors: int, targets: int) -> Any:
        role = original(self, site, contributors, targets)
        if len(role.down_to) < 2:
            return role
        fields = {name: getattr(role, name) for name in role.__slots__}
        return type(role)(**(fields | {"down_to": role.down_to[1:]}))

    monkeypatch.setattr(Relation, "role", careless)
    assert any("hangs" in violation for violation in found("none"))


def test_the_command_line_replays_a_seed() -> None:
    command = [sys.executable, "-m", "testbed.simulation.trials", "--first", "8", "--count", "1", "--trace"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    lines = answer.stdout.splitlines()
    assert lines[-1].startswith("1 trials, ")
    assert lines[-1].endswith("0 failed")
    assert len(lines) > 10
