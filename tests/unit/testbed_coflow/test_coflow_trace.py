"""The public coflow trace format, and the published trace where it is at hand."""

from __future__ import annotations

import json
import os
import statistics
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from agents.coflow.base import largest
from agents.coflow.fabric import Fabric
from testbed.cli import build
from testbed.coflow.generate import generate_trace, named_trace
from testbed.coflow.madd import Backfill
from testbed.coflow.result import run_trace
from testbed.coflow.trace import MEGABYTE, Trace, parse_trace, read_trace
from topologies.errors import InvalidFileError, StormbedError, UsageError

RATE = 128 * MEGABYTE
SMALL = """4 4
1 0 1 0 1 1:128.0
2 0 2 0 1 1 2:256.0
3 500 1 0 1 1:64.0
4 60000 3 0 1 2 1 3:100.0
"""


def test_sizes_are_rounded_up_to_a_multiple_of_the_mappers() -> None:
    coflow = parse_trace("10 1\n7 1000 2 3 5 2 0:10.0 9:3.0\n").coflows[0]
    flows = zip(coflow.demand.src, coflow.demand.dst, coflow.demand.size / MEGABYTE, strict=True)
    assert (coflow.id, coflow.arrival_s) == (7, 1.0)
    assert sorted(flows) == [(3, 0, 5), (3, 9, 2), (5, 0, 5), (5, 9, 2)]


def test_coflows_come_in_order_of_arrival_and_repeated_reducers_add_up() -> None:
    trace = parse_trace("2 2\n5 30 1 0 2 1:1 1:2\n\n6 10 1 1 1 0:1\n")
    assert [coflow.id for coflow in trace.coflows] == [6, 5]
    assert trace.coflows[1].demand.size.tolist() == [3 * MEGABYTE]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("1 0 2 0 1", "line 3: ends after 5 words where the count of reducers should be"),
        ("1 0 2 0", "line 3: ends after 4 words where the mapper should be"),
        ("1 0 1 0 2 1:5", "line 3: ends after 6 words where the reducer should be"),
        ("1 0 1 0 1 1:5 2:6", "line 3: 1 words too many, from '2:6' on"),
        ("1 0 1 0 1 1:-5", "line 3: the size for reducer 1 is -5"),
        ("1 0 1 0 1 1:nan", "line 3: the size for reducer 1 is nan"),
        ("1 0 1 0 1 1:much", "line 3: the size for reducer 1 is 'much', not a number"),
        ("1 0 1 0 1 1", "line 3: the reducer is '1', not location:megabytes"),
        ("1 0 1 0 1 4:5", "line 3: the reducer is '4', not a port of 0..3"),
        ("1 0 1 -1 1 1:5", "line 3: the mapper is '-1', not a port of 0..3"),
        ("1 -3 1 0 1 1:5", "line 3: the arrival is -3"),
        ("1 soon 1 0 1 1:5", "line 3: the arrival is 'soon', not a number"),
        ("one 0 1 0 1 1:5", "line 3: the id is 'one', not a whole number"),
        ("1 0 0 1 1:5", "line 3: the count of mappers is 0, less than 1"),
        ("1 0 -2 1 1:5", "line 3: the count of mappers is -2, less than 1"),
        ("1 0 1 0 0", "line 3: the count of reducers is 0, less than 1"),
        ("1 0 1 0 1 1:1e308", "line 3: 1e+308 megabytes for reducer 1"),
        ("1 0 1 0 1 1:0", "line 3: all its sizes are 0"),
        ("9 0 1 0 1 1:5", "line 3: coflow 9 again"),
    ],
)
def test_a_bad_line_is_named(line: str, says: str) -> None:
    with pytest.raises(InvalidFileError) as error:
        parse_trace(f"4 2\n9 0 1 0 1 1:5\n{line}\n", "jobs.txt")
    assert str(error.value).startswith(f"jobs.txt, {says}")
    assert error.value.hint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "trace is empty"),
        ("4\n", "trace, line 1: ends after 1 words where the coflows should be"),
        ("4 1 1\n", "trace, line 1: 1 words too many"),
        ("0 1\n", "trace, line 1: the ports is 0"),
        ("99999999999 1\n1 0 1 0 1 1:5\n", "trace, line 1: 99999999999 ports (at most 4096"),
        ("4 3\n9 0 1 0 1 1:5\n", "trace, line 1: 3 coflows declared, 1 lines follow"),
        ("4 1\n1 0 1 0 1 1:5\n2 0 1 0 1 1:5\n", "trace, line 1: 1 coflows declared, 2 lines follow"),
    ],
)
def test_a_bad_head_is_named(text: str, says: str) -> None:
    with pytest.raises(InvalidFileError) as error:
        parse_trace(text)
    assert str(error.value).startswith(says)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match="there is no file"):
        read_trace(tmp_path / "absent.txt")
    binary = tmp_path / "binary"
    binary.write_bytes(b"4 1\n\xff\xfe")
    with pytest.raises(InvalidFileError, match="byte 4 is not ASCII"):
        read_trace(binary)


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        # Ports in seconds: 1 = 0->1: 1. 2 = 0->2, 1->2: 1 each. 3, at 0.5 = 0->1: 0.5. 4 = alone, 3 x 0.27.
        ("fifo", [1.0, 2.0, 2.0]),
        ("sincronia", [1.0, 2.5, 1.0]),
        ("fair", [2.5, 2.5, 1.5]),
    ],
)
def test_a_small_trace_by_hand(policy: str, seconds: list[float]) -> None:
    result, done = run_trace(parse_trace(SMALL), policy, RATE)
    assert [done[number].cct for number in (1, 2, 3)] == pytest.approx(seconds, abs=1e-6)
    assert done[4].cct == pytest.approx(3 * 34 / 128)
    assert result.mean_cct_s == pytest.approx(statistics.fmean([*seconds, 3 * 34 / 128]))
    assert result.coflows == 4


