"""`testbed validate` with every kind of topology, and `testbed trace convert`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.cli import build, errors
from testbed.cli.validate import kind_of
from topologies.traces import parse_csv, parse_mahimahi

Run = Callable[..., tuple[int, str, str]]

GML = 'graph [ node [ id 0 label "New York" ] node [ id 1 label "Ohio" ] edge [ source 0 target 1 ] ]'


@pytest.fixture
def testbed(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = errors.exit_code_of(lambda: build()(list(arguments), prog_name="testbed"))
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("name", "sites", "links"),
    [
        ("netstorm-9", 9, 13),
        ("ring-6", 6, 6),
        ("waxman-5-1", 5, 8),
        ("b4?rate=20mbit..30mbit&seed=3", 12, 19),
    ],
)
def test_validate_takes_every_name_of_a_topology(testbed: Run, name: str, sites: int, links: int) -> None:
    code, out, err = testbed("validate", name, "--format", "json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert (answer["kind"], answer["sites"], answer["warnings"]) == ("topology", sites, [])
    assert answer["links"] == links


def test_validate_takes_options_behind_a_file(testbed: Run, tmp_path: Path) -> None:
    file = tmp_path / "wan.yaml"
    file.write_text("name: w\nsites: {a: , b: }\nlinks: [{endpoints: [a, b], rate: 5mbit}]\n")
    code, out, _ = testbed("validate", f"{file}?rate=7mbit", "--resolved")
    assert code == 0 and "7mbit" in out and "5mbit" not in out


def test_validate_tells_warnings_of_a_foreign_file(testbed: Run, tmp_path: Path) -> None:
    file = tmp_path / "wan.gml"
    file.write_text(GML)
    code, out, err = testbed("validate", f"{file}?default-rate=10mbit")
    assert code == 0 and "valid topology" in out and "2 sites, 1 link" in out
    assert all(line.startswith("warning: ") for line in err.splitlines()) and "new-york" in err
    code, out, _ = testbed("validate", f"{file}?default-rate=10mbit", "--format", "json")
    assert any("new-york" in warning for warning in json.loads(out)["warnings"])
    code, out, err = testbed("validate", str(file))
    assert (code, out) == (2, "") and "default-rate" in err


def test_validate_tells_node_link_json_by_its_keys(testbed: Run, tmp_path: Path) -> None:
    file = tmp_path / "wan.json"
    file.write_text(json.dumps({
        "directed": False, "multigraph": False, "graph": {},
        "nodes": [{"id": "a"}, {"id": "b"}],
        "links": [{"source": "a", "target": "b", "rate": "5mbit"}],
    }))  # fmt: skip
    assert kind_of(str(file)) == "topology"
    assert testbed("validate", str(file))[0] == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rings-6", "ring"),
        ("netstorm9?rate=1mbit", "netstorm-9"),
        ("ring-0", "ring"),
        ("nowhere.gml", "nowhere.gml"),
    ],
)
def test_validate_of_what_is_not_there(testbed: Run, name: str, said: str) -> None:
    code, out, err = testbed("validate", name)
    assert (code, out) == (2, "") and said in err and "Traceback" not in err


def test_a_trace_goes_to_csv_and_back(testbed: Run, tmp_path: Path) -> None:
    cell, table, again = tmp_path / "cell.trace", tmp_path / "cell.csv", tmp_path / "again.trace"
    cell.write_text("".join(f"{ms}\n" for ms in range(2, 2001, 2)))  # 6 Mbit/s for two seconds
    assert testbed("trace", "convert", str(cell), str(table), "--link", "dc1>dc2", "--every", "500ms")[0] == 0
    entries = parse_csv(table.read_text())
    assert [(entry.t_s, entry.link) for entry in entries] == [(k / 2, "dc1>dc2") for k in range(4)]
    assert all(entry.change.rate and entry.change.rate.mbps == 6 for entry in entries)
    back = ("--topology", "pair", "--link", "dc1>dc2", "--length", "2s")
    assert testbed("trace", "convert", str(table), str(again), *back)[0] == 0
    assert len(parse_mahimahi(again.read_text())) == 1000
    code, _, err = testbed("trace", "convert", str(cell), str(table))
    assert code == 2 and "--force" in err
    assert testbed("trace", "convert", str(cell), str(table), "--force")[0] == 0
    assert {entry.link for entry in parse_csv(table.read_text())} == {"*"}


def test_traces_that_cannot_be_converted(testbed: Run, tmp_path: Path) -> None:
    table, cell, out = tmp_path / "a.csv", tmp_path / "a.trace", str(tmp_path / "out")
    table.write_text("t_s,link,rate_mbit\n0,*,5\n")
    cell.write_text("1\n")
    pair = ("--topology", "pair")
    for arguments, said in (
        ((str(table), out), "--topology NAME"),
        ((str(table), out, *pair, "--link", "dc1-dc2"), "more than one direction"),
        ((str(table), out, *pair, "--link", "dc1>dc2"), "--length"),
        ((str(table), out, *pair, "--link", "dc1>dc2", "--length", "1ms"), "not one packet"),
        ((str(cell), out, *pair), "--topology is for the way from CSV"),
        ((str(tmp_path / "none"), out), "none"),
        ((str(cell), str(tmp_path / "no" / "folder")), "cannot write"),
    ):
        code, _, err = testbed("trace", "convert", *arguments)
        assert code == 2 and said in err and "Traceback" not in err, arguments
    assert not Path(out).exists()
