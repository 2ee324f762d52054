"""A testbed lives and dies as a whole, and leaves nothing."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.client import SupervisorClient
from testbed.emulation import launch, management, possible
from testbed.emulation.rundir import RunDir, read_info
from testbed.emulation.sites import enter_argv, host_pids
from testbed.emulation.waiting import start_ticks, wait_for
from testbed.events import read_events
from testbed.standing import find
from tests.emulated.conftest import GONE_S, Leftovers, Standing, made_names
from topologies.errors import CannotHonourError, StormbedError, UsageError
from topologies.load import load_topology, topology_from_dict

pytestmark = pytest.mark.emulated

# A step that its second argument begins is its last: it waits there, so that it is killed nowhere else.
UP = """
import sys
from testbed.emulation import launch
from topologies.load import load_topology
def say(text):
    print(text, flush=True)
    if text.startswith(tuple(sys.argv[2:])): sys.stdin.read()
launch.up(load_topology("pair"), sys.argv[1], on_progress=say, calibrate=False)
"""


def host_marks() -> tuple[set[str], int]:
    """What a leak of this test session adds to: interfaces, run directories, mounts and children; open files."""
    gc.collect()  # what only the garbage of earlier tests still holds is no leak
    names = made_names
    marks = {f"directory of {name}" for name in names if RunDir.of(name).path.exists()}
    ours = {management.interface_name(RunDir.of(name)) for name in names}
    marks |= {f"interface {path.name}" for path in Path("/sys/class/net").iterdir() if path.name in ours}
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    marks |= {line for line in mounts if any(f"{name}/" in line or f"{name} " in line for name in names)}
    marks |= {f"child {pid}" for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    return marks, len(list(Path("/proc/self/fd").iterdir()))


def leaked_since(before: tuple[set[str], int]) -> list[str]:
    """What there is now that was not there then. What has gone meanwhile was an earlier test's."""
    marks, files = host_marks()
    more = files - before[1]
    return sorted(marks - before[0]) + ([f"{more} open files"] if more > 0 else [])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def calling_up(name: str, *last: str, program: str = UP) -> Iterator[subprocess.Popen[str]]:
    """A process that brings a testbed up, killed at the latest when the test leaves it behind."""
    with subprocess.Popen(
        [sys.executable, "-c", program, name, *last],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until_it_says(process: subprocess.Popen[str], step: str) -> None:
    while not process.stdout.readline().startswith(step):
        assert process.poll() is None, process.stderr.read()


@pytest.fixture(scope="module")
def standing(bring):
    """One for all tests that leave it as it was."""
    return bring("pair")


def nothing_has_ended(testbed: Standing) -> bool:
    """Whether all that belongs to the testbed runs; what tests have started there may end."""
    status = testbed.client.call("status")
    own = [p for p in status["processes"] if p["name"] not in ("nap", "talk")]
    return status["phase"] == "up" and all(p["status"] is None for p in own)


def test_status_tells_what_runs(standing) -> None:
    status = standing.client.call("status")
    assert (status["phase"], status["healthy"], status["name"]) == ("up", True, standing.name)
    running = {(p["name"], p["site"]) for p in status["processes"]}
    assert {("controller", None), ("delay-line", None), ("sshd", "dc1"), ("prometheus", None)} <= running
    assert read_info(RunDir.of(standing.name)).state == "up"
    assert standing.name in {listed.name for listed in launch.list_testbeds() if listed.alive}


def test_a_site_is_entered_by_the_pid_that_is_written_down(standing) -> None:
    for name, site in standing.info.sites.items():
        assert standing.site(name).run("hostname").strip() == name
        assert standing.site(name).run("ps", "-o", "pid=,comm=", "1").split() == ["1", "tini"]
        assert start_ticks(site.pid) is not None
    with pytest.raises(UsageError, match=r"no site 'dc3'"):
        enter_argv(standing.name, "dc3", ["true"])
    with pytest.raises(UsageError, match="no testbed 'nobody' is up"):
        enter_argv("nobody", "dc1", ["true"])


def test_processes_are_started_seen_and_ended_at_a_site(standing) -> None:
    started = standing.client.call("spawn", site="dc1", argv=["sleep", "1000"], env={"WORD": "w"}, name="nap")
    seen = {p["pid"]: p for p in standing.client.call("processes", site="dc1")}
    assert seen[started["pid"]]["argv"] == ["sleep", "1000"] and seen[started["pid"]]["name"] == "nap"
    assert started["pid"] not in {p["pid"] for p in standing.client.call("processes", site="dc2")}
    with pytest.raises(UsageError, match="is not at this site"):
        standing.client.call("kill", site="dc2", pid=started["pid"])
    standing.client.call("kill", site="dc1", pid=started["pid"], signal_name="SIGKILL")

    def ended() -> bool:
        entries = [p for p in standing.client.call("processes", site="dc1") if p["pid"] == started["pid"]]
        return bool(entries) and entries[0]["status"] == -signal.SIGKILL

    wait_for(ended, "the death to be noticed", 20)
    (event,) = [
        e for e in read_events(RunDir.of(standing.name).events, "process_ended") if e["pid"] == started["pid"]
    ]
    assert event["site"] == "dc1" and event["status"] == -9
    assert not standing.client.call("status")["healthy"], "a process that has ended is not kept quiet"


def test_what_a_process_says_is_in_its_log(standing) -> None:
    program = "import os; print(os.environ['STORMBED_SITE'], os.environ['WORD'], 'http_proxy' in os.environ)"
    process = standing.client.call(
        "spawn", site="dc2", argv=[sys.executable, "-c", program], env={"WORD": "w"}, name="talk"
    )
    wait_for(lambda: Path(process["log"]).read_text() == "dc2 w False\n", "the log", 20)


def test_what_is_spawned_is_at_its_site_when_that_is_answered(standing) -> None:
    """It can be ended at once, and nobody sees the programs that led it there."""
    for _ in range(10):
        started = standing.client.call("spawn", site="dc1", argv=["sleep", "1001"], name="nap")
        argv = Path(f"/proc/{host_pids(standing.info.init_pid)[started['pid']]}/cmdline").read_bytes()
        assert argv == b"sleep\0" + b"1001\0"
        standing.client.call("kill", site="dc1", pid=started["pid"], signal_name="SIGKILL")


@pytest.mark.parametrize("victim", ["pid", "init_pid", "supervisor_pid"])
def test_killing_any_of_its_first_processes_ends_everything_and_no_other_testbed(
    bring, standing, victim
) -> None:
    doomed, other = bring("pair"), standing
    doomed.client.call("spawn", site="dc1", argv=["setsid", "sleep", "1000"])
    leftovers = Leftovers(doomed.info)
    assert len(leftovers.find()) > 20
    os.kill(getattr(doomed.info, victim), signal.SIGKILL)
    leftovers.gone_within(GONE_S)
    assert nothing_has_ended(other)
    other.site("dc1").run("ping", "-c", "1", "-W", "10", other.wan_ip("dc2"))
    listed = {entry.name: entry.alive for entry in launch.list_testbeds()}
    assert (listed[doomed.name], listed[other.name]) == (False, True)
    with pytest.raises(UsageError, match="is up"):
        launch.clean(other.name)
    assert launch.clean(doomed.name) == [doomed.name]
    assert not RunDir.of(doomed.name).path.exists()


def test_a_dead_testbeds_name_can_be_used_at_once(bring, unique_name) -> None:
    name = unique_name()
    info = launch.up(load_topology("pair"), name, calibrate=False)
    try:
        os.kill(info.pid, signal.SIGKILL)
        again = launch.up(load_topology("pair"), name, calibrate=False)
        assert again.init_pid != info.init_pid
        assert SupervisorClient(name).call("status")["healthy"]
    finally:
        launch.down(name)


def test_up_and_down_leak_nothing(unique_name, standing) -> None:
    """Five cycles; after the first, which may load what Python had not, memory does not grow either."""
    before, memory = host_marks(), []
    for _ in range(5):
        name = unique_name()
        info = launch.up(load_topology("pair"), name, calibrate=False)
        leftovers = Leftovers(info)
        launch.down(name)
        leftovers.gone_within(GONE_S)
        assert leaked_since(before) == []
        memory.append(resident_bytes())
    assert memory[-1] - memory[0] < 4 * 2**20, memory


def test_two_testbeds_with_one_name_cannot_be(standing) -> None:
    before = host_marks()
    with pytest.raises(UsageError, match=rf"a testbed '{standing.name}' is up already .*testbed down"):
        launch.up(load_topology("pair"), standing.name)
    assert leaked_since(before) == []
    assert nothing_has_ended(standing)


def test_an_interrupted_up_leaves_nothing(unique_name) -> None:
    before, name = host_marks(), unique_name()
    with calling_up(name, "controller") as process:
        until_it_says(process, "controller")
        leftovers = Leftovers(read_info(RunDir.of(name)))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) != 0
        assert "KeyboardInterrupt" in process.stderr.read()
    assert not leftovers.find() and not RunDir.of(name).path.exists()
    assert leaked_since(before) == []