def verb(*arguments: str) -> tuple[int, str]:
    outcome = CliRunner().invoke(build(), ["coflow", *arguments])
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        if isinstance(outcome.exception, StormbedError):
            return outcome.exception.exit_code, str(outcome.exception)
        raise outcome.exception
    return outcome.exit_code, outcome.output


def test_the_verb_prints_what_programs_read(tmp_path: Path) -> None:
    path = tmp_path / "small.txt"
    path.write_text(SMALL)
    code, text = verb(str(path), "--policy", "varys", "--format", "json")
    document = json.loads(text)
    assert code == 0
    assert [document[key] for key in ("schema", "policy", "cadence_s", "coflows")] == [1, "varys", 0.125, 4]
    assert 0 < document["mean_cct_s"] <= document["p95_cct_s"]
    code, text = verb(str(path), "--policy", "varys", "--refresh", "events", "--format", "json")
    assert json.loads(text)["cadence_s"] is None
    code, slow = verb(str(path), "--policy", "fifo", "--port-rate", "64MB/s", "--format", "json")
    assert json.loads(slow)["cadence_s"] == 0
    code, text = verb(str(path), "--policy", "beamer")
    assert code == 0
    assert text.split()[:5] == ["policy", "cadence_s", "coflows", "mean_cct_s", "p95_cct_s"]


