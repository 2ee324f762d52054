"""Dashboards ask only for what is exported, in expressions that Prometheus can read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from testbed.telemetry import grafana
from testbed.telemetry.exported import TARGET_LABELS, TARGET_METRICS, exported

METRICS = exported()
BY_SAMPLE = {name: metric for metric in METRICS for name in metric.samples}
EXPRESSIONS = [
    (dashboard.uid, panel.title, query)
    for dashboard in grafana.dashboards(METRICS)
    for panel in dashboard.panels
    for query in panel.queries
]
WORDS = {"on", "by", "sum", "rate", "topk", "count", "increase", "histogram_quantile", "s", "m"}


def names_in(expression: str) -> set[str]:
    """The metrics of an expression: its words without functions, labels and durations."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(by|on)\s*\([^)]*\)", " ", expression)
    return set(re.findall(r"\b[a-z_][a-z0-9_:]*\b", bare)) - WORDS


def labels_in(expression: str, legend: str) -> set[str]:
    grouped = re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression)
    matched = re.findall(r"\{([^}]*)\}", expression)
    return {
        *(label.strip() for group in grouped for label in group.split(",")),
        *(label for match in matched for label in re.findall(r"(\w+)\s*[=!]", match)),
        *re.findall(r"\{\{(\w+)\}\}", legend),
    }


@pytest.mark.parametrize(("uid", "title", "query"), EXPRESSIONS)
def test_every_name_and_label_is_exported(uid: str, title: str, query: grafana.Query) -> None:
    names = names_in(query.expression)
    assert names, query.expression
    assert names <= {*BY_SAMPLE, *TARGET_METRICS}
    own = [BY_SAMPLE[name].all_labels for name in names if name in BY_SAMPLE]
    known = frozenset(TARGET_LABELS).union(*own)
    assert labels_in(query.expression, query.legend) <= known


def test_a_name_that_is_not_exported_would_be_found() -> None:
    assert names_in("8 * sum by (site) (rate(stormbed_agent_sent_byte_total[5s]))") - {*BY_SAMPLE} == {
        "stormbed_agent_sent_byte_total"
    }


def test_every_metric_has_a_panel() -> None:
    asked = {name for _, _, query in EXPRESSIONS for name in names_in(query.expression)}
    assert all(asked.intersection(metric.samples) for metric in METRICS)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: valid PromQL is UNVERIFIED")
def test_prometheus_reads_every_expression(tmp_path: Path) -> None:
    rules = [
        {"record": f"test:rule_{number}", "expr": query.expression}
        for number, (_, _, query) in enumerate(EXPRESSIONS)
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    checked = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout


def test_uids_are_fixed_and_panels_stand_apart() -> None:
    made = [json.loads(text) for name, text in grafana.files(METRICS).items() if name.endswith(".json")]
    assert sorted(one["uid"] for one in made) == [
        "stormbed-all",
        "stormbed-control",
        "stormbed-network",
        "stormbed-training",
    ]
    for one in made:
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in one["panels"]]
        assert len(places) == len(set(places))
        assert len({panel["id"] for panel in one["panels"]}) == len(places)
        assert {panel["datasource"]["uid"] for panel in one["panels"]} == {grafana.DATASOURCE_UID}


def test_provisioning_names_the_data_source_that_the_panels_ask() -> None:
    files = grafana.files(METRICS)
    (source,) = yaml.safe_load(files["provisioning/datasources/stormbed.yaml"])["datasources"]
    assert source["uid"] == grafana.DATASOURCE_UID and source["type"] == "prometheus"
    (provider,) = yaml.safe_load(files["provisioning/dashboards/stormbed.yaml"])["providers"]
    guide = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    for variable in re.findall(r"\$\{(\w+)\}", source["url"] + provider["options"]["path"]):
        assert f"export {variable}=" in guide
