"""The protocol under many seeds, and proof that the trials would find it broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from agents.sync.actions import SendToSite
from agents.sync.collective import CollectiveAtSite
from agents.sync.coordinator_machine import CoordinatorMachine
from agents.sync.messages import Abort, Release
from agents.sync.payload import GhostPayload
from agents.sync.policy import Policy, Relation
from agents.sync.site_machine import SiteMachine
from testbed.simulation.trials import FAULTS, MODES, PLANNERS, Fault, run_trial

SEEDS_PER_BATCH = 72  # every fault with every planner, three times
STOPS = ("cut", "crash", "crashes", "coordinator")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", range(2))
def test_the_invariant_holds_under_every_seed(batch: int, mode: str) -> None:
    """docs/architecture.md, section 5. A failure names its seed; `python -m testbed.simulation.trials --first SEED

    --count 1 --mode MODE --trace` replays it.
    """
    first = (2 * sorted(MODES).index(mode) + batch) * SEEDS_PER_BATCH
    reports = [run_trial(seed, mode=mode) for seed in range(first, first + SEEDS_PER_BATCH)]
    assert [(r.seed, r.violation) for r in reports if r.violation is not None] == []
    for fault in FAULTS:
        of_fault = [r for r in reports if r.fault == fault]
        assert {r.planner for r in of_fault} == set(PLANNERS)
        assert all(r.stopped == (fault in STOPS) for r in of_fault)
        assert (sum(r.duplicates for r in of_fault) > 0) >= (fault in ("duplicates", "resets", "lossy"))
    assert sum(r.lost for r in reports if r.fault == "lossy") > 200
    # Reports are datagrams, whatever else goes wrong.
    assert sum(r.lost for r in reports if r.planner == "measured" and r.fault == "none") > 10
    for planner in PLANNERS:
        assert sum(r.policies for r in reports if r.planner == planner) > 20


# A switch inside a collective, and a question about it or a release that comes again: hung, or took it for a fault.
@pytest.mark.parametrize("seed", [3107, 5745, 6537, 7041, 7235, 8361, 9561])
def test_seeds_that_once_failed(seed: int) -> None:
    report = run_trial(seed)
    assert report.violation is None
    assert (report.planner, report.fault in ("duplicates", "lossy")) == ("within", True)


def test_a_trial_is_a_function_of_its_seed() -> None:
    for seed in (*range(3, 8), 11, 18):
        events: list[list[str]] = [[], []]
        reports = [run_trial(seed, trace.append) for trace in events]
        assert reports[0] == reports[1]
        assert events[0] == events[1]
        assert events[0]


def found(fault: Fault, planner: str = "random", most: int = 100) -> list[str]:
    """The violations that trials with this fault and planner report, up to the first ten of them."""
    violations: list[str] = []
    first = FAULTS.index(fault) + len(FAULTS) * PLANNERS.index(planner)  # type: ignore[arg-type]
    for k in range(most):
        report = run_trial(first + k * len(FAULTS) * len(PLANNERS))
        if report.violation is not None:
            violations.append(report.violation)
        if len(violations) == 10:
            break
    return violations


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
    assert len(found("none")) == 10


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


def test_finds_a_site_that_breaks_its_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of plan inside a collective, where a site says that it has begun less than it has."""
    original = CollectiveAtSite.promise

    def liar(self: CollectiveAtSite) -> tuple[int, int]:
        limit, total = original(self)
        return max(0, limit - 2), total

    monkeypatch.setattr(CollectiveAtSite, "promise", liar)
    assert found("none", "within") != []


def test_finds_a_site_that_goes_on_without_its_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., Any] = SiteMachine.on_message

    def deaf(self: SiteMachine, message: Any) -> Any:
        return [] if isinstance(message, Abort) and self.site == 0 else original(self, message)

    monkeypatch.setattr(SiteMachine, "on_message", deaf)
    assert any("has not stopped" in violation for violation in found("coordinator"))


def test_finds_measured_plans_that_are_not_held_until_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that lets the newest plan take the place of one that is in force."""
    original: Callable[..., Any] = CoordinatorMachine.set_plan

    def hasty(self: CoordinatorMachine, plan: Any, *how: Any) -> Any:
        actions = original(self, plan, *how)
        current = self.policy
        if current is not None and actions == []:
            wrong = Policy(current.version, current.from_seq, plan, *how)
            actions = [SendToSite(1, Release(self.job, max(0, self.next_seq - 1), wrong.version, wrong))]
        return actions

    monkeypatch.setattr(CoordinatorMachine, "set_plan", hasty)
    assert found("none", "measured") != []


def test_the_command_line_replays_a_seed() -> None:
    command = [sys.executable, "-m", "testbed.simulation.trials", "--first", "7", "--count", "1", "--trace"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    lines = answer.stdout.splitlines()
    assert lines[-1].startswith("1 trials, ")
    assert lines[-1].endswith("0 failed")
    assert len(lines) > 10