def test_a_simulation_that_takes_long_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("testbed.cli.coflow.TELL_S", 0.0)
    path = tmp_path / "small.txt"
    path.write_text(SMALL)
    build()(["coflow", str(path), "--policy", "varys", "--format", "json"], standalone_mode=False)
    shown = capsys.readouterr()
    assert "2 of 4 coflows over" in shown.err
    assert json.loads(shown.out)["coflows"] == 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--policy", "sinkronia"), "unknown ordering 'sinkronia' (did you mean sincronia?)"),
        (("--port-rate", "128"), "a port rate of 128 has no unit"),
        (("--port-rate", "0MB/s"), "ports that carry 0MB/s"),
        (("--refresh", "often"), "a refresh of 'often'"),
        (("--refresh", "-1"), "a refresh of '-1'"),
        (("--refresh", "0.0000001"), "a refresh of '0.0000001' (seconds of at least 0.001"),
        (("--port-rate", "0.0000001MB/s"), "ports that carry 0.0000001MB/s"),
        (("--option", "static"), "--option static"),
        (("--policy", "varys", "--refresh", "0"), "MADD at every end of a flow"),
        (("--policy", "varys", "--option", "steady=true"), "varys has no option 'steady'"),
    ],
)
def test_the_verb_refuses_what_it_cannot_take(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    path = tmp_path / "small.txt"
    path.write_text(SMALL)
    code, text = verb(str(path), *arguments)
    assert code == 2
    assert text.startswith(says)


@pytest.fixture(scope="module")
def published() -> Trace:
    path = os.environ.get("STORMBED_COFLOW_TRACE")
    if not path:
        pytest.skip(
            "STORMBED_COFLOW_TRACE names no file; unverified: the checksums of FB2010-1Hr-150-0.txt and the "
            "reference completion times on it"
        )
    return read_trace(Path(path))


def test_checksums_of_the_published_trace(published: Trace) -> None:
    coflows = published.coflows
    megabytes = {coflow.id: coflow.demand.bytes / MEGABYTE for coflow in coflows}
    fabric = Fabric.switch(published.ports, float(MEGABYTE))
    loads = {coflow.id: coflow.demand.loads(fabric) for coflow in coflows}
    gamma = {number: largest(own) for number, own in loads.items()}
    assert (published.ports, len(coflows)) == (150, 526)
    assert sum(len(coflow.demand) for coflow in coflows) == 706_397
    assert sum(megabytes.values()) == 35_533_534
    assert sum(len(coflow.demand) == 1 for coflow in coflows) == 123
    assert coflows[-1].arrival_s == 3629.235
    assert statistics.median(megabytes.values()) == 25
    assert max(megabytes.values()) == 8_501_205
    total = np.zeros(300)
    for own in loads.values():
        total[list(own)] += list(own.values())
    assert (total[:150].max(), total[150:].max()) == (258_014, 440_422)
    assert total[:150].mean() / 128 == pytest.approx(1850.7, abs=0.05)
    assert [gamma[k] for k in (1, 4, 5, 9, 12, 14, 16, 19)] == [1, 3095, 64, 364, 20580, 137, 119, 186]
    assert sum(gamma.values()) == 967_927
    assert statistics.fmean(gamma.values()) / 128 == pytest.approx(14.376, abs=0.0005)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("policy", "allocation", "mean"),
    [
        ("sincronia", "greedy", 21.84),
        ("varys", "greedy", 21.44),
        ("fifo", "greedy", 343.0),
        ("fair", "fair", 56.2),
    ],
)
def test_reference_means_on_the_published_trace(
    published: Trace, policy: str, allocation: str, mean: float
) -> None:
    result, _ = run_trace(published, policy, RATE, allocation=allocation)  # type: ignore[arg-type]
    assert result.mean_cct_s == pytest.approx(mean, rel=0.02)
    assert result.cadence_s == 0
    assert 0 < result.bound_s < result.mean_cct_s


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("refresh_s", "backfill", "mean"), [(0.5, "ranked", 26.16), (inf, "ranked", 48.3), (inf, "none", 54.2)]
)
def test_madd_on_the_published_trace(published: Trace, refresh_s: float, backfill: Backfill, mean: float) -> None:
    result, _ = run_trace(published, "varys", RATE, refresh_s=refresh_s, backfill=backfill)
    assert result.mean_cct_s == pytest.approx(mean, rel=0.005)


