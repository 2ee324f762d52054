"""The verbs that read runs: report, runs, compare; and a simulated `run`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from typer.testing import CliRunner

from testbed.cli import compare, report, run, runs
from testbed.cli.errors import exit_code_of
from topologies.errors import UsageError

EXPERIMENT = """
name: small
topology: pair
training: {model: tensor-10k, iterations: 2, chunk_elements: 1000}
schedulers: [star, netstorm]
world: simulated
"""


@pytest.fixture
def app() -> typer.Typer:
    found = typer.Typer()
    for verb in (run, report, runs, compare):
        verb.register(found)
    return found


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(EXPERIMENT)


def said(app: typer.Typer, *arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_run_then_report_then_list_then_compare(app: typer.Typer) -> None:
    out = said(app, "run", "small.yaml")
    assert "star-first" in out
    assert "files: runs/" in out
    assert "netstorm" in said(app, "report")
    (first,) = (path.name for path in Path("runs").iterdir())
    said(app, "run", "small.yaml", "--seed", "2")
    ids = [first, *(path.name for path in Path("runs").iterdir() if path.name != first)]
    listing = said(app, "runs")
    assert all(name in listing for name in ids)
    document = json.loads(said(app, "runs", "--format", "json"))
    assert document["schema"] == 1
    assert [row["id"] for row in document["runs"]] == ids
    compared = json.loads(said(app, "compare", ids[0], "last", "--format", "json"))
    assert compared["a"]["id"] == ids[0]
    assert compared["differences"] == ["seed: 1, 2"]
    assert "B / A" in said(app, "compare", ids[0], "last")
    files = [Path(line) for line in said(app, "report", "--figures", "figures").split()]
    assert {file.stem for file in files} >= {"synchronisation", "utilisation", "gantt", "timeline"}
    for file in files:
        drawing = ElementTree.fromstring(file.read_text())
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg" and drawing.get("viewBox")
        assert "var(" not in file.read_text(), "nothing is left for a page to say"
    made = Path(said(app, "compare", ids[0], "last", "--html").split(" (")[0])
    page = made.read_text()
    assert made.name == f"compare-{ids[0]}.html"
    assert "<script" not in page and page.count("<svg") == 1 and "seed: 1, 2" in page
    # Both runs of each scheduler, with the means that the table has.
    for letter in "AB":
        assert len(re.findall(rf">{letter} [0-9.]+<", page)) == len(compared["schedulers"])


def test_compare_says_when_no_scheduler_is_in_both(app: typer.Typer) -> None:
    for name, schedulers in (("one", "[star]"), ("two", "[netstorm]")):
        text = EXPERIMENT.replace("small", name).replace("[star, netstorm]", schedulers)
        Path(f"{name}.yaml").write_text(text)
        said(app, "run", f"{name}.yaml")
    one, two = sorted(path.name for path in Path("runs").iterdir())
    nothing = "no scheduler is in both runs"
    assert nothing in CliRunner().invoke(app, ["compare", one, two]).stderr
    assert nothing not in CliRunner().invoke(app, ["compare", one, one]).stderr
    refused = CliRunner().invoke(app, ["compare", one, two, "--html"])
    assert isinstance(refused.exception, UsageError) and nothing in str(refused.exception)
    assert not list(Path("runs").rglob("compare-*.html"))


def test_a_run_without_figures_is_said_to_have_none(app: typer.Typer) -> None:
    said(app, "run", "small.yaml")
    (made,) = Path("runs").iterdir()
    for path in made.iterdir():
        if path.is_file() and path.name not in ("manifest.json", "topology.json", "experiment.yaml"):
            path.unlink()
    manifest = json.loads((made / "manifest.json").read_text())
    (made / "manifest.json").write_text(json.dumps(manifest | {"segments": []}))
    result = CliRunner().invoke(app, ["report", "--figures", "figures"])
    assert result.exit_code == 0, result.output
    assert result.stdout == "" and "this run has no figures" in result.stderr
    assert not Path("figures").exists()


def test_json_is_one_document_with_a_schema(app: typer.Typer) -> None:
    document = json.loads(said(app, "run", "small.yaml", "--format", "json"))
    assert document["schema"] == 1
    assert document["run"]["world"] == "simulated"
    assert document == json.loads(said(app, "report", "last", "--format", "json"))


def test_no_runs_yet(app: typer.Typer) -> None:
    assert "`testbed run quickstart` makes one" in said(app, "runs")


def test_a_damaged_run_does_not_hide_the_others(app: typer.Typer) -> None:
    said(app, "run", "small.yaml")
    bad = Path("runs/20200101t000000z-x-aaaaaa")
    bad.mkdir()
    (bad / "manifest.json").write_text("{")
    listing = said(app, "runs")
    assert "small" in listing
    assert "not JSON" in listing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report"], "no run under runs"),
        (["report", "nowhere"], "no run 'nowhere'"),
        (["report", "--html", "--figures", "f"], "--figures writes files of figures, --html one page"),
        (["report", "--out", "p.html", "--figures", "f"], "--figures writes files of figures, --out one page"),
        (["run", "smal"], "there is no experiment 'smal'"),
        (["run", "small.yaml", "--world", "moon"], "'emulated' or 'simulated'"),
        (["run", "small.yaml", "--scale", "0"], "greater than 0"),
    ],
)
def test_wrong_use(
    app: typer.Typer, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(lambda: app(arguments, standalone_mode=False)) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()