@pytest.mark.parametrize("step", ["Open vSwitch", "processes of the sites", "up after"])
def test_an_up_whose_caller_is_killed_ends_by_itself(unique_name, step) -> None:
    name = unique_name()
    with calling_up(name, step) as process:
        until_it_says(process, step)
        leftovers = Leftovers(read_info(RunDir.of(name)))
        process.kill()
        process.wait()
    leftovers.gone_within(GONE_S)
    with pytest.raises(UsageError, match=rf"testbed '{name}' has ended, .* has left files .`testbed clean {name}`"):
        find(name)
    assert launch.clean(name) == [name]
    with pytest.raises(UsageError, match=rf"no testbed '{name}' is up"):
        find(name)


def test_a_caller_killed_between_the_boot_and_the_writing_down_leaves_nothing_standing(unique_name) -> None:
    """All is up and nothing says so yet: a testbed that no `down` would find must not stay."""
    name = unique_name()
    waits = "launch._complete = lambda *_: (say('there'), sys.stdin.read())\n"
    stop_there = UP.replace("launch.up(", waits + "launch.up(")
    with calling_up(name, program=stop_there) as process:
        until_it_says(process, "there")
        leftovers = Leftovers(read_info(RunDir.of(name)))
        assert SupervisorClient(name).call("ping")["phase"] == "up"
        process.kill()
        process.wait()
    leftovers.gone_within(GONE_S)
    (event,) = read_events(RunDir.of(name).events, "abandoned")
    assert event["phase"] == "up"
    assert [listed.alive for listed in launch.list_testbeds() if listed.name == name] == [False]
    assert launch.clean(name) == [name]


