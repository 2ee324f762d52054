from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.emulation import fidelity
from testbed.emulation.calibrate import apart, load_seconds
from testbed.emulation.fidelity import Measured, judge, link_problems, with_delays
from topologies.load import load_topology, topology_from_dict
from topologies.units import Delay, Loss, Rate

LINKS = load_topology("netstorm-9").directed


def sound(ratio: float = 0.95) -> list[Measured]:
    return [Measured(link, ratio * link.rate.bps, delay_s=0.0004) for link in LINKS]


def test_a_network_as_declared_is_faithful() -> None:
    report = judge(sound(), lateness_p99_s=0.0005, cpu_busy_ratio=0.9)
    assert report.verdict == "faithful" and report.reasons == ()


@pytest.mark.parametrize("ratio", [0.90, 0.956, 0.97])
def test_the_band_includes_its_ends(ratio: float) -> None:
    link = replace(LINKS[0], rate=Rate(100_000_000))
    assert link_problems(Measured(link, ratio * 100e6, delay_s=0.0)) == []


@pytest.mark.parametrize(("alone", "word"), [(0.85, "0.85"), (1.02, "1.02")])
def test_a_link_that_is_wrong_alone_degrades_and_is_named(alone: float, word: str) -> None:
    measured = sound()
    measured[3] = replace(measured[3], together_bps=0.5 * 81e6, alone_bps=alone * LINKS[3].rate.bps)
    report = judge(measured)
    assert report.verdict == "degraded"
    (reason,) = report.reasons
    assert reason.startswith("dc3 -> dc1: ") and word in reason and "81mbit" in reason


def test_one_link_that_had_bad_luck_with_all_busy_does_no_harm() -> None:
    measured = sound()
    measured[3] = replace(measured[3], together_bps=0.85 * 81e6, alone_bps=0.95 * 81e6)
    assert judge(measured).verdict == "faithful"


def test_a_machine_that_does_not_keep_up_is_saturated() -> None:
    measured = [
        replace(m, together_bps=0.6 * m.link.rate.bps, alone_bps=0.95 * m.link.rate.bps) for m in sound()
    ]
    report = judge(measured)
    assert report.verdict == "saturated"
    assert report.reasons[0] == "dc1 -> dc2: only 0.60 of 38mbit while all links are busy"
    assert "1311 of 2185 Mbit/s" in report.reasons[-1] and "scaled by 0.54 would fit" in report.reasons[-1]
    assert len(report.reasons) == 9 and report.reasons[-2] == "and 19 more of this kind"


def test_links_not_tested_alone_count_against_the_machine_only() -> None:
    measured = [replace(m, together_bps=0.6 * m.link.rate.bps, retest_skipped=True) for m in sound()]
    assert judge(measured).verdict == "saturated"
    measured[0] = replace(measured[0], together_bps=1.2 * measured[0].link.rate.bps)
    assert judge(measured).verdict == "degraded", "a link that is too fast is wrong whatever the machine does"


def test_delay_loss_and_silence_are_problems() -> None:
    link = replace(LINKS[0], delay=Delay(10_000_000))
    fine = Measured(link, delay_s=0.0112)
    assert link_problems(fine) == []
    assert link_problems(replace(fine, delay_s=0.0121)) == ["delay 12.10 ms instead of 10 ms"]
    assert link_problems(replace(fine, delay_s=0.0080)) == ["delay 8.00 ms instead of 10 ms"]
    assert link_problems(replace(fine, delay_s=None)) == ["nothing arrived"]
    jittery = replace(link, jitter=Delay(5_000_000))
    assert link_problems(Measured(jittery, delay_s=0.0155)) == []


@pytest.mark.parametrize(
    ("declared", "sent", "lost", "fits"),
    [
        (0.01, 3000, 30, True),
        (0.01, 3000, 50, True),
        (0.01, 3000, 60, False),
        (0.01, 3000, 2, False),
        (0.0, 3000, 2, True),
        (0.0, 3000, 3, False),
        (1.0, 3000, 3000, True),
    ],
)
def test_loss_is_judged_by_its_own_spread(declared: float, sent: int, lost: int, fits: bool) -> None:
    link = replace(LINKS[0], loss=Loss(declared))
    assert (link_problems(Measured(link, delay_s=0.0, sent=sent, lost=lost)) == []) is fits


