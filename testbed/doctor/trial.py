"""Rows from a throw-away testbed of two sites: what no look at the machine can tell, tried for real.

TCP over a shaped link with delay, names and gloo between the sites, many SSH sessions at one sshd. The
testbed is made with the very code of `up`, and is gone when the rows are there.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from testbed import sites
from testbed.client import SupervisorClient
from testbed.doctor.rows import Check, degraded, missing, ok, rows_of
from testbed.emulation import launch
from testbed.emulation.environment import PYTHON, base_environment
from testbed.emulation.rundir import TestbedInfo
from testbed.emulation.sites import enter_argv
from testbed.emulation.waiting import wait_for
from testbed.runner import run
from topologies.addressing import host_intf, wan_ip
from topologies.errors import DeadlineError, StormbedError
from topologies.load import topology_from_dict

RATE: Final = "100mbit"
DELAY: Final = "5ms"
PAIR: Final = {
    "name": "doctor",
    "sites": {"west": {}, "east": {}},
    "links": [{"endpoints": ["west", "east"], "rate": RATE, "delay": DELAY}],
}
LINK: Final = f"a {RATE} link with {DELAY} of delay"
SESSIONS: Final = 33
"""One more than a sweep over 32 sites opens at a time; sshd's own limits (MaxStartups, MaxSessions) are 10."""
SESSIONS_S: Final = 30.0
TCP_S: Final = 1.0
LEAST_TCP_BYTES: Final = 1_000_000
BAND: Final = (0.85, 1.25)
"""Of the declared rate. TCP's payload is at most 0.956 of it, and the machine may be busy: less is carried then, or
what it held up before the second that counts arrives in it as well. Without shaping it is tens of times the rate."""
GLOO_PORT: Final = 29_500
GLOO_S: Final = 60.0
GLOO_SUM: Final = 750_000
"""250,000 elements, 1 from one rank and 2 from the other."""
GLOO_BYTES: Final = 1_000_000
ALLOWANCE: Final = 0.9


def check_trial() -> list[Check]:
    """Bring a pair up, try it, take it away. Not while a run goes on, which it would disturb."""
    busy = _runs()
    if busy:
        return [degraded("trial", f"not tried while {' and '.join(busy)} goes on", "what the rows above say")]
    started = time.monotonic()
    with _pair() as info:
        up_s = time.monotonic() - started
        found: list[Check] = []
        for name, attempt in TRIES.items():
            found += rows_of(name, partial(attempt, info))
    down_s = time.monotonic() - started - up_s
    return [ok("trial", f"two sites up in {up_s:.1f} s, tried and down in {down_s:.1f} s"), *found]


def _runs() -> list[str]:
    """The runs that go on at any testbed of this machine."""
    from testbed.experiments.readiness import current_job
    from testbed.standing import standing

    found = []
    for info in standing():
        try:
            job = current_job(info)
        except StormbedError:
            continue  # its coordinator is gone, and no run goes on without one
        if job is not None:
            found.append(f"the run {job} on {info.name}")
    return found


@contextmanager
def _pair() -> Iterator[TestbedInfo]:
    name = f"doctor-{os.getpid()}"
    info = launch.up(topology_from_dict(PAIR), name, calibrate=False, allow_degraded=True)
    try:
        yield info
    finally:
        launch.down(name)


def try_tcp(info: TestbedInfo) -> Check:
    """TCP from host to host over the shaped link; where offloads go wrong, ping passes and this does not."""
    found = SupervisorClient(info.name).call("link_test", src="west", dst="east", seconds=TCP_S)
    return judge_tcp(found)


def judge_tcp(found: dict[str, Any]) -> Check:
    """The row of a `link_test` of one second. Pure."""
    ratio = found["carried_bps"] / found["least_rate_bps"]
    rtt = "no round trip" if found["rtt_s"] is None else f"round trip {found['rtt_s'] * 1e3:.1f} ms"
    text = f"{found['carried_bps'] / 1e6:.1f} Mbit/s over {LINK}, {rtt}"
    if found["carried_bps"] * TCP_S / 8 < LEAST_TCP_BYTES or found["rtt_s"] is None:
        return missing(
            "tcp",
            f"{text}: less than {LEAST_TCP_BYTES / 1e6:g} MB came through",
            "see `testbed up pair` and its ovs/ovs-vswitchd.log: checksums of the switches may be wrong",
        )
    if ratio > BAND[1]:
        return missing("tcp", f"{text}: the link is not shaped", "use a kernel with a working sch_htb")
    if ratio < BAND[0]:
        return degraded("tcp", text, "what this machine carries; read the verdict of `up` before any number")
    return ok("tcp", text)


