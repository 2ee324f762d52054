from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.errors import InvalidFileError, UsageError
from topologies.load import load_topology, topology_from_dict
from topologies.traces import (
    LEAST_RATE,
    Entry,
    LinkChange,
    csv_to_mahimahi,
    mahimahi_rates,
    mahimahi_to_csv,
    parse_csv,
    parse_mahimahi,
    read_csv,
    read_mahimahi,
    select,
    write_csv,
)
from topologies.units import Delay, Loss, Rate

HEADER = "t_s,link,rate_mbit,delay_ms,loss\n"
TRIANGLE = load_topology("triangle")


def test_csv() -> None:
    entries = parse_csv(
        f"# measured on Monday\n{HEADER}0,dc1>dc2,10.5,,\n\n2.5, dc1-dc3 ,,7,0.1%\n2.5,*,1,0,0.02\n"
    )
    assert [(e.t_s, e.link, e.line) for e in entries] == [
        (0, "dc1>dc2", 3),
        (2.5, "dc1-dc3", 5),
        (2.5, "*", 6),
    ]
    assert entries[0].change == LinkChange(Rate(10_500_000))
    assert entries[1].change == LinkChange(None, Delay(7_000_000), Loss(0.001))
    assert entries[2].change == LinkChange(Rate(10**6), Delay(0), Loss(0.02))
    assert parse_csv("t_s,link,rate_mbit\n0,*,5\n")[0].change.rate == Rate(5 * 10**6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "there is no line in it"),
        (HEADER, "there is no line in it"),
        ("t_s,link,rate_mbps\n0,*,1\n", "line 1: unknown column 'rate_mbps'.*did you mean rate_mbit"),
        ("t_s,rate_mbit\n0,1\n", "line 1: the column link is missing"),
        ("t_s,link,link\n0,*,1\n", "line 1: not a header"),
        (HEADER + "0,*,1,2\n", "line 2: it has more or fewer cells"),
        (HEADER + "0,*,1,,\nx,*,1,,\n", "line 3: t_s: 'x' is not a number"),
        (HEADER + "-1,*,1,,\n", "line 2: t_s: -1 is before the beginning"),
        (HEADER + "5,*,1,,\n4,*,1,,\n", "line 3: 4 s comes after 5 s.*sort"),
        (HEADER + "0,*,fast,,\n", "line 2: rate_mbit: 'fast' is not a number"),
        (HEADER + "0,*,nan,,\n", "line 2: rate_mbit: 'nan' is not a number"),
        (HEADER + "0,*,0,,\n", "line 2: a rate of 0 bit/s is not above zero.*link-down"),
        (HEADER + "0,*,-3,,\n", "line 2: a rate of -3000000 bit/s is not above zero"),
        (HEADER + "0,*,,-1,\n", "line 2: a delay of -1000000 ns is negative"),
        (HEADER + "0,*,,,1.01\n", "line 2: a loss of 101% is not between"),
        (HEADER + "0,*,,,101%\n", "line 2: a loss of 101% is not between"),
        (HEADER + "0,,1,,\n", "line 2: link: it is empty"),
        (HEADER + "0,*,,,\n", "line 2: it changes nothing"),
        (HEADER + '0,"*,1,,\n', "not valid CSV"),
    ],
)
def test_csv_that_is_wrong(text: str, expected: str) -> None:
    with pytest.raises(InvalidFileError, match=expected) as caught:
        parse_csv(text, "wan.csv")
    assert str(caught.value).startswith("wan.csv")


entries_of_any_kind = st.lists(
    st.builds(
        Entry,
        st.integers(0, 10**6).map(lambda n: n / 1000),
        st.sampled_from(["dc1>dc2", "dc1-dc2", "*"]),
        st.builds(
            LinkChange,
            st.integers(Rate.minimum_bps, 10**11).map(Rate),
            st.none() | st.integers(0, 10**7).map(lambda us: Delay(us * 1000)),
            st.none() | st.integers(0, 10**6).map(lambda n: Loss(n / 10**6)) | st.just(Loss(0.01, 8.0)),
        ),
        st.just(0),
    ),
    min_size=1,
    max_size=8,
).map(lambda entries: sorted(entries, key=lambda entry: entry.t_s))


@settings(max_examples=50)
@given(entries_of_any_kind)
def test_csv_survives_writing(entries: list[Entry]) -> None:
    again = parse_csv(write_csv(entries))
    assert [(e.t_s, e.link, e.change) for e in again] == [(e.t_s, e.link, e.change) for e in entries]


