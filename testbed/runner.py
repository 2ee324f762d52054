"""The one runner for external commands: checked status, captured output, deadline, an event."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from testbed.events import EventLog
from topologies.errors import CannotHonourError, DeadlineError, StormbedError

TAIL_CHARACTERS: Final = 600
"""How much of a command's output an error message and an event quote."""

_PACKAGES: Final = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "tini": "tini",
    "mnexec": "mininet",
    "ping": "iputils-ping",
    "ethtool": "ethtool",
    "ssh-keygen": "openssh-client",
    "ovs-vsctl": "openvswitch-switch",
    "ovs-vswitchd": "openvswitch-switch",
    "ovsdb-server": "openvswitch-switch",
    "ovsdb-tool": "openvswitch-switch",
    "prometheus": "prometheus",
}

SYSTEM_DIRECTORIES: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")
"""Searched after the PATH: Debian's PATH of ordinary users, and of `su`, lacks those of the switches."""

_BATCH_LINE: Final = re.compile(r"Command failed -:(\d+)")

_event_log: EventLog | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended. `seconds` is wall time."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def ok(self) -> bool:
        return self.returncode == 0


class CommandError(StormbedError):
    """A command ended with a status other than zero."""

    def __init__(self, completed: Completed) -> None:
        self.completed = completed
        said = _tail(completed.stderr) or _tail(completed.stdout) or "no output"
        super().__init__(f"{command_text(completed.argv)} {_ending(completed.returncode)}: {said}")


def use_event_log(log: EventLog | None) -> None:
    """Have every command of this process leave a line in this log; None stops it."""
    global _event_log
    _event_log = log


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    input: str | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    quiet: bool = False,
) -> Completed:
    """Run a command to its end and return what it said.

    Args:
        argv: the program and its arguments; never a shell line.
        timeout: seconds after which the command and the children it started are killed.
        input: text for its standard input; without it, standard input is empty.
        env: its whole environment; without it, this process's own. To its PATH the system's directories
            are added.
        check: raise when the status is not zero.
        quiet: leave a line in the event log only when it fails; for what is asked every second.

    Raises:
        CommandError: the status was not zero and `check` holds.
        DeadlineError: it did not end in time.
        CannotHonourError: there is no such program, or the machine's buffers are too small for it.
    """
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_with_system_directories(os.environ if env is None else env),
            encoding="utf-8",
            errors="replace",
            # A session of its own: a Ctrl-C in the terminal reaches the caller, which then decides.
            start_new_session=True,
        )
    except FileNotFoundError:
        raise CannotHonourError(
            f"the program {argv[0]} is not installed", hint=_install_hint(argv[0])
        ) from None
    except PermissionError as error:
        raise CannotHonourError(f"the program {argv[0]} cannot be started: {error.strerror}") from None
    try:
        stdout, stderr = process.communicate(input, timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill_session(process)
        _record(argv, None, time.monotonic() - started, "")
        raise DeadlineError(f"the command {command_text(argv)}", timeout) from None
    except BaseException:
        _kill_session(process)
        raise
    completed = Completed(tuple(argv), process.returncode, stdout, stderr, time.monotonic() - started)
    if not (quiet and completed.ok):
        _record(argv, process.returncode, completed.seconds, stderr)
    if check and process.returncode:
        raise _failure(completed)
    return completed


def batch(program: Sequence[str], lines: Sequence[str], *, timeout: float = 60) -> None:
    """Have `ip` or `tc` do lines in order, as one command; the first that fails is an error that quotes it.

    Args:
        program: ["ip"] or ["tc"], with what leads into a namespace before it.
        lines: what would follow the program's name, one command each.
        timeout: seconds for all of them.
    """
    if not lines:
        return
    done = run([*program, "-batch", "-"], timeout=timeout, input="\n".join(lines) + "\n", check=False)
    if not done.ok:
        place = _BATCH_LINE.search(done.stderr)
        known = place is not None and 0 < int(place[1]) <= len(lines)
        line = lines[int(place[1]) - 1] if place and known else "-batch -"
        raise _failure(replace(done, argv=(*program, *line.split())))


def _failure(completed: Completed) -> StormbedError:
    error = CommandError(completed)
    if "No buffer space available" in completed.stderr:  # ip and tc cannot read the kernel's answers
        return CannotHonourError(str(error), hint="sysctl -w net.core.rmem_max=212992")
    return error


def command_text(argv: Sequence[str]) -> str:
    """A command as a person would type it, shortened for messages."""
    text = shlex.join(argv)
    return text if len(text) <= 160 else text[:157] + "..."


def _with_system_directories(env: Mapping[str, str]) -> dict[str, str]:
    listed = [directory for directory in env.get("PATH", "").split(os.pathsep) if directory]
    added = [directory for directory in SYSTEM_DIRECTORIES if directory not in listed]
    return {**env, "PATH": os.pathsep.join([*listed, *added])}


def _kill_session(process: subprocess.Popen[str]) -> None:
    """Kill a command with all that it started, and collect it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _record(argv: Sequence[str], status: int | None, seconds: float, stderr: str) -> None:
    if _event_log is None:
        return
    fields: dict[str, object] = {"argv": list(argv), "status": status, "seconds_s": round(seconds, 4)}
    if status != 0:
        fields["stderr"] = _tail(stderr)
    _event_log.write("command", **fields)


def _tail(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= TAIL_CHARACTERS else "..." + text[-TAIL_CHARACTERS:]


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with status {returncode}"
    try:
        return f"was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was ended by signal {-returncode}"


def _install_hint(program: str) -> str:
    package = _PACKAGES.get(Path(program).name)
    return f"apt-get install {package}" if package else "check the PATH"
