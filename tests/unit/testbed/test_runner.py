from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import runner
from testbed.events import EventLog, read_events
from topologies.errors import CannotHonourError, DeadlineError


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as events:
        runner.use_event_log(events)
        yield path
        runner.use_event_log(None)


def test_returns_output_and_status() -> None:
    done = runner.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout=5, check=False)
    assert (done.returncode, done.stdout, done.stderr, done.ok) == (3, "out\n", "err\n", False)


def test_passes_input_and_environment() -> None:
    done = runner.run(
        ["sh", "-c", "cat; echo $WORD"], timeout=5, input="abc", env={"WORD": "w", "PATH": os.environ["PATH"]}
    )
    assert done.stdout == "abcw\n"


def test_a_failing_command_is_an_error_that_quotes_it() -> None:
    with pytest.raises(runner.CommandError, match=r"sh -c .* ended with status 4: no such thing") as caught:
        runner.run(["sh", "-c", "echo no such thing >&2; exit 4"], timeout=5)
    assert caught.value.completed.returncode == 4


def test_a_command_ended_by_a_signal_is_named() -> None:
    with pytest.raises(runner.CommandError, match="was ended by SIGKILL"):
        runner.run(["sh", "-c", "kill -9 $$"], timeout=5)


@pytest.mark.parametrize("path", ["/usr/local/bin:/usr/bin:/bin", ""])
@pytest.mark.parametrize("env", [False, True])
def test_programs_of_sbin_are_found_with_the_path_of_an_ordinary_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, env: bool
) -> None:
    # A directory of its own: this machine may have every program in /usr/bin too.
    program = tmp_path / "only-in-sbin"
    program.write_text('#!/bin/sh\necho "$PATH"\n')
    program.chmod(0o755)
    monkeypatch.setattr(runner, "SYSTEM_DIRECTORIES", (str(tmp_path), "/usr/sbin"))
    monkeypatch.setenv("PATH", path)
    done = runner.run([program.name], timeout=5, env={"PATH": path} if env else None)
    # Also its own children find them, after all that the caller's PATH has.
    assert done.stdout.strip() == ":".join([*filter(None, [path]), str(tmp_path), "/usr/sbin"])


def test_a_missing_program_names_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(runner, "SYSTEM_DIRECTORIES", ())
    with pytest.raises(CannotHonourError, match=r"tini is not installed .apt-get install tini.") as caught:
        runner.run(["tini", "--version"], timeout=5)
    assert caught.value.exit_code == 4


def test_the_deadline_kills_the_command_and_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    started = time.monotonic()
    with pytest.raises(DeadlineError, match=r"waited 1.5 s for the command sh"):
        # Time enough for the shell to have started its child and to say which that is.
        runner.run(["sh", "-c", f"sleep 60 & echo $! > {pid_file}; wait"], timeout=1.5)
    assert time.monotonic() - started < 30, "not when the child would have ended"
    child = int(pid_file.read_text())
    deadline = time.monotonic() + 20
    while _running(child):
        assert time.monotonic() < deadline, "the child outlived its parent's deadline"
        time.sleep(0.01)


def test_every_command_leaves_a_line(log: Path) -> None:
    runner.run(["true"], timeout=5)
    runner.run(["sh", "-c", "echo broken >&2; exit 1"], timeout=5, check=False)
    first, second = read_events(log, "command")
    assert first["argv"] == ["true"] and first["status"] == 0 and "stderr" not in first
    assert second["status"] == 1 and second["stderr"] == "broken"


def test_quiet_commands_leave_a_line_only_when_they_fail(log: Path) -> None:
    runner.run(["true"], timeout=5, quiet=True)
    runner.run(["false"], timeout=5, quiet=True, check=False)
    (event,) = read_events(log, "command")
    assert event["argv"] == ["false"]


def test_buffers_of_the_machine_that_are_too_small_are_named() -> None:
    said = "echo 'netlink receive error No buffer space available (105)' >&2; exit 1"
    with pytest.raises(CannotHonourError, match="No buffer space") as caught:
        runner.run(["sh", "-c", said], timeout=5)
    assert caught.value.hint == "sysctl -w net.core.rmem_max=212992"


def test_a_batch_is_one_command_and_its_failing_line_is_quoted(tmp_path: Path) -> None:
    runner.batch(["no-such-program"], [])
    # A program that fails as iproute2 does: its words and the line's number on standard error.
    tc = tmp_path / "tc"
    tc.write_text(
        "#!/bin/sh\ncat > lines\n"
        "echo 'RTNETLINK answers: File exists' >&2; echo 'Command failed -:2' >&2; exit 1\n"
    )
    tc.chmod(0o755)
    with pytest.raises(
        runner.CommandError, match=r"tc class add dev d0a ended with status 1: RTNETLINK answers"
    ):
        runner.batch(["env", f"--chdir={tmp_path}", str(tc)], ["qdisc add dev d0a", "class add dev d0a", "x"])
    assert (tmp_path / "lines").read_text() == "qdisc add dev d0a\nclass add dev d0a\nx\n"


def test_long_commands_are_shortened_in_messages() -> None:
    assert len(runner.command_text(["echo", "x" * 500])) == 160


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
