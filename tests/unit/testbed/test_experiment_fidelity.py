"""The fidelity verdict of a run, from samples written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from testbed.emulation.impairment import LATENESS_BOUNDS_S
from testbed.experiments.fidelity import FidelityWatch
from testbed.experiments.interference import changes_by_others, interference

S = 1_000_000_000
RATE = 80_000_000
BUCKETS = len(LATENESS_BOUNDS_S) + 1


def sample(
    at_s: float,
    carried: int,
    *,
    backlog: int = 0,
    drops: int = 0,
    lateness: dict[float, int] | None = None,
    overflow: int = 0,
    busy: float = 0.0,
) -> dict[str, Any]:
    buckets = [0] * BUCKETS
    for bound, count in (lateness or {}).items():
        buckets[LATENESS_BOUNDS_S.index(bound)] = count
    line = {"lateness": buckets, "drops": {"loss": 5, "overflow": overflow, "missed": 0}}
    link = {"src": "dc1", "dst": "dc2", "rate_bps": RATE, "bytes": carried, "drops": drops}
    return {
        "monotonic_ns": round(at_s * S),
        "cpu": {"busy_s": busy, "steal_s": 0.0, "idle_s": 2 * at_s - busy},
        "links": [link | {"backlog_bytes": backlog, "delay_line": line}],
    }


ALL = ((0, 1000 * S),)


def judge(
    *samples: dict[str, Any],
    calibration: dict[str, Any] | None = None,
    synchronisations: Sequence[tuple[int, int]] = ALL,
) -> Any:
    watch = FidelityWatch()
    for one in samples:
        watch.add(one)
    return watch.judge(calibration, synchronisations)


def saturated_for(seconds: int, share: float, backlog: int = 1_000_000) -> list[dict[str, Any]]:
    per_second = RATE / 8 * share
    return [sample(k, round(k * per_second), backlog=backlog) for k in range(seconds + 1)]


def test_a_waiting_link_at_its_rate_is_faithful() -> None:
    found = judge(*saturated_for(5, 0.97))
    assert found.verdict == "faithful"
    assert found.run["waiting_links"]["dc1>dc2"]["carried_ratio"] == pytest.approx(0.97)


@pytest.mark.parametrize(("share", "verdict"), [(0.85, "degraded"), (0.5, "saturated")])
def test_a_waiting_link_below_its_rate_is_named(share: float, verdict: str) -> None:
    found = judge(*saturated_for(5, share))
    assert found.verdict == verdict
    assert found.reasons == (f"link dc1>dc2 carried {share:.0%} of its rate while data waited",)


def test_a_slow_link_with_nothing_waiting_says_nothing() -> None:
    found = judge(*saturated_for(5, 0.3, backlog=1000))
    assert found.verdict == "unknown"
    assert found.reasons == (
        "the testbed was not calibrated, and no link was busy for long enough to be judged",
    )
    assert found.run["waiting_links"] == {}


def test_only_intervals_within_one_synchronisation_are_judged() -> None:
    # Between two synchronisations a link may idle although a queue was seen before and after.
    halves = [(0, round(3.5 * S)), (round(3.6 * S), 10 * S)]
    found = judge(*saturated_for(10, 0.5), synchronisations=halves)
    assert found.run["waiting_links"]["dc1>dc2"]["waited_s"] == pytest.approx(9.0)
    apart = [(round((k + 0.5) * S), round((k + 1.4) * S)) for k in range(9)]
    assert judge(*saturated_for(10, 0.5), synchronisations=apart).verdict == "unknown"
    assert judge(*saturated_for(10, 0.5), synchronisations=()).verdict == "unknown"


def test_a_short_wait_is_not_judged() -> None:
    assert judge(*saturated_for(2, 0.3)).verdict == "unknown"
    assert judge(*saturated_for(2, 0.3), calibration={"verdict": "faithful"}).verdict == "faithful"


def test_lateness_is_that_of_the_run_alone() -> None:
    early = {20e-3: 1000}
    on_time = judge(sample(0, 0, lateness=early), sample(1, 0, lateness=early | {200e-6: 1000}))
    assert on_time.verdict == "unknown"
    assert on_time.run["lateness_p99_s"] == pytest.approx(200e-6)
    late = judge(sample(0, 0), sample(1, 0, lateness={200e-6: 900, 5e-3: 100}))
    assert late.verdict == "degraded"
    assert late.reasons == ("link dc1>dc2 let 1 % of its frames go 5.0 ms late or more",)


def test_losses_nobody_declared() -> None:
    found = judge(sample(0, 0), sample(1, 0, overflow=3))
    assert found.verdict == "degraded"
    assert found.reasons == ("link dc1>dc2 lost 3 segments that were not to be lost",)


def test_drops_of_the_shaped_queue_are_recorded_and_not_judged() -> None:
    found = judge(sample(0, 0, drops=1), sample(1, 0, drops=9))
    assert (found.verdict, found.run["queue_drops"]) == ("unknown", 8)


def test_processors_are_recorded() -> None:
    found = judge(sample(0, 0), sample(10, 0, busy=15.0))
    assert found.run["cpu_busy_ratio"] == pytest.approx(0.75)


def test_the_worse_of_bring_up_and_run_counts() -> None:
    calibration = {"verdict": "degraded", "reasons": ["dc1>dc2 at 0.85"]}
    found = judge(*saturated_for(5, 0.97), calibration=calibration)
    assert found.verdict == "degraded"
    assert found.reasons == ("at bring-up: dc1>dc2 at 0.85",)
    assert judge(*saturated_for(5, 0.5), calibration={"verdict": "faithful"}).verdict == "saturated"


def test_a_network_that_others_meddled_with_is_not_faithful() -> None:
    watch = FidelityWatch()
    for one in saturated_for(5, 0.97):
        watch.add(one)
    found = watch.judge({"verdict": "faithful"}, ALL, ("links were changed by hand",))
    assert (found.verdict, found.reasons) == ("degraded", ("links were changed by hand",))


def verb(at_s: float, name: str, **arguments: Any) -> dict[str, Any]:
    return {"monotonic_ns": round(at_s * S), "kind": "verb", "verb": name, "arguments": arguments}


def meddling(*events: dict[str, Any], own_changes: bool = False) -> tuple[str, ...]:
    return interference(events, 10 * S, 20 * S, own_changes=own_changes)


def test_what_was_done_to_links_by_hand_is_told_once_each() -> None:
    ends = {"src": "dc1", "dst": "dc2"}
    found = meddling(
        verb(9, "link_down", **ends),  # before the run
        verb(11, "link_set", **ends, both=True, rate="30mbit"),
        verb(12, "link_set", changes=[{"src": "dc2", "dst": "dc3", "loss": "5%"}]),
        verb(13, "link_down", **ends),
        verb(14, "link_down", **ends),
        verb(15, "link_reset"),
        verb(21, "blackhole", **ends),  # after it
    )
    assert found == (
        "links were changed by hand during the run: dc1-dc2 set, dc2>dc3 set, dc1-dc2 cut, all links reset",
    )


def test_measuring_during_a_run_is_told() -> None:
    found = meddling(verb(11, "calibrate"), verb(12, "link_test", src="dc1", dst="dc2"))
    assert found == ("`calibrate` and `link test` loaded the links during the run",)


def test_only_an_experiment_with_dynamics_may_have_links_change_by_themselves() -> None:
    events = (verb(11, "dynamics_start"), {"monotonic_ns": 12 * S, "kind": "link_changes"})
    assert meddling(*events, own_changes=True) == ()
    assert meddling(*events) == ("links changed by themselves during the run (`up --dynamics` or `link vary`)",)


def test_a_testbed_left_alone_has_nothing_to_tell() -> None:
    assert meddling(verb(11, "spawn"), {"monotonic_ns": 12 * S, "kind": "process_started"}) == ()


def test_without_samples_nothing_is_known() -> None:
    assert judge().verdict == "unknown"
    assert judge(sample(0, 0)).run is None
    assert judge(calibration={"verdict": "faithful"}).verdict == "faithful"


def test_what_others_made_of_links_is_kept_by_time() -> None:
    def became(at_s: float, kind: str) -> dict[str, Any]:
        return {"monotonic_ns": round(at_s * S), "kind": kind, "links": [{"src": "dc1", "dst": "dc2"}]}

    events = [became(9, "links_by_hand"), became(12, "links_by_hand"), became(15, "link_changes")]
    events.append(became(21, "links_by_hand"))
    found = changes_by_others(events, 10 * S, 20 * S, own_changes=True)
    assert [(at_ns / S, links[0]["src"]) for at_ns, links in found] == [(12, "dc1")]
    # Without dynamics of its own, what changes by itself is somebody else's `link vary`.
    found = changes_by_others(events, 10 * S, 20 * S, own_changes=False)
    assert [at_ns / S for at_ns, _ in found] == [12, 15]
