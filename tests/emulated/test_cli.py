"""The verbs on real testbeds, typed as a user types them, with a run root of their own.

So "the only testbed that stands" is ours, whatever else stands on the machine.
"""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed.cli import build
from testbed.cli.errors import exit_code_of
from testbed.emulation.management import interface_name
from testbed.emulation.rundir import RunDir
from testbed.emulation.waiting import start_ticks
from tests.emulated.conftest import GONE_S

pytestmark = pytest.mark.emulated

Done = subprocess.CompletedProcess[str]
TESTBED = [sys.executable, "-m", "testbed"]


@pytest.fixture(scope="module")
def run_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def environment(run_root: Path) -> Iterator[dict[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORMBED_RUN_ROOT", str(run_root))
        patch.setenv("NO_COLOR", "1")
        yield dict(os.environ)


@pytest.fixture(scope="module")
def testbed(environment: dict[str, str], run_root: Path) -> Iterator[Callable[..., Done]]:
    """The command. Verbs that become another program need a process of their own; the others save that
    second.
    """

    def run(*arguments: str, input: str | None = None) -> Done:
        if arguments[0] in ("exec", "shell"):
            return subprocess.run(
                [*TESTBED, *arguments],
                capture_output=True,
                text=True,
                input=input or "",
                timeout=90,
                env=environment,
            )
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = exit_code_of(lambda: build()(list(arguments), prog_name="testbed"))
        return Done(arguments, code, out.getvalue(), err.getvalue())

    yield run
    for path in run_root.glob("*/"):
        run("down", path.name)
        run("clean", path.name)


@pytest.fixture(autouse=True)
def _one_afterwards(testbed: Callable[..., Done], run_root: Path) -> Iterator[None]:
    """With what a failed test has left, no later one would find the only testbed that stands."""
    yield
    for name in standing_names(run_root) - {"pair"}:
        testbed("down", name, "--if-up")
        testbed("clean", name)


@pytest.fixture(scope="module")
def pair(testbed: Callable[..., Done]) -> Callable[..., Done]:
    """The command, with a testbed `pair` standing."""
    done = testbed("up", "pair", "--no-calibrate")
    assert done.returncode == 0, done.stderr
    return testbed


def document(done: Done) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["schema"] == 1
    return result


def has_interface(run_root: Path, name: str) -> bool:
    """Whether the machine still has the one interface that a testbed of this name puts there."""
    return Path(f"/sys/class/net/{interface_name(RunDir(run_root / name))}").exists()


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@contextmanager
def started(environment: dict[str, str], *arguments: str, **pipes: int) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which does not outlive the block."""
    with subprocess.Popen([*TESTBED, *arguments], env=environment, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def standing_names(run_root: Path) -> set[str]:
    return {path.name for path in run_root.glob("*/")}


# --- One testbed ------------------------------------------------------------------------------------------


def test_up_says_each_step_on_stderr_and_the_result_on_stdout(
    testbed: Callable[..., Done], run_root: Path
) -> None:
    done = testbed("up", "pair", "--name", "told", "--no-calibrate", "--format", "json")
    result = document(done)
    assert result["name"] == "told" and set(result["sites"]) == {"dc1", "dc2"}
    assert "s] Open vSwitch" in done.stderr
    # Its page is served until it goes down; `up` again finds it.
    record = json.loads((run_root / "told" / "page.json").read_text())
    assert result["page_url"] == record["url"]
    shown = httpx.get(f"{record['url']}api/document", timeout=30, trust_env=False).json()
    assert (shown["mode"], shown["title"]) == ("live", "told")
    again = document(testbed("up", "pair", "--name", "told", "--reuse", "--format", "json"))
    assert again["page_url"] == record["url"]
    assert start_ticks(record["pid"]) == record["started_ticks"]
    assert testbed("down", "told").stdout == "told is down\n"
    assert start_ticks(record["pid"]) != record["started_ticks"]


def test_up_again_is_refused_and_nothing_is_touched(pair: Callable[..., Done], run_root: Path) -> None:
    before = (run_root / "pair" / "testbed.json").read_text()
    again = pair("up", "pair")
    assert again.returncode == 2
    assert "'pair' is up already" in again.stderr and "down pair" in again.stderr
    assert (run_root / "pair" / "testbed.json").read_text() == before


def test_up_reuse_takes_what_stands_if_it_is_the_same_network(pair: Callable[..., Done]) -> None:
    again = pair("up", "pair", "--reuse", "--format", "json")
    assert document(again)["name"] == "pair"
    assert "up already" in again.stderr
    other = pair("up", "pair", "--reuse", "--scale", "0.5")
    assert other.returncode == 2 and "another network" in other.stderr


def test_list(pair: Callable[..., Done], run_root: Path) -> None:
    entries = {entry["name"]: entry for entry in document(pair("list", "--format", "json"))["testbeds"]}
    assert set(entries) == standing_names(run_root)
    entry = entries["pair"]
    assert (entry["topology"], entry["sites"]) == ("pair", 2)
    assert entry["run_dir"] == str(run_root / "pair")


def test_exec_passes_arguments_input_and_exit_code(pair: Callable[..., Done]) -> None:
    done = pair("exec", "dc2", "--", "sh", "-c", 'hostname; pwd; cat; echo "$1"; exit 7', "sh", "a b --name")
    assert done.returncode == 7
    assert done.stdout.splitlines()[0] == "dc2"
    assert done.stdout.splitlines()[1].endswith("/pair/sites/dc2/home")
    assert done.stdout.splitlines()[-1] == "a b --name"
    assert pair("exec", "pair", "dc1", "--", "cat", input="through\n").stdout == "through\n"
    assert pair("exec", "dc1", "--", "no-such-program").returncode == 127


def test_exec_reaches_the_other_site_over_the_wan(pair: Callable[..., Done]) -> None:
    done = pair("exec", "dc1", "--", "ping", "-q", "-c", "5", "-i", "0.1", "10.0.0.2")
    assert done.returncode == 0
    # The shortest: a busy machine only adds to a round trip.
    assert 19.5 < float(done.stdout.splitlines()[-1].split(" = ")[1].split("/")[0]) < 26


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("exec", "dc3", "--", "true"), ["no site 'dc3'", "dc"]),
        (("exec", "pear", "dc1", "--", "true"), ["'pear'", "did you mean pair?"]),
        (("shell", "dx1"), ["no site 'dx1'", "did you mean dc1?"]),
        (("ps", "dc9"), ["no site 'dc9'"]),
        (("link", "set", "dc1", "dc1", "--rate", "5mbit"), ["no link", "dc1"]),
        (("link", "set", "dc1", "dc7", "--rate", "5mbit"), ["no site 'dc7'"]),
        (("link", "show", "dc7"), ["no site 'dc7'"]),
        (("status", "par"), ["'par'", "did you mean pair?"]),
        (("down", "par"), ["'par'", "did you mean pair?"]),
        (("kill", "dc1", "999999"), ["999999"]),
    ],
)
def test_what_does_not_exist_is_named_with_the_nearest(
    pair: Callable[..., Done], arguments: tuple[str, ...], words: list[str]
) -> None:
    done = pair(*arguments)
    assert done.returncode == 2, done.stderr
    for word in words:
        assert word in done.stderr


def test_shell_is_a_login_shell_at_the_site(pair: Callable[..., Done]) -> None:
    done = pair("shell", "dc1", input="hostname\npwd\nexit 3\n")
    assert done.returncode == 3
    assert done.stdout.splitlines()[0] == "dc1"
    assert done.stdout.splitlines()[1].endswith("/sites/dc1/home")


def test_processes_are_listed_and_ended(pair: Callable[..., Done], environment: dict[str, str]) -> None:
    def sleeping() -> list[int]:
        rows = document(pair("ps", "dc2", "--format", "json"))["processes"]
        return [row["pid"] for row in rows if row["argv"] == ["sleep", "987"]]

    with started(environment, "exec", "dc2", "--", "sleep", "987"):
        assert eventually(lambda: bool(sleeping()))
        (pid,) = sleeping()
        assert "sleep 987" in pair("ps").stdout
        elsewhere = pair("kill", "dc1", str(pid))
        assert elsewhere.returncode == 2 and "not at this site" in elsewhere.stderr
        assert pair("kill", "dc2", str(pid)).returncode == 0
        assert sleeping() == []


def test_the_process_that_holds_a_site_is_not_ended_by_mistake(pair: Callable[..., Done]) -> None:
    rows = document(pair("ps", "dc1", "--format", "json"))["processes"]
    (holder,) = [row["pid"] for row in rows if "mininet:h1" in row["argv"]]
    refused = pair("kill", "dc1", str(holder))
    assert refused.returncode == 2 and "holds the namespaces" in refused.stderr
    assert pair("exec", "dc1", "--", "true").returncode == 0


def test_links_change_while_it_stands(pair: Callable[..., Done]) -> None:
    def rates() -> dict[tuple[str, str], float]:
        rows = document(pair("link", "show", "--format", "json"))["links"]
        return {(row["src"], row["dst"]): row["rate_bps"] for row in rows}

    changed = pair("link", "set", "dc1", "dc2", "--rate", "50mbit")
    assert (changed.returncode, changed.stdout) == (0, "dc1 - dc2: rate 50mbit\n")
    assert rates() == {("dc1", "dc2"): 50e6, ("dc2", "dc1"): 50e6}
    changed = pair("link", "set", "dc2", "dc1", "--rate", "20mbit", "--one-way")
    assert (changed.returncode, changed.stdout) == (0, "dc2 > dc1: rate 20mbit\n")
    assert rates() == {("dc1", "dc2"): 50e6, ("dc2", "dc1"): 20e6}
    assert pair("link", "reset").returncode == 0
    assert rates() == {("dc1", "dc2"): 100e6, ("dc2", "dc1"): 100e6}


def test_a_link_that_is_down_carries_nothing_until_it_is_up(pair: Callable[..., Done]) -> None:
    ping = ("exec", "dc1", "--", "ping", "-q", "-c", "2", "-W", "1", "-i", "0.2", "10.0.0.2")
    assert pair("link", "down", "dc1", "dc2").stdout == "dc1 - dc2: down\n"
    shown = document(pair("link", "show", "dc1", "dc2", "--format", "json"))["links"]
    assert [row["state"] for row in shown] == ["down", "down"]
    assert pair(*ping).returncode != 0
    assert pair("link", "up", "dc1", "dc2").stdout == "dc1 - dc2: up\n"
    assert eventually(lambda: pair(*ping).returncode == 0)


def test_verbs_that_change_links_tell_programs_what_became_of_them(pair: Callable[..., Done]) -> None:
    def told(*words: str) -> list[tuple[str, float, str]]:
        found = document(pair("link", *words, "--format", "json"))
        assert found["name"] == "pair"
        return [(row["src"], row["rate_bps"] / 1e6, row["state"]) for row in found["links"]]

    assert told("set", "dc2", "dc1", "--rate", "30mbit", "--one-way") == [("dc2", 30, "up")]
    assert told("blackhole", "dc1", "dc2") == [("dc1", 100, "blackhole")]
    assert told("blackhole", "dc1", "dc2", "--off") == [("dc1", 100, "up")]
    assert told("down", "dc1", "dc2") == [("dc1", 100, "down"), ("dc2", 30, "down")]
    assert told("up", "dc1", "dc2") == [("dc1", 100, "up"), ("dc2", 30, "up")]
    assert told("reset", "dc1", "dc2") == told("reset") == [("dc1", 100, "up"), ("dc2", 100, "up")]
    playing = document(pair("link", "vary", "uniform", "--every", "60s", "--format", "json"))
    assert playing["playing"] is True and playing["dynamics"]["kind"] == "uniform"
    stopped = document(pair("link", "vary", "--stop", "--format", "json"))
    assert stopped["playing"] is False and stopped["steps"] == 1


def test_status_shows_configured_against_achieved(
    pair: Callable[..., Done], environment: dict[str, str]
) -> None:
    sender = (
        "import socket\ns = socket.create_connection(('10.0.0.2', 5999))\nwhile True: s.send(bytes(65536))"
    )
    sink = (
        "import socket\nl = socket.create_server(('10.0.0.2', 5999))\nprint('ready', flush=True)\n"
        "c = l.accept()[0]\nwhile c.recv(65536): pass"
    )

    def used() -> float:
        rows = document(pair("status", "--format", "json"))["links"]
        return next(float(row["utilisation_ratio"]) for row in rows if row["src"] == "dc1")

    with started(environment, "exec", "dc2", "--", "python", "-c", sink, stdout=subprocess.PIPE) as receiving:
        assert receiving.stdout is not None and receiving.stdout.readline() == "ready\n"
        with started(environment, "exec", "dc1", "--", "python", "-c", sender):
            assert eventually(lambda: 0.8 < used() < 1.05)
    text = pair("status").stdout
    assert "dc1" in text and "no run is going on" in text
    assert document(pair("status", "--format", "json"))["healthy"]


def on_terminal(environment: dict[str, str], *arguments: str, until: str, send: bytes) -> tuple[int, str, str]:
    """Run the command on a terminal of its own; once `until` is on the screen, send keys. Returns the exit
    code,
    all that was written, and the part of it since the keys."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(
            sys.executable,
            [*TESTBED, *arguments],
            environment | {"TERM": "xterm", "COLUMNS": "140", "LINES": "40"},
        )
    screen, sent, deadline = b"", None, time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            ready, _, _ = select.select([terminal], [], [], 0.1)
            if ready:
                try:
                    got = os.read(terminal, 65536)
                except OSError:  # the other end is closed
                    break
                screen += got
            if sent is None and until.encode() in screen:
                os.write(terminal, send)
                sent = len(screen)
        else:
            pytest.fail(f"it did not end: {screen.decode()}")
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert sent is not None, screen.decode()
    return os.waitstatus_to_exitcode(status), screen.decode(), screen[sent:].decode()


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_watch_redraws_until_a_key_ends_it(
    pair: Callable[..., Done], environment: dict[str, str], key: bytes
) -> None:
    code, screen, rest = on_terminal(environment, "status", "--watch", until="up for", send=key)
    assert code == 0
    # At once: it draws a picture a second, and after the key at most the one that it was about to.
    assert rest.count("\x1b[H") <= 2
    assert "\x1b[?1049l" in screen  # the screen from before is back
    assert screen.count("\x1b[?1049h") == 1
    # Every picture begins where the last one did, and none scrolls the terminal.
    pictures = screen.split("\x1b[H")[2:]
    assert pictures and all(picture.count("\n") < 40 for picture in pictures)


def test_watch_into_a_pipe_is_one_document_a_second(
    pair: Callable[..., Done], environment: dict[str, str]
) -> None:
    with started(environment, "status", "--watch", "--format", "json", stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        shown = [json.loads(watching.stdout.readline()) for _ in range(4)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 0
    assert all(one["schema"] == 1 for one in shown)
    # A second after the look before was begun, and what a busy machine adds: the usual one of three.
    assert 0.8 < statistics.median(b["up_s"] - a["up_s"] for a, b in pairwise(shown)) < 3


def test_next_steps_are_commands_that_work(pair: Callable[..., Done]) -> None:
    text = pair("next-steps").stdout
    (line,) = [line for line in text.splitlines() if " exec " in line]
    words = line.split("  ")[0].split()
    assert words[0] == "testbed"
    assert pair(*words[1:]).returncode == 0


# --- Two testbeds, interrupts, deaths ---------------------------------------------------------------------


def test_two_testbeds_have_to_be_told_apart(pair: Callable[..., Done], run_root: Path) -> None:
    assert pair("up", "pair", "--name", "second", "--no-calibrate", "--no-page").returncode == 0
    assert not (run_root / "second" / "page.json").exists()
    for arguments in (("status",), ("down",), ("link", "show"), ("exec", "dc1", "--", "true"), ("ps",)):
        done = pair(*arguments)
        assert done.returncode == 2
        assert "pair, second" in done.stderr
    assert pair("exec", "second", "dc1", "--", "hostname").stdout == "dc1\n"
    assert pair("exec", "dc1", "--name", "pair", "--", "hostname").stdout == "dc1\n"
    assert pair("down", "second").returncode == 0
    assert pair("exec", "dc1", "--", "true").returncode == 0


def test_ctrl_c_during_up_takes_everything_down_again(
    testbed: Callable[..., Done], environment: dict[str, str], run_root: Path
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with started(environment, "up", "triangle", "--name", "stopped", stderr=subprocess.PIPE) as starting:
            assert starting.stderr is not None
            for line in starting.stderr:
                if "controller" in line:
                    break
            starting.send_signal(number)
            _, rest = starting.communicate(timeout=90)
        assert starting.returncode == 130
        assert "interrupted" in rest and "Traceback" not in rest
        assert not (run_root / "stopped").exists()
        assert not has_interface(run_root, "stopped")


def test_after_a_killed_supervisor_clean_and_up_work_and_the_other_stands(
    pair: Callable[..., Done], run_root: Path
) -> None:
    assert pair("up", "pair", "--name", "doomed", "--no-calibrate").returncode == 0
    assert has_interface(run_root, "doomed")
    # What it consists of can be killed, as an experiment may want; that is told at once, and afterwards.
    rows = document(pair("ps", "dc2", "--name", "doomed", "--format", "json"))["processes"]
    (door,) = [row["pid"] for row in rows if row["name"] == "sshd"]
    killed = pair("kill", "dc2", str(door), "--name", "doomed")
    assert killed.returncode == 0 and "the sshd of dc2" in killed.stderr and "unhealthy" in killed.stderr
    rows = document(pair("ps", "dc1", "--name", "doomed", "--format", "json"))["processes"]
    (door,) = [row["pid"] for row in rows if row["name"] == "sshd"]
    assert pair("exec", "doomed", "dc1", "--", "kill", str(door)).returncode == 0
    assert eventually(lambda: "sshd of dc1, sshd of dc2" in pair("status", "doomed").stdout)
    refused = pair("run", "tiny-pair", "--name", "doomed")
    assert refused.returncode == 4 and "sshd of dc1" in refused.stderr
    os.kill(json.loads((run_root / "doomed" / "testbed.json").read_text())["supervisor_pid"], signal.SIGKILL)
    assert eventually(lambda: not has_interface(run_root, "doomed"), GONE_S)
    # The page is a process of the machine's own namespaces, and ends with the testbed all the same.
    page = json.loads((run_root / "doomed" / "page.json").read_text())
    assert eventually(lambda: start_ticks(page["pid"]) != page["started_ticks"])
    gone = pair("exec", "doomed", "dc1", "--", "true")
    assert gone.returncode == 2 and "'doomed' has ended" in gone.stderr and "clean doomed" in gone.stderr
    listed = {entry["name"] for entry in document(pair("list", "--format", "json"))["testbeds"]}
    assert "pair" in listed and "doomed" not in listed
    rows = document(pair("doctor", "--quick", "--format", "json"))["checks"]
    (leftovers,) = [row for row in rows if row["name"] == "leftovers"]
    assert leftovers["state"] == "degraded" and "doomed" in leftovers["found"]
    assert "doomed" in pair("clean").stdout
    assert pair("clean").stdout == "nothing was left\n"
    assert pair("up", "pair", "--name", "doomed", "--no-calibrate", "--no-page").returncode == 0
    assert pair("down", "doomed").returncode == 0
    assert pair("exec", "pair", "dc1", "--", "true").returncode == 0


def test_the_doctor_tries_a_throw_away_pair_beside_what_stands(pair: Callable[..., Done], run_root: Path) -> None:
    before = standing_names(run_root)
    found = document(pair("doctor", "--format", "json"))
    rows = {row["name"]: row for row in found["checks"]}
    assert found["fit"] is True
    assert rows["tcp"]["state"] in ("ok", "degraded")  # a busy machine may carry less
    assert rows["site names"]["state"] == rows["ssh sessions"]["state"] == "ok", rows
    assert rows["ssh sessions"]["found"].startswith("33 at once")
    assert rows["gloo"]["state"] == "ok" and "crossed" in rows["gloo"]["found"], rows
    assert standing_names(run_root) == before


def test_a_testbed_without_real_time_scheduling_says_so_for_good(
    environment: dict[str, str], pair: Callable[..., Done]
) -> None:
    less = ["setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"]
    up = [*less, *TESTBED, "up", "pair", "--name", "unhurried", "--no-calibrate", "--format", "json"]
    done = subprocess.run(up, env=environment, capture_output=True, text=True, timeout=120)
    try:
        (limit,) = json.loads(done.stdout)["limits"]
        assert "real-time scheduling" in limit
        assert limit in done.stderr
    finally:
        assert pair("down", "unhurried").returncode == 0


def test_clean_refuses_what_stands(pair: Callable[..., Done]) -> None:
    refused = pair("clean", "pair")
    assert refused.returncode == 2 and "is up" in refused.stderr
    assert pair("exec", "dc1", "--", "true").returncode == 0


def test_calibrate_gives_a_row_a_direction_and_a_verdict(pair: Callable[..., Done]) -> None:
    done = pair("calibrate", "--format", "json")
    result = json.loads(done.stdout)
    assert result["verdict"] in ("faithful", "degraded", "saturated")
    assert done.returncode == (3 if result["verdict"] == "degraded" else 0)
    assert [(link["src"], link["dst"]) for link in result["links"]] == [("dc1", "dc2"), ("dc2", "dc1")]


def test_a_watch_ends_when_its_testbed_goes_down(
    pair: Callable[..., Done], environment: dict[str, str], run_root: Path
) -> None:
    arguments = ("status", "pair", "--watch", "--format", "json")
    with started(environment, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        watching.stdout.readline()
        assert pair("down", "pair").returncode == 0
        _, said = watching.communicate(timeout=60)
    assert watching.returncode == 0, said
    assert "pair is down" in said
    assert "pair" not in standing_names(run_root)