def test_a_part_that_does_not_start_is_named_and_nothing_stays(unique_name, monkeypatch) -> None:
    """A Prometheus configuration that cannot be read: `up` fails with that program's own words."""
    from testbed.telemetry import prometheus

    before = host_marks()
    monkeypatch.setattr(prometheus, "config", lambda run_dir: "scrape_configs: {not: a list}\n")
    with pytest.raises(StormbedError, match=r"the prometheus ended with status \d+: .*cannot unmarshal"):
        launch.up(load_topology("pair"), unique_name(), calibrate=False)
    assert leaked_since(before) == []


def test_too_many_sites_and_a_missing_program_are_refused_before_anything_is_made(
    unique_name, monkeypatch
) -> None:
    before = host_marks()
    many = {"name": "t", "defaults": {"rate": "1mbit"}, "sites": {f"s{k}": {} for k in range(251)}}
    many["links"] = [{"endpoints": [f"s{k}", f"s{k + 1}"]} for k in range(250)]
    with pytest.raises(
        CannotHonourError, match=r"251 sites and the emulator holds 250 .the simulated world takes them"
    ):
        launch.up(topology_from_dict(many), unique_name())
    fast = {"name": "t", "defaults": {"rate": "10gbit"}, "sites": {"a": {}, "b": {}}}
    fast["links"] = [{"endpoints": ["a", "b"], "delay": "1ms"}]
    with pytest.raises(CannotHonourError, match=r"at most 1.25gbit .*and 1 more.*--scale 0.125 would fit"):
        launch.up(topology_from_dict(fast), unique_name())
    monkeypatch.setattr(possible, "PROGRAMS", possible.PROGRAMS | {"no-such-program": "no-such-package"})
    with pytest.raises(
        CannotHonourError, match=r"no-such-program is missing .apt-get install no-such-package"
    ):
        launch.up(load_topology("pair"), unique_name())
    assert leaked_since(before) == []


