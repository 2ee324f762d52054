"""Processes at a site, started over SSH, that outlive the connection.

A command that merely goes to the background keeps the channel's streams, so the connection hangs, or dies
with it. Here a process gets a session of its own, its streams go to files, and a small record of it stays
in the site's directory, from which it can be listed and ended later, over any other connection. A record
names the process by its id and its start time together, so an id that the kernel has since given to another
process is never signalled.
"""

from __future__ import annotations

import json
import shlex
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from topologies.errors import DeadlineError, RunFailedError, StormbedError, UsageError

if TYPE_CHECKING:
    from fabric import Connection

COMMAND_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class RemoteProcess:
    """A process at a site.

    `pid` is the leader of its session (as seen inside the testbed), and the id of its process group. `key`
    is the name of its record. `exit_code` is known once the command has ended by itself or by SIGTERM.
    """

    key: str
    pid: int
    start_ticks: int
    argv: tuple[str, ...]
    started_s: float
    stdout: str
    stderr: str
    running: bool = True
    exit_code: int | None = None


def connect(ssh_config: Path, site: str, *, timeout: float = 10.0) -> Connection:
    """A Fabric connection to a site that trusts only the keys of its own testbed.

    Args:
        ssh_config: the testbed's file.
        site: the site's name.
        timeout: seconds to connect and to be greeted.
    """
    import paramiko
    from fabric import Config, Connection

    config = Config(runtime_ssh_path=str(ssh_config))
    connection = Connection(site, config=config, connect_timeout=round(timeout))
    connection.client.load_host_keys(str(ssh_config.parent / "known_hosts"))
    connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    connection.connect_kwargs.update(
        {
            "banner_timeout": timeout,
            "auth_timeout": timeout,
            "allow_agent": False,
            "look_for_keys": False,
        }
    )
    return connection


def start_detached(
    connection: Connection,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdout: str | Path,
    stderr: str | Path,
    cwd: str | Path | None = None,
) -> RemoteProcess:
    """Start a command at a site and return at once; it goes on when the connection closes.

    Args:
        connection: to the site.
        argv: the program and its arguments.
        env: variables added to the site's own.
        stdout, stderr: files at the site that its output is appended to; their directories are made.
        cwd: where it starts; the site's home when left out.

    Raises:
        RunFailedError: the site has no such program, or the process could not be started.
    """
    key = uuid.uuid4().hex[:12]
    for name in env or {}:
        if not name.isidentifier():
            raise UsageError(f"{name!r} is not the name of an environment variable")
    started = time.time()
    record = {
        "argv": list(argv),
        "started_s": started,
        "stdout": str(stdout),
        "stderr": str(stderr),
    }
    script = start_script(key, record, env or {}, cwd)
    answer = _sh(connection, script, f"start {shlex.join(argv)[:80]}")
    pid, ticks = (int(word) for word in answer.split())
    return RemoteProcess(key, pid, ticks, tuple(argv), started, str(stdout), str(stderr))


def list_processes(connection: Connection) -> tuple[RemoteProcess, ...]:
    """Every process that `start_detached` started at the site, ended ones included, oldest first."""
    answer = _sh(connection, LIST_SCRIPT, "list processes")
    processes = [parse_line(line) for line in answer.splitlines()]
    return tuple(sorted(processes, key=lambda process: process.started_s))


def find_process(connection: Connection, key: str) -> RemoteProcess:
    """The present state of one process."""
    for process in list_processes(connection):
        if process.key == key:
            return process
    raise StormbedError(f"site {connection.original_host} has no record of the process {key}")


def end_process(connection: Connection, process: RemoteProcess, *, grace: float = 5.0) -> RemoteProcess:
    """End a process with all it started: SIGTERM to its group, and SIGKILL after `grace` seconds.

    Returns its last state. Ending a process that has already ended is no error.

    Raises:
        DeadlineError: something of it is alive even after SIGKILL.
    """
    script = end_script(process.pid, process.start_ticks, grace)
    answer = _sh(connection, script, f"end process {process.pid}", timeout=COMMAND_TIMEOUT_S + grace)
    if answer.strip() != "ended":
        raise DeadlineError(f"process {process.pid} at {connection.original_host} to end", grace)
    return find_process(connection, process.key)


# --- What runs at the site: plain sh, because a Python start for each of these costs more than all of them
# ------

# Where the records are: below the site's own directory, which the site's environment names.
_RECORDS = '"$STORMBED_RUN_DIR/sites/$STORMBED_SITE/processes"'

# The start time of a process (field 22 of its stat), or nothing once it has ended. Its name, in parentheses,
# may hold spaces, so it is cut off first.
_TICKS = """ticks() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '$1 != "Z" { print $20 }'; }"""