def test_a_late_delay_line_degrades() -> None:
    report = judge(sound(), lateness_p99_s=0.005)
    assert report.verdict == "degraded" and "5 ms late" in report.reasons[0]


def test_probes_become_a_median_and_a_count() -> None:
    measured = with_delays(Measured(LINKS[0]), [0.3, 0.1, 0.2], 4, count_loss=True)
    assert (measured.delay_s, measured.sent, measured.lost) == (0.2, 4, 1)
    assert with_delays(Measured(LINKS[0]), [], 4, count_loss=False).delay_s is None


def test_the_report_as_data() -> None:
    measured = sound()
    measured[0] = replace(measured[0], together_bps=31e6, alone_bps=36e6)
    data = judge(measured, seconds=4.2).to_dict()
    assert data["schema"] == 1 and data["verdict"] == "faithful" and data["declared_bps"] == 2_185_000_000
    first = data["links"][0]
    assert (first["src"], first["dst"], first["together_bps"], first["alone_bps"]) == (
        "dc1",
        "dc2",
        31e6,
        36e6,
    )
    assert first["ratio"] == round(36 / 38, 4) and first["problems"] == []


def test_retests_share_no_site_and_little_load() -> None:
    groups = apart(LINKS)
    assert sorted(link.index for group in groups for link in group) == list(range(26))
    for group in groups:
        ends = [end for link in group for end in (link.src, link.dst)]
        assert len(ends) == len(set(ends))
        assert sum(link.rate.bps for link in group) <= 500_000_000
    fast = topology_from_dict(
        {
            "name": "t",
            "sites": {"a": {}, "b": {}, "c": {}, "d": {}},
            "defaults": {"rate": "10gbit"},
            "links": [{"endpoints": ["a", "b"]}, {"endpoints": ["b", "c"]}, {"endpoints": ["c", "d"]}],
        }
    )
    assert all(len(group) == 1 for group in apart(fast.directed))


def test_in_band_of_nothing_is_out() -> None:
    assert not fidelity.in_band(None)
    assert fidelity.needs_retest(Measured(LINKS[0]))


def test_what_the_switches_take_is_common_to_all_delayed_directions() -> None:
    """Those without a delay cannot be helped, those with jitter say nothing exact."""
    late = [0.0005, 0.0003, 0.0004]
    measured = [
        Measured(replace(link, delay=Delay(10_000_000)), delay_s=0.01 + excess)
        for link, excess in zip(LINKS, late, strict=False)
    ]
    measured.append(Measured(LINKS[5], delay_s=0.009))
    measured.append(Measured(replace(LINKS[6], delay=Delay(10_000_000), jitter=Delay(1)), delay_s=0.05))
    measured.append(Measured(replace(LINKS[7], delay=Delay(10_000_000)), delay_s=None))
    assert fidelity.common_excess_s(measured) == pytest.approx(0.0004)
    assert fidelity.common_excess_s(measured[3:5]) == pytest.approx(0.04), "better than nothing"
    assert fidelity.common_excess_s(measured[3:4]) is None


def test_losses_in_bursts_are_judged_by_their_mean_and_their_length() -> None:
    link = replace(LINKS[0], loss=Loss(0.01, 8.0))

    def problems(lost: int, bursts: int) -> list[str]:
        return link_problems(Measured(link, 0.95 * link.rate.bps, None, 0.0, 20_000, lost, bursts))

    assert problems(200, 25) == []
    assert problems(390, 48) == [], "bursts vary the mean far more than independent losses would"
    assert problems(200, 190) == ["losses in bursts of 1.1 instead of 1% burst 8"]
    assert problems(900, 110) == ["loss 4.50% of 20000 instead of 1% burst 8"]
    assert link_problems(
        Measured(replace(link, loss=Loss(0.01)), 0.95 * link.rate.bps, None, 0.0, 20_000, 390, 370)
    )


def test_slow_links_are_loaded_until_they_have_carried_enough() -> None:
    def at(bps: int) -> float:
        return load_seconds([LINKS[0], replace(LINKS[1], rate=Rate(bps))], 2.0)

    assert at(20_000_000) == 2.0
    assert at(4_000_000) == 6.0
    assert at(1_000_000) == 12.0, "and no longer"
