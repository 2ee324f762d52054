"""Processes that a supervisor starts: when they are there, and how their end is told. No testbed, no root."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.emulation.waiting import wait_for
from testbed.handles import SiteHandle
from testbed.supervisor import process_verbs
from testbed.supervisor.processes import Process, ProcessSpec, ProcessTable
from topologies.errors import UsageError


def spec(*argv: str, log: Path) -> ProcessSpec:
    return ProcessSpec("one", argv, None, log)


def test_a_process_has_arrived_when_it_is_no_longer_what_leads_it_to_its_site(tmp_path: Path) -> None:
    """Two launchers, one after the other, as nsenter and the shell that enters a control group; each waits."""
    gates = [tmp_path / "first", tmp_path / "second"]
    for gate in gates:
        os.mkfifo(gate)
    program = [sys.executable, "-c", "input()"]
    enter = ["sh", "-c", 'read _ <"$0"; exec "$@"']
    inner = [*enter, str(gates[1]), *program]
    outer = [*enter, str(gates[0]), *inner]
    with subprocess.Popen(outer, stdin=subprocess.PIPE) as popen:
        process = Process(spec(*program, log=tmp_path / "log"), popen, 0.0, (inner, outer))
        try:
            assert not process.has_arrived()
            gates[0].write_text("go\n")
            with gates[1].open("w") as gate:  # opened: the second launcher reads
                assert not process.has_arrived()
                gate.write("go\n")
            wait_for(process.has_arrived, "the program to begin", 20)
            assert Path(f"/proc/{popen.pid}/cmdline").read_bytes().split(b"\0")[1:3] == [b"-c", b"input()"]
        finally:
            popen.kill()
        wait_for(process.has_arrived, "one that has ended to count as arrived", 20)  # a zombie
    assert process.has_arrived(), "nobody waits for one that is gone"


def test_whoever_sees_that_a_process_has_ended_finds_that_in_the_log(tmp_path: Path) -> None:
    told: list[tuple[str, int | None]] = []
    table: ProcessTable

    class Log:
        def write(self, kind: str, **fields: Any) -> None:
            told.append((kind, table.all()[0].status))

    async def play() -> int | None:
        nonlocal table
        nowhere: Any = None
        log: Any = Log()
        table = ProcessTable(nowhere, log, asyncio.get_running_loop(), lambda name: 1, lambda name: None)
        process = table.start(spec("sh", "-c", "exit 3", log=tmp_path / "log"))
        async with asyncio.timeout(20):
            while process.status is None:
                await asyncio.sleep(0.005)
        return process.status

    assert asyncio.run(play()) == 3
    assert told == [("process_started", None), ("process_ended", None)], "the log is written first"


def test_a_process_that_ends_just_before_it_would_be_killed_is_no_error() -> None:
    asked: list[str] = []
    left = [{"pid": 7, "status": None}]

    def call(verb: str, **arguments: Any) -> Any:
        if verb == "processes":
            return list(left)
        if verb == "sites":
            return {"dc1": {"pid": 1}}
        asked.append(arguments.get("signal_name", "SIGTERM"))
        if asked[-1] == "SIGKILL":
            left.clear()
            raise UsageError("there is no process 7 at this site")
        return None

    testbed: Any = SimpleNamespace(call=call)
    SiteHandle(testbed, "dc1").kill(7, grace=0.01)
    assert asked == ["SIGTERM", "SIGKILL"]


def test_a_process_that_has_just_ended_is_listed_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gone from its site, and its end not noticed yet: whoever lists processes needs no case for it."""
    gone: Any = SimpleNamespace(pid=7)
    supervisor: Any = SimpleNamespace(
        processes=SimpleNamespace(all=lambda: [Process(spec("true", log=tmp_path), gone, 0.0)])
    )
    monkeypatch.setattr(process_verbs, "namespace_of", lambda pid: 1)
    monkeypatch.setattr(process_verbs, "processes_in", lambda namespace: [])
    (row,) = process_verbs.processes(supervisor, lambda text: None)
    assert set(row) == {"pid", "argv", "cpu_s", "rss_bytes", "name", "status"}
