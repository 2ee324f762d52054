"""The file of decided transfers: when it is made, and what ends it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.decision_file import DecisionFile, decision_path


def test_lines_carry_their_segment_and_nothing_is_written_without_one(tmp_path: Path) -> None:
    path = decision_path(tmp_path, "20261129t190801z-run/1")
    assert path.name == "20261129t190801z-run-1.jsonl"
    file = DecisionFile(path)
    file.begin("ring")
    file.flush()
    assert not path.exists()
    file.begin("tsengine#1")
    file.write({"event": "begin"})
    file.flush()
    assert json.loads(path.read_text()) == {"schema": 1, "segment": "tsengine#1", "event": "begin"}
    file.close()
    file.write({"event": "late"})
    assert len(path.read_text().splitlines()) == 1


def test_it_stops_where_it_may_grow_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = DecisionFile(tmp_path / "d.jsonl", max_bytes=200)
    for number in range(50):
        file.write({"event": "holds", "round": number})
    lines = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(len(lines)))
    assert 1 <= len(lines) < 5
    assert "are kept" in caplog.text


def test_a_place_that_takes_no_file_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "decisions").write_text("not a folder")
    file = DecisionFile(decision_path(tmp_path, "job"))
    file.write({"event": "begin"})
    file.write({"event": "holds"})
    assert caplog.text.count("decisions are not kept") == 1
