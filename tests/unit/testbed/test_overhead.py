"""What policies and control took, from a run's files to its reports."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from testbed.dashboard.replay import read_replay
from testbed.emulation.counters import parse_process_stat
from testbed.experiments.spec import experiment_from_text
from testbed.report.html import render_page
from testbed.report.json_form import result_to_json
from testbed.report.measurements import read_run
from testbed.report.overhead import read_overhead
from testbed.report.summary import summarise_run
from testbed.report.text import render_report
from testbed.simulation.run import run_experiment

TEXT = """
name: small
topology: triangle
training: {model: tensor-50k, iterations: 6, chunk_elements: 10000}
schedulers:
  - {name: netstorm, label: kept}
  - {name: netstorm, label: drawn, options: {paths: random}, policy: {every: 2}}
"""


def test_reports_tell_policies_with_their_reasons_and_what_control_took(tmp_path: Path) -> None:
    run_experiment(experiment_from_text(TEXT), tmp_path / "run")
    log = tmp_path / "run" / "events.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for event in lines:
        if event["kind"] == "network-followed" and event["segment"] == "drawn":
            # As the emulated world writes it, where control has bytes and the network is measured.
            event["network"] = {"probe_bytes": 262_144, "reports": 7}
            event["control"] = {"to_sites_bytes": {"policies": 4000}, "from_sites_bytes": {"reports": 1000}}
            event["policies"][1] |= {"reason": "rates", "gain_ratio": 0.25}
            event["policies"][2] |= {"reason": "links", "gain_ratio": None}
    cost = {"kind": "segment-cost", "segment": "drawn", "cpu_s": {"agent": 1.5, "coordinator": 0.25}}
    log.write_text("".join(json.dumps(line) + "\n" for line in [*lines, lines[-1] | cost]))

    run = read_run(tmp_path / "run")
    kept, drawn = read_overhead(run)
    assert (kept.scheduler, dict(kept.policies), kept.replans) == ("kept", {"start": 1}, 0)
    assert dict(drawn.policies) == {"start": 1, "rates": 1, "links": 1} and drawn.gains == (0.25,)
    carried = sum(sample.carried_bytes for sample in run.links if sample.segment == "drawn")
    assert drawn.share(sum(drawn.control.values())) == 5000 / carried
    assert drawn.cpu_s == {"agent": 1.5, "coordinator": 0.25} and drawn.wall_s > 0

    result = summarise_run(run, overhead=read_overhead(run))
    plain = result_to_json(result)["overhead"][1]
    assert plain["control_bytes"] == {"policies": 4000, "reports": 1000} and plain["replans"] == 2
    console = Console(width=200, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(render_report(result))
    shown = console.export_text()
    assert "links 1, rates 1" in shown and "+25%" in shown
    rows = [line.split()[0] for line in shown.splitlines() if line and not line[0].isspace()]
    assert rows.count("kept") == 1 and rows.count("drawn") == 2, "only who planned anew is in the second table"

    texts = [event["text"] for event in read_replay(tmp_path / "run")["events"] if event["kind"] == "policy"]
    assert texts == [
        "policy 3 of drawn in force from collective 8, planned anew for measured rates; +25% of the rate predicted",
        "policy 4 of drawn in force from collective 10, planned anew for links that failed or returned",
    ]
    page = render_page(tmp_path / "run")
    assert "Policies and control" in page and "coordinator, CPU s" in page and texts[0].split(";")[0] in page


def test_cpu_seconds_of_a_process_whose_name_has_blanks_and_brackets() -> None:
    text = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 1 0 100 1 1"
    assert parse_process_stat(text) * 100 == 300
