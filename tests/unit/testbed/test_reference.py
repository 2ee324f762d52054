"""The parts of the documents that are made from the code are current, and say what is true."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from testbed.cli import build, reference
from testbed.cli.reference import DOCS, DOCUMENTS, SCHEMAS, Part, generated, splice
from testbed.experiments.spec import LIBRARY, experiment_from_text
from testbed.telemetry.exported import exported
from topologies.errors import UsageError

ROOT = DOCS.parent


def test_what_is_made_from_the_code_is_current() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in generated().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "bring them up to date with `testbed reference --write`"


def test_no_dashboard_is_left_that_nothing_makes() -> None:
    folder = ROOT / "testbed" / "telemetry" / "grafana"
    there = {path for path in folder.rglob("*") if path.is_file()}
    assert there == {path for path in generated() if folder in path.parents}


def test_writing_changes_what_is_stale_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from testbed.telemetry import grafana

    docs = tmp_path / "docs"
    docs.mkdir()
    for part in DOCUMENTS:
        text = (DOCS / f"{part.value}.md").read_text(encoding="utf-8")
        (docs / f"{part.value}.md").write_text(text, encoding="utf-8")
    monkeypatch.setattr(reference, "DOCS", docs)
    monkeypatch.setattr(grafana, "DIRECTORY", tmp_path / "grafana")
    (docs / "cli.md").write_text((docs / "cli.md").read_text().replace("## testbed report", "## testbed rapport"))
    changed = reference.write_all()
    assert docs / "cli.md" in changed and docs / "metrics.md" not in changed
    assert "## testbed report" in (docs / "cli.md").read_text()
    assert (tmp_path / "grafana" / "provisioning" / "dashboards" / "stormbed.yaml").exists()
    assert reference.write_all() == []


def test_only_what_is_between_the_markers_is_replaced() -> None:
    text = "before\n<!-- made by `testbed reference cli`; x -->\nold\n<!-- end of cli -->\nafter\n"
    assert splice(text, "cli", "new") == (
        "before\n<!-- made by `testbed reference cli`; x -->\n\nnew\n\n<!-- end of cli -->\nafter\n"
    )
    with pytest.raises(UsageError, match="markers for metrics"):
        splice(text, "metrics", "new")


def test_every_verb_and_every_option_is_there() -> None:
    text = DOCUMENTS[Part.CLI]()
    for verb in ("up", "run", "report", "link set", "reference"):
        assert f"testbed {verb}" in text
    # Taken from the help itself, which typer makes in another way.
    shown = CliRunner().invoke(build(), ["run", "--help"], env={"COLUMNS": "200"}).stdout
    section = text.split("## testbed run\n")[1].split("\n## ")[0]
    options = set(re.findall(r"--[a-z][a-z-]+", shown)) - {"--help"}
    assert options and options <= set(re.findall(r"--[a-z][a-z-]+", section))


def test_every_exported_metric_is_there_with_the_name_that_prometheus_has() -> None:
    text = DOCUMENTS[Part.METRICS]()
    metrics = exported()
    assert {metric.job for metric in metrics} == {"agent", "coordinator", "controller", "delay-line", "links"}
    names = [name for metric in metrics for name in metric.samples]
    assert len(names) == len(set(names))
    assert all(f"`{name}`" in text for name in names)
    assert all(metric.help for metric in metrics)


def test_the_labels_of_an_info_metric_are_those_that_the_agent_gives() -> None:
    from agents.metrics import agent as source

    (info,) = [metric for metric in exported() if metric.kind == "info"]
    assert info.labels == ("run", "segment", "scheduler")
    given = re.search(r"segment\.add_metric\(name, (\{.*?\})\)", Path(source.__file__).read_text())
    assert given is not None and re.findall(r'"(\w+)":', given[1]) == ["segment", "scheduler"]


def test_every_key_of_the_library_is_documented() -> None:
    text = DOCUMENTS[Part.EXPERIMENTS]()
    for file in LIBRARY.glob("*.yaml"):
        document = yaml.safe_load(file.read_text())
        for key in (*document, *document["training"]):
            assert f"| `{key}` |" in text, f"{file.name}: {key}"


def test_the_example_of_the_document_runs() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "experiments.md").read_text(), flags=re.DOTALL)
    assert [segment.shown for segment in experiment_from_text(example).segments] == ["star-first", "netstorm"]


@pytest.mark.parametrize("part", SCHEMAS)
def test_schemas_are_json_schemas_with_every_key(part: Part) -> None:
    said = CliRunner().invoke(build(), ["reference", part.value])
    assert said.exit_code == 0, said.output
    schema = json.loads(said.stdout)
    assert schema["type"] == "object"
    assert set(schema["required"]) <= set(schema["properties"])
    assert schema["additionalProperties"] is False
    known = {"experiment-schema": {"training", "schedulers"}, "topology-schema": {"sites", "links"}}
    assert known[part.value] <= set(schema["properties"])


@pytest.mark.parametrize("document", [*sorted(DOCS.glob("*.md")), ROOT / "README.md"], ids=lambda path: path.name)
def test_links_between_the_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "#")):
            assert (document.parent / target.split("#")[0]).exists(), f"{document.name}: {target}"