# The leader writes its own record and says who it is before the command begins, which may be over at once. It stays
# to write down the exit code. It survives SIGTERM (its child has the default action again), so that the code is
# recorded also when the whole group is asked to end.
_LEADER = f"""{_TICKS}
own="${{0%.exit}}" asked=
trap asked=143 TERM; trap : INT HUP
start=$(ticks $$)
printf "%s %s %s\\n" $$ "$start" "$(cat "$own.record")" >"$own.new"
rm "$own.record"
mv "$own.new" "$own.process"  # whole, for whoever lists
echo "$$ $start" >&3
exec 3>&-
[ -n "$asked" ] || {{ "$@"; asked=$?; }}
echo "$asked" >"$0.new"; mv "$0.new" "$0"
"""


def start_script(key: str, record: Mapping[str, Any], env: Mapping[str, str], cwd: str | Path | None) -> str:
    """The shell script that starts one process and prints its id and start time. Pure."""
    quote = shlex.quote
    program = record["argv"][0]
    directories = {str(PurePosixPath(record[name]).parent) for name in ("stdout", "stderr")}
    streams = f"</dev/null 3>&1 >>{quote(record['stdout'])} 2>>{quote(record['stderr'])}"
    lines = [
        "set -e",
        f"records={_RECORDS}",
        f'mkdir -p "$records" {shlex.join(sorted(directories))}',
        *(f"export {name}={quote(value)}" for name, value in env.items()),
        *([f"cd {quote(str(cwd))}"] if cwd is not None else []),
        f"command -v {quote(program)} >/dev/null || {{ echo {quote('no program ' + program)} >&2; exit 1; }}",
        f'printf "%s\\n" {quote(json.dumps(dict(record)))} >"$records/{key}.record"',
        # Until the leader has said who it is.
        f'who=$(setsid sh -c {quote(_LEADER)} "$records/{key}.exit" {shlex.join(record["argv"])} {streams} &)',
        f'[ -n "$who" ] || {{ rm "$records/{key}.record"; echo "the process did not begin" >&2; exit 1; }}',
        'echo "$who"',
    ]
    return "\n".join(lines) + "\n"


LIST_SCRIPT = f"""{_TICKS}
cd {_RECORDS} 2>/dev/null || exit 0
for file in *.process; do
    [ -e "$file" ] || continue
    key="${{file%.process}}"
    read -r pid start record <"$file"
    state=ended
    [ "$(ticks "$pid")" = "$start" ] && state=running
    code=-
    # The leader writes the code as its last act.
    if [ -e "$key.exit" ]; then code=$(cat "$key.exit"); state=ended; fi
    printf '%s %s %s %s %s %s\\n' "$key" "$pid" "$start" "$state" "$code" "$record"
done
"""


def end_script(pid: int, start_ticks: int, grace: float) -> str:
    """The shell script that ends a process and prints "ended" or "alive". Pure.

    The group may outlive its leader (a child that ignores SIGTERM), so the members of the session are asked
    for.
    """
    return f"""{_TICKS}
alive() {{
    sed 's/.*) //' /proc/[0-9]*/stat 2>/dev/null |
        awk '$4 == {pid} && $1 != "Z" {{ n++ }} END {{ exit !n }}'
}}
gone() {{
    n=0
    while alive; do
        [ $n -lt "$1" ] || return 1
        n=$((n + 1))
        sleep 0.1
    done
}}
now=$(ticks {pid})
if [ -n "$now" ] && [ "$now" != {start_ticks} ]; then echo ended; exit; fi
if gone 0; then echo ended; exit; fi
kill -s TERM -- -{pid} 2>/dev/null
gone {max(1, round(grace / 0.1))} || kill -s KILL -- -{pid} 2>/dev/null
if gone 50; then echo ended; else echo alive; fi
"""


def parse_line(line: str) -> RemoteProcess:
    """One line of the listing as a process."""
    key, pid, ticks, state, code, record = line.split(" ", 5)
    fields = json.loads(record)
    return RemoteProcess(
        key=key,
        pid=int(pid),
        start_ticks=int(ticks),
        argv=tuple(fields["argv"]),
        started_s=fields["started_s"],
        stdout=fields["stdout"],
        stderr=fields["stderr"],
        running=state == "running",
        exit_code=None if code == "-" else int(code),
    )


def _sh(connection: Connection, script: str, what: str, *, timeout: float = COMMAND_TIMEOUT_S) -> str:
    """Run a script with sh at the site and return its output."""
    from invoke.exceptions import CommandTimedOut

    try:
        result = connection.run(
            f"sh -c {shlex.quote(script)}", hide=True, warn=True, timeout=timeout, in_stream=False
        )
    except CommandTimedOut:
        raise DeadlineError(f"site {connection.original_host} to {what}", timeout) from None
    if not result.ok:
        said = " ".join(result.stderr.split()) or f"status {result.return_code}"
        raise RunFailedError(f"site {connection.original_host} could not {what}: {said}")
    return str(result.stdout)