def test_every_subnet_taken_is_refused_before_anything_is_made(unique_name, monkeypatch) -> None:
    before = host_marks()
    monkeypatch.setattr(management, "networks_in_use", lambda: ["10.199.0.0/16", "10.198.0.0/16"])
    with pytest.raises(CannotHonourError, match=r"10\.199\.0\.0/16 and 10\.198\.0\.0/16 is in use on this machine"):
        launch.up(load_topology("pair"), unique_name())
    assert leaked_since(before) == []


def test_down_of_nothing_is_an_error() -> None:
    with pytest.raises(UsageError, match="there is no testbed 'nobody'"):
        launch.down("nobody")


def test_the_socket_answers_nonsense_with_errors_and_goes_on(standing) -> None:
    def ask(line: bytes) -> dict:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(RunDir.of(standing.name).socket))
            connection.sendall(line + b"\n")
            return json.loads(connection.makefile().readline())

    for line in (
        b"",
        b"{",
        b"[]",
        b"3",
        b'{"verb": 3}',
        b'{"no": "verb"}',
        b'{"verb": "nonsense"}',
        b"\xff\xfe",
    ):
        answer = ask(line)
        assert answer["ok"] is False and answer["error"]["kind"] == "UsageError", line
        assert answer["error"]["exit_code"] == 2
    with pytest.raises(UsageError, match="links: got an unexpected keyword argument 'x'"):
        standing.client.call("links", x=1)
    with pytest.raises(UsageError, match="is up already"):
        standing.client.call("boot")
    assert standing.client.call("ping")["phase"] == "up"


def test_readers_are_answered_while_something_is_changed(standing) -> None:
    """Calibration holds the links for seconds; status and counters must not wait for it."""
    results: list[dict] = []
    thread = threading.Thread(target=lambda: results.append(standing.client.call("calibrate", seconds=1.0)))
    began = time.monotonic()
    thread.start()
    answered: list[float] = []
    while thread.is_alive():
        started = time.monotonic()
        standing.client.call("sample")
        answered.append(time.monotonic() - started)
    thread.join()
    spent = time.monotonic() - began
    assert results[0]["verdict"] in ("faithful", "degraded", "saturated")
    # Who waited for it would be answered once, at its end; on a busy machine both take longer.
    assert len(answered) >= 5 and max(answered) < spent / 2


def test_events_tell_the_story(standing) -> None:
    kinds = [event["kind"] for event in read_events(RunDir.of(standing.name).events)]
    assert {"boot", "command", "process_started", "realtime"} <= set(kinds)
    commands = list(read_events(RunDir.of(standing.name).events, "command"))
    assert all("seconds_s" in event and event["status"] == 0 for event in commands), (
        "no command failed on the way"
    )


def test_a_testbed_whose_delay_line_has_ended_still_tells_what_it_is(bring) -> None:
    testbed = bring("pair")
    (line,) = [p for p in testbed.client.call("status")["processes"] if p["name"] == "delay-line"]
    testbed.client.call("kill", pid=line["pid"], signal_name="SIGKILL")
    wait_for(lambda: not testbed.client.call("status")["healthy"], "the supervisor to notice", 20)
    assert [(row["state"], row["delay_line"]) for row in testbed.client.call("links")] == [("up", None)] * 2
    assert len(testbed.client.call("sample")["links"]) == 2