def try_names(info: TestbedInfo) -> Check:
    """At a site its own name and the others' are WAN addresses; where they are loopback, gloo hangs."""
    expected = {name: site.wan_ip for name, site in info.sites.items()}
    found = {}
    for name in expected:
        said = run(enter_argv(info.name, "west", ["getent", "ahostsv4", name]), timeout=10, check=False)
        found[name] = said.stdout.split()[0] if said.stdout else "nothing"
    hostname = run(enter_argv(info.name, "west", ["hostname"]), timeout=10).stdout.strip()
    text = ", ".join(f"{name} is {address}" for name, address in found.items())
    if found != expected or hostname != "west":
        return missing(
            "site names", f"at {hostname}: {text}", "let `hosts: files` come first in /etc/nsswitch.conf"
        )
    return ok("site names", f"at site west: {text}")


def try_gloo(info: TestbedInfo) -> Check:
    """torch's own all-reduce between the two sites, which has to cross the WAN."""
    if importlib.util.find_spec("torch") is None:
        return degraded("gloo", "not tried without torch", "numpy workers only")
    client = SupervisorClient(info.name)
    before = _carried(client)
    started = time.monotonic()
    master = f"{wan_ip(0)}:{GLOO_PORT}"
    with ExitStack() as ending:
        ranks = []
        for rank, name in enumerate(info.sites):
            argv = [PYTHON, "-m", "agents.worker.gloo_pair", "--rank", str(rank), "--master", master]
            environment = base_environment() | sites.site_environment(info.run_dir, name)
            environment["GLOO_SOCKET_IFNAME"] = host_intf(rank)
            process = subprocess.Popen(
                enter_argv(info.name, name, argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                env=environment,
            )
            ending.callback(_end, process)
            ranks.append(process)
        sums = []
        for process in ranks:
            try:
                out, err = process.communicate(timeout=max(1.0, started + GLOO_S - time.monotonic()))
            except subprocess.TimeoutExpired:
                return missing("gloo", f"no sum within {GLOO_S:g} s", "use the backend stormbed instead")
            if process.returncode != 0:
                return missing("gloo", " ".join(err.strip().split("\n")[-1:]), "reinstall torch")
            sums.append(int(out))
    crossed = _carried(client) - before
    if sums != [GLOO_SUM, GLOO_SUM]:
        return missing("gloo", f"two ranks came to {sums}, not {GLOO_SUM}", "reinstall torch")
    if crossed < ALLOWANCE * GLOO_BYTES:
        return missing(
            "gloo", f"only {crossed} bytes crossed the WAN", "unset GLOO_SOCKET_IFNAME in what starts workers"
        )
    took_s = time.monotonic() - started
    return ok("gloo", f"an all-reduce of 1 MB between two sites, {crossed / 1e6:.1f} MB crossed, in {took_s:.1f} s")


def _carried(client: SupervisorClient) -> int:
    """Bytes that both directions of the only link have carried."""
    return sum(int(link["bytes"]) for link in client.call("sample")["links"])


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def try_sessions(info: TestbedInfo) -> Check:
    """Many SSH sessions at one site at once, each by a connection of its own, all logged in together."""
    ssh = ["ssh", "-F", str(sites.ssh_config_path(info.run_dir)), "west", "echo in; cat"]
    folder = info.run_dir / "doctor"
    folder.mkdir()
    started = time.monotonic()
    with ExitStack() as ending:
        outputs = []
        for number in range(SESSIONS):
            outputs.append(folder / f"{number}.out")
            out = ending.enter_context(outputs[-1].open("wb"))
            err = ending.enter_context((folder / f"{number}.err").open("wb"))
            # Each waits for the end of its input, so that none is over before the last one is in.
            process = subprocess.Popen(ssh, stdin=subprocess.PIPE, stdout=out, stderr=err)
            ending.callback(_close, process)
        try:
            wait_for(lambda: _inside(outputs) == SESSIONS, "the sessions to be open", SESSIONS_S, step=0.1)
        except DeadlineError:
            said = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.err")) if path.stat().st_size]
            return missing(
                "ssh sessions",
                f"{_inside(outputs)} of {SESSIONS} at once within {SESSIONS_S:g} s"
                + (f": {said[0].strip()}" if said else ""),
                f"see {sites.SiteFiles(info.run_dir, 'west').log.name} of a site of `testbed up pair`",
            )
    return ok("ssh sessions", f"{SESSIONS} at once at one sshd in {time.monotonic() - started:.1f} s")


def _inside(outputs: list[Path]) -> int:
    return sum(path.stat().st_size > 0 for path in outputs)


def _close(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


TRIES: Final[dict[str, Callable[[TestbedInfo], Check]]] = {
    "tcp": try_tcp,
    "site names": try_names,
    "gloo": try_gloo,
    "ssh sessions": try_sessions,
}
