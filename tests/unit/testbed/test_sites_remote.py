"""The scripts of `testbed.remote`, run by the local sh: they need no SSH to be right or wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed import remote
from testbed.emulation.waiting import wait_for


@pytest.fixture
def sh(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    def run(script: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "STORMBED_RUN_DIR": str(tmp_path), "STORMBED_SITE": "dc1"}
        return subprocess.run(
            ["sh", "-c", script], env=environment, capture_output=True, text=True, timeout=20, cwd=tmp_path
        )

    return run


class Site:
    """What the tests do with the scripts, as `testbed.remote` does it over a connection."""

    def __init__(self, sh: Callable[[str], subprocess.CompletedProcess[str]], directory: Path) -> None:
        self.sh = sh
        self.directory = directory

    def start(
        self, key: str, argv: list[str], env: dict[str, str] | None = None, cwd: str | None = None
    ) -> Any:
        record = {
            "argv": argv,
            "started_s": time.time(),
            "stdout": str(self.directory / "logs" / key),
            "stderr": str(self.directory / "logs" / f"{key}.err"),
        }
        return self.sh(remote.start_script(key, record, env or {}, cwd))

    def list(self) -> dict[str, remote.RemoteProcess]:
        lines = self.sh(remote.LIST_SCRIPT).stdout.splitlines()
        return {process.key: process for process in map(remote.parse_line, lines)}

    def end(self, key: str, grace: float = 20.0, ticks: int | None = None) -> str:
        process = self.list()[key]
        script = remote.end_script(process.pid, process.start_ticks if ticks is None else ticks, grace)
        return str(self.sh(script).stdout.strip())

    def output(self, key: str) -> str:
        path = self.directory / "logs" / key
        deadline = time.monotonic() + 20
        while not path.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        return path.read_text()


@pytest.fixture
def site(sh: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path) -> Any:
    site = Site(sh, tmp_path)
    yield site
    for key, process in site.list().items():
        if process.running:
            site.end(key, grace=0.1)


def test_a_started_process_runs_on_and_is_listed(site: Site) -> None:
    started = site.start("a", ["sleep", "60"])
    assert started.returncode == 0, started.stderr
    process = site.list()["a"]
    assert process.running and process.exit_code is None
    assert process.argv == ("sleep", "60")
    assert started.stdout.split() == [str(process.pid), str(process.start_ticks)]
    assert os.getsid(process.pid) == process.pid  # a session of its own, so no terminal or channel ends it


def test_arguments_environment_and_directory_arrive_unchanged(site: Site, tmp_path: Path) -> None:
    words = ["it's", 'a "b"', "$HOME", "two\nlines", "*", "back\\slash", ""]
    code = "import sys, os, json; print(json.dumps([sys.argv[1:], os.environ['X'], os.getcwd()]))"
    (tmp_path / "a dir").mkdir()
    site.start("a", ["python3", "-c", code, *words], env={"X": "$y 'z'"}, cwd=str(tmp_path / "a dir"))
    assert json.loads(site.output("a")) == [words, "$y 'z'", str(tmp_path / "a dir")]
    assert site.list()["a"].argv == ("python3", "-c", code, *words)


def test_the_exit_code_is_recorded(site: Site) -> None:
    site.start("a", ["sh", "-c", "exit 3"])
    deadline = time.monotonic() + 20
    while site.list()["a"].running and time.monotonic() < deadline:
        time.sleep(0.02)
    assert site.list()["a"].exit_code == 3


def test_a_command_that_is_over_at_once_has_been_started_all_the_same(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine it may be over before anybody has looked for its process; here looking takes a while."""
    slow = tmp_path / "bin" / "sed"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nsleep 0.3\nexec {shutil.which("sed")} "$@"\n')
    slow.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
        started = site.start("a", ["sh", "-c", "echo there; exit 3"])
    assert started.returncode == 0, started.stderr
    process = site.list()["a"]
    assert started.stdout.split() == [str(process.pid), str(process.start_ticks)]
    assert site.output("a") == "there\n"
    wait_for(lambda: not site.list()["a"].running, "it to end", 20)
    assert site.list()["a"].exit_code == 3
    assert sorted(path.name for path in records(tmp_path)) == ["a.exit", "a.process"]


def test_output_that_cannot_be_written_is_an_error_and_leaves_no_record(site: Site, tmp_path: Path) -> None:
    (tmp_path / "logs" / "a").mkdir(parents=True)
    started = site.start("a", ["true"])
    assert started.returncode != 0 and "did not begin" in started.stderr and "irectory" in started.stderr
    assert site.list() == {} and records(tmp_path) == []


def records(directory: Path) -> list[Path]:
    return list((directory / "sites" / "dc1" / "processes").iterdir())


def test_a_missing_program_is_an_error_and_leaves_no_record(site: Site) -> None:
    started = site.start("a", ["no-such-program"])
    assert started.returncode != 0
    assert "no program no-such-program" in started.stderr
    assert site.list() == {}


def test_end_terminates_the_process_with_its_children(site: Site) -> None:
    site.start("a", ["sh", "-c", "sleep 61 & sleep 62; wait"])
    process = site.list()["a"]
    assert site.end("a") == "ended"
    after = site.list()["a"]
    assert not after.running
    assert after.exit_code == 128 + 15
    listing = subprocess.run(
        ["ps", "-o", "stat=", "-s", str(process.pid)], capture_output=True, text=True
    ).stdout
    assert all(state.startswith("Z") for state in listing.split())


def test_end_kills_what_ignores_the_polite_signal(site: Site) -> None:
    site.start("a", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
    assert site.output("a") == "ready\n"
    began = time.monotonic()
    assert site.end("a", grace=0.3) == "ended"
    assert time.monotonic() - began < 20, "it would have gone on for ever"
    assert not site.list()["a"].running


def test_end_of_an_ended_process_is_no_error(site: Site) -> None:
    site.start("a", ["true"])
    deadline = time.monotonic() + 20
    while site.list()["a"].running and time.monotonic() < deadline:
        time.sleep(0.02)
    assert site.end("a") == "ended"


def test_a_process_that_took_over_the_id_is_left_alone(site: Site) -> None:
    site.start("a", ["sleep", "60"])
    other = site.list()["a"].start_ticks - 1
    assert site.end("a", ticks=other) == "ended"
    assert site.list()["a"].running


def test_a_site_without_records_has_an_empty_list(site: Site) -> None:
    assert site.list() == {}
