from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from testbed.events import EventLog, read_events


def test_lines_carry_both_clocks_and_the_fields(tmp_path: Path) -> None:
    before = time.time(), time.monotonic_ns()
    with EventLog(tmp_path / "e") as log:
        log.write("link_down", link="dc1-dc2", when=Path("x"))
    (event,) = read_events(tmp_path / "e")
    assert event["kind"] == "link_down" and event["link"] == "dc1-dc2" and event["when"] == "x"
    assert before[0] <= event["t_s"] <= time.time()
    assert before[1] <= event["monotonic_ns"] <= time.monotonic_ns()


def test_appends_to_what_is_there_and_selects_by_kind(tmp_path: Path) -> None:
    for kind in ("a", "b", "a"):
        with EventLog(tmp_path / "e") as log:
            log.write(kind)
    assert [e["kind"] for e in read_events(tmp_path / "e")] == ["a", "b", "a"]
    assert len(list(read_events(tmp_path / "e", "a"))) == 2


def test_refuses_to_overwrite_its_own_fields(tmp_path: Path) -> None:
    with EventLog(tmp_path / "e") as log, pytest.raises(ValueError, match="'t_s' is written by the log"):
        log.write("a", t_s=1)


def test_a_torn_last_line_and_a_missing_file_are_no_errors(tmp_path: Path) -> None:
    (tmp_path / "e").write_text('{"kind": "a"}\n{"kind": "b", "x')
    assert [e["kind"] for e in read_events(tmp_path / "e")] == ["a"]
    assert list(read_events(tmp_path / "missing")) == []


def test_lines_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    def write(number: int) -> None:
        with EventLog(tmp_path / "e") as log:
            for _ in range(200):
                log.write("w", number=number, text="x" * 300)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(list(read_events(tmp_path / "e", "w"))) == 800
