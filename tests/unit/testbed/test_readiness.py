"""Whether a testbed is fit for a run: asked of real sockets, answered by small servers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.experiments import readiness
from topologies.errors import CannotHonourError, RunFailedError, UsageError


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """A supervisor of testbed `t` that answers `status` with the processes in the list."""
    monkeypatch.setenv("STORMBED_RUN_ROOT", str(tmp_path))
    (tmp_path / "t").mkdir()
    processes: list[dict[str, Any]] = []
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "t" / "supervisor.sock"))
    server.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as stream:
                assert json.loads(stream.readline())["verb"] in ("status", "ping")
                stream.write(json.dumps({"ok": True, "result": {"processes": processes}}).encode() + b"\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield processes
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


def process(name: str, site: str | None, status: int | None) -> dict[str, Any]:
    return {"name": name, "site": site, "status": status}


def test_a_sound_testbed_passes(supervisor: list[dict[str, Any]]) -> None:
    supervisor += [process("agent", "dc1", None), process("iperf3", "dc1", 0)]
    readiness.require_healthy("t", whole=True)


def test_what_a_run_needs_and_has_ended_is_named_with_the_fix(supervisor: list[dict[str, Any]]) -> None:
    supervisor += [
        process("agent", "dc2", -9),
        process("delay-line", None, 1),
        process("prometheus", None, 1),
    ]
    with pytest.raises(CannotHonourError) as caught:
        readiness.require_healthy("t")
    assert caught.value.message == "testbed t is unhealthy, ended: agent of dc2, delay-line"
    assert "testbed down t" in caught.value.hint
    assert caught.value.exit_code == 4


def test_a_run_does_without_prometheus_but_the_testbed_does_not_stand_whole(
    supervisor: list[dict[str, Any]],
) -> None:
    supervisor.append(process("prometheus", None, 1))
    readiness.require_healthy("t")
    with pytest.raises(CannotHonourError, match="prometheus"):
        readiness.require_healthy("t", whole=True)


def test_a_testbed_has_ended_when_nobody_listens_at_its_socket(supervisor: list[dict[str, Any]]) -> None:
    assert not readiness.has_ended("t")
    assert readiness.has_ended("gone")


def test_a_testbed_whose_supervisor_was_killed_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORMBED_RUN_ROOT", str(tmp_path))
    (tmp_path / "t").mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "t" / "supervisor.sock"))
    assert readiness.has_ended("t")


def test_a_supervisor_that_answers_late_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMBED_RUN_ROOT", str(tmp_path))
    monkeypatch.setattr(readiness, "ANSWER_S", 0.2)
    (tmp_path / "t").mkdir()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "t" / "supervisor.sock"))
        silent.listen()
        assert not readiness.has_ended("t")


def test_an_absent_coordinator_is_a_failed_run_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    monkeypatch.setattr(readiness, "COORDINATOR_S", 0.3)
    info: Any = SimpleNamespace(name="t", coordinator=address)
    with pytest.raises(RunFailedError, match="the coordinator of testbed t does not answer") as caught:
        readiness.require_free(info, "")
    assert caught.value.exit_code == 5


def test_without_a_coordinator_no_run_is_disturbed(supervisor: list[dict[str, Any]]) -> None:
    supervisor.append(process("coordinator", None, -9))
    info: Any = SimpleNamespace(name="t", coordinator=("127.0.0.1", 1))
    readiness.require_undisturbed(info, "calibrate")


class Coordinator:
    """Knows one run."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        pass

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {"jobs": [{"job": "20260101-x"}]}


def test_measuring_during_a_run_is_refused(
    supervisor: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.append(process("coordinator", None, None))
    monkeypatch.setattr(readiness, "CoordinatorClient", Coordinator)
    info: Any = SimpleNamespace(name="t", coordinator=("127.0.0.1", 1))
    with pytest.raises(UsageError, match="testbed t is busy with the run 20260101-x") as caught:
        readiness.require_undisturbed(info, "link test")
    assert caught.value.exit_code == 2
    assert "`testbed link test`" in caught.value.hint and "--force" in caught.value.hint