def test_options_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="fair has no option 'static'"):
        run_trace(parse_trace(SMALL), {"name": "fair", "options": {"static": True}}, RATE)


@pytest.fixture(scope="module")
def made_up() -> Trace:
    trace = named_trace("synthetic:1")
    assert trace is not None
    return trace


def test_checksums_of_the_synthetic_trace(made_up: Trace) -> None:
    fabric = Fabric.switch(made_up.ports, float(MEGABYTE))
    coflows = made_up.coflows
    assert (made_up.ports, len(coflows)) == (50, 200)
    assert sum(len(coflow.demand) for coflow in coflows) == 13_544
    assert sum(coflow.demand.bytes for coflow in coflows) == 1_058_952 * MEGABYTE
    assert coflows[-1].arrival_s == 340.215
    assert sum(largest(coflow.demand.loads(fabric)) for coflow in coflows) == 277_494
    classes = [(len(coflow.demand) <= 50, coflow.demand.size.max() <= 5 * MEGABYTE) for coflow in coflows]
    assert [classes.count(kind) for kind in ((True, True), (True, False), (False, True), (False, False))] == [
        124,
        28,
        22,
        26,
    ]


@pytest.mark.parametrize(
    ("policy", "options", "mean", "p95", "wait"),
    [
        ("sincronia", {}, 14.0084378125, 89.1468125, 0.9167125),
        ("beamer", {}, 14.0084378125, 89.1468125, 0.9167125),
        ("varys", {"allocation": "greedy"}, 13.3007875, 83.2691875, 0.2567484375),
        ("fifo", {}, 66.1801628125, 167.7028125, 51.06233625),
        ("fair", {}, 27.17624847746, 162.11806205823, 0.0),
        ("varys", {"refresh_s": 0.5}, 14.021066893005, 86.08833049188, 0.12476102028),
        ("varys", {"refresh_s": 0.5, "backfill": "coflowsim"}, 14.819943504671, 109.7583277653, 0.001602),
        ("varys", {"refresh_s": inf, "backfill": "none"}, 29.953989705530, 198.11313986373, 17.615872790079),
        ("varys", {"refresh_s": inf, "backfill": "in_turn"}, 13.909624623297, 89.88520099740, 0.0003515625),
    ],
)
def test_completion_times_on_the_synthetic_trace(
    made_up: Trace, policy: str, options: dict[str, Any], mean: float, p95: float, wait: float
) -> None:
    result, _ = run_trace(made_up, policy, RATE, **options)
    assert result.mean_cct_s == pytest.approx(mean, rel=1e-9)
    assert result.p95_cct_s == pytest.approx(p95, rel=1e-9)
    assert result.mean_wait_s == pytest.approx(wait, rel=1e-6)
    assert result.bound_s == pytest.approx(11.6379434375)
    assert result.bound_ratio == pytest.approx(mean / 11.6379434375)
    assert result.busiest_link_ratio == pytest.approx(366.0625 / result.makespan_s)


def test_a_synthetic_trace_is_its_seed_and_loads_the_ports_as_asked() -> None:
    assert generate_trace(3) == generate_trace(3) != generate_trace(4)
    assert named_trace("synthetic:3") is not None
    assert named_trace("synthetic.txt") is None
    for load in (0.2, 0.9):
        trace = parse_trace(generate_trace(5, ports=20, coflows=400, load=load))
        seconds = sum(coflow.demand.bytes for coflow in trace.coflows) / RATE / 20
        assert seconds / trace.coflows[-1].arrival_s == pytest.approx(load, rel=0.2)
    with pytest.raises(UsageError, match="a trace of 0 coflows"):
        generate_trace(1, coflows=0)
    assert len(parse_trace(generate_trace(1, ports=2, coflows=50)).coflows) == 50


def test_the_verb_takes_a_synthetic_trace() -> None:
    code, text = verb("synthetic:7", "--policy", "fifo", "--format", "json")
    assert (code, json.loads(text)["coflows"]) == (0, 200)
