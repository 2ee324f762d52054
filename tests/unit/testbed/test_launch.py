"""Taking a testbed away, as far as it needs no namespaces: a process stands in for the whole testbed."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.emulation import launch
from testbed.emulation.ending import alone_on_this_machine
from testbed.emulation.rundir import RunDir, TestbedInfo, write_info
from testbed.emulation.waiting import start_ticks
from topologies.errors import UsageError
from topologies.load import load_topology


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as started:
        yield started
        started.kill()


def stand(run_root: Path, process: subprocess.Popen[bytes], init_pid: int | None) -> RunDir:
    run = RunDir(run_root / "mine")
    run.path.mkdir(parents=True)
    info = TestbedInfo(
        name="mine",
        created_s=0.0,
        state="up" if init_pid else "starting",
        topology=load_topology("pair").to_dict(),
        subnet="10.199.1.0/24",
        interface="sb-no-such-m",
        pid=process.pid,
        started_ticks=start_ticks(process.pid),
        init_pid=init_pid,
        sites={},
    )
    write_info(run, info)
    return run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_down_finishes_when_it_is_interrupted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    process: subprocess.Popen[bytes],
    number: signal.Signals,
) -> None:
    monkeypatch.setenv("STORMBED_RUN_ROOT", str(tmp_path))
    run = stand(tmp_path, process, process.pid)
    before = signal.getsignal(number)
    said = []

    def interrupt(text: str) -> None:
        said.append(text)
        signal.raise_signal(number)

    launch.down("mine", on_progress=interrupt)
    assert said == ["asking its processes to end", "down"]
    assert not run.path.exists()
    assert process.wait(5) is not None
    assert signal.getsignal(number) is before


def test_a_testbed_that_is_coming_up_is_not_taken_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setenv("STORMBED_RUN_ROOT", str(tmp_path))
    run = stand(tmp_path, process, None)
    with pytest.raises(UsageError, match="just being brought up"):
        launch.down("mine")
    assert run.path.exists() and process.poll() is None


def test_what_has_just_taken_its_name_is_not_cleaned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory without a state is a dead testbed's, unless its `up` has got no further yet."""
    monkeypatch.setenv("STORMBED_RUN_ROOT", str(tmp_path))
    run = RunDir(tmp_path / "mine")
    cleaned: list[list[str]] = []
    cleaning = threading.Thread(target=lambda: cleaned.append(launch.clean()))
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with alone_on_this_machine():  # as `up` does it
                run.path.mkdir()
                cleaning.start()
                cleaning.join(0.3)
                assert run.path.exists() and cleaning.is_alive()
                run.path.rmdir()
                stand(tmp_path, process, None)
            cleaning.join(20)
            assert cleaned == [[]] and run.state.exists()
        finally:
            process.kill()
    assert launch.clean() == ["mine"]