def test_links_by_name() -> None:
    assert (
        select(TRIANGLE, "dc1>dc2") == select(TRIANGLE, "dc1 -> dc2") == select(TRIANGLE, "dc1→dc2") == (0,)
    )
    assert select(TRIANGLE, "dc2>dc1") == (1,)
    assert select(TRIANGLE, "dc1-dc2") == (0, 1)
    assert select(TRIANGLE, "dc2-dc1") == (1, 0)
    assert select(TRIANGLE, "*") == tuple(range(6))
    with pytest.raises(UsageError, match="has no site 'dc9'"):
        select(TRIANGLE, "dc9>dc1")
    with pytest.raises(UsageError, match=r"has no link 'dc1-dc9'.*did you mean"):
        select(TRIANGLE, "dc1-dc9")
    with pytest.raises(UsageError, match="no link of line-3 joins dc1 and dc3"):
        select(load_topology("line-3"), "dc1>dc3")
    with pytest.raises(UsageError, match="no link of line-3 joins dc1 and dc3"):
        select(load_topology("line-3"), "dc1-dc3")


def test_links_between_sites_with_hyphens() -> None:
    names = ["a", "b", "a-b", "b-a"]
    links = [{"endpoints": ends, "rate": "1mbit"} for ends in (["a", "b-a"], ["a-b", "a"], ["b", "a-b"])]
    topology = topology_from_dict({"name": "t", "sites": {name: {} for name in names}, "links": links})
    with pytest.raises(UsageError, match="may mean several links"):
        select(topology, "a-b-a")
    assert select(topology, "a-b>a") == (2,)
    assert select(topology, "b-a-b") == (4, 5)


def test_mahimahi() -> None:
    assert parse_mahimahi("1\n1\n\n3 # three\n") == (1, 1, 3)
    # A file with the one line 1 is 12 Mbit/s.
    assert mahimahi_rates((1,), 1.0) == ((0, Rate(12 * 10**6)),)
    # A second at 12 Mbit/s, one of nothing, half a second at 24.
    times = [*range(1, 1001), *(2000 + (k + 1) // 2 for k in range(1, 1001))]
    assert mahimahi_rates(times, 1.0) == (
        (0, Rate(12 * 10**6)),
        (1, LEAST_RATE),
        (2, Rate(24 * 10**6)),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no packet after 0 ms"),
        ("0\n0\n", "no packet after 0 ms"),
        ("1\n2\nx\n", "line 3: 'x' is not a whole number of milliseconds"),
        ("1\n-2\n", "line 2: '-2' is not"),
        ("1\n1.5\n", "line 2: '1.5' is not"),
        ("5\n4\n", "line 2: 4 ms comes after 5 ms"),
        ("1" * 13, "line 1: .* is not a whole number"),
    ],
)
def test_mahimahi_that_is_wrong(text: str, expected: str) -> None:
    with pytest.raises(InvalidFileError, match=expected):
        parse_mahimahi(text)


def test_stretches_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="no stretches of"):
        mahimahi_rates((1,), 0.0001)
    with pytest.raises(UsageError, match="too many stretches"):
        mahimahi_rates((1, 10**12 - 1), 0.01)


def test_csv_becomes_mahimahi() -> None:
    entries = parse_csv(f"{HEADER}0,dc1-dc2,12,,\n1,*,24,,\n1.5,dc1>dc2,0.001,,\n1.5,dc2>dc1,999,,\n")
    times = parse_mahimahi(csv_to_mahimahi(entries, TRIANGLE, 0, until_s=2))
    assert times == (*range(1, 1001), *(t for t in range(1001, 1501) for _ in range(2)))
    # dc1-dc3 has its declared 100 Mbit/s in the first second.
    other = parse_mahimahi(csv_to_mahimahi(entries, TRIANGLE, 4, until_s=2))
    assert len([t for t in other if t <= 1000]) == 100_000_000 // 12_000


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_rates_survive_the_way_through_mahimahi(mbits: list[int]) -> None:
    entries = [Entry(float(k), "dc1>dc2", LinkChange(Rate(rate * 10**6)), 0) for k, rate in enumerate(mbits)]
    times = parse_mahimahi(csv_to_mahimahi(entries, TRIANGLE, 0, until_s=len(mbits)))
    again = parse_csv(mahimahi_to_csv(times, "dc1>dc2"))
    for before, after in zip(entries, again, strict=True):
        assert before.change.rate is not None and after.change.rate is not None
        assert before.t_s == after.t_s and before.link == after.link
        assert abs(before.change.rate.bps - after.change.rate.bps) <= 2 * 12_000


def test_files(tmp_path: Path) -> None:
    (tmp_path / "wan.csv").write_text(f"{HEADER}0,*,5,,\n")
    (tmp_path / "12mbps.trace").write_text("1\n")
    assert len(read_csv(tmp_path / "wan.csv")) == 1
    assert read_mahimahi(tmp_path / "12mbps.trace") == (1,)
    with pytest.raises(InvalidFileError, match=r"did you mean wan\.csv"):
        read_csv(tmp_path / "wam.csv")
