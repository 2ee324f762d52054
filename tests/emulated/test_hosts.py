"""Machines and containers whose settings are against a testbed: it comes up all the same, and says what differs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed.emulation import congestion
from tests.emulated.conftest import Bring, Site
from tests.emulated.host import TESTBED, Host

pytestmark = pytest.mark.emulated

ROOT = Path(__file__).parents[2]

TAKE = """
import socket, sys
listener = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
peer, _ = listener.accept()
print(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).strip(b"\\0").decode())
"""
SEND = """
import socket, sys
sock = socket.socket()
for name in sys.argv[2:]:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
sock.connect((sys.argv[1], 5000))
print(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).strip(b"\\0").decode())
"""


def congestion_controls(testbed: str, *chosen: str) -> tuple[str, str]:
    """What both ends of a connection across the WAN of a pair use.

    Args:
        chosen: what the end that connects has chosen before, if anything.
    """
    taker = Site(testbed, "dc2").start_python(TAKE, "10.0.0.2")
    assert taker.stdout is not None and taker.stdout.readline() == "ready\n"
    sender = Site(testbed, "dc1").python(SEND, "10.0.0.2", *chosen)
    return sender.strip(), taker.communicate(timeout=60)[0].strip()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    host = Host(tmp_path)
    monkeypatch.setenv("STORMBED_RUN_ROOT", host.environment["STORMBED_RUN_ROOT"])
    yield host
    host.end()


def works(host: Host, name: str, **how: Any) -> None:
    """A pair of sites comes up, a short experiment and a session run on it, and it goes without a trace."""
    mounts = host.prepare("cat /proc/self/mounts")
    for words in (("up", "pair", "--name", name, "--no-page"), ("run", "tiny-pair", "--name", name)):
        done = host.testbed(*words, **how)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "completed" in done.stdout
    host.prepare(f'ssh -F "{host.environment["STORMBED_RUN_ROOT"]}/{name}/ssh_config" dc1 true')
    down = host.testbed("down", name, **how)
    assert down.returncode == 0, down.stdout + down.stderr
    assert host.leftovers() == []
    assert host.prepare("cat /proc/self/mounts") == mounts


@pytest.mark.usefixtures("only_reno")
def test_a_machine_that_allows_sites_only_reno_allows_them_cubic_from_up_on(bring: Bring) -> None:
    told: list[str] = []
    testbed = bring("pair", on_progress=told.append)
    assert sum("cubic is now allowed" in line for line in told) == 1
    assert congestion.allowed() == ["reno", "cubic"]
    assert testbed.info.limits == ()
    assert testbed.site("dc1").run("cat", str(congestion.DEFAULT)).strip() == "cubic"
    assert congestion_controls(testbed.name) == ("cubic", "cubic")
    assert congestion_controls(testbed.name, "reno") == ("reno", "cubic"), "a program chooses for itself"
    again: list[str] = []
    bring("pair", on_progress=again.append)
    assert not any("allowed" in line for line in again)


@pytest.mark.usefixtures("only_reno")
def test_a_container_that_cannot_allow_anything_has_cubic_across_the_wan(
    host: Host, unique_name: Callable[[], str]
) -> None:
    name = unique_name()
    up = host.testbed("up", "pair", "--name", name, "--no-page")
    assert up.returncode == 0 and "does not let sites default to cubic" in up.stdout, up.stderr
    assert Site(name, "dc1").run("cat", str(congestion.DEFAULT)).strip() != "cubic"
    assert congestion_controls(name) == ("cubic", "cubic")
    assert congestion_controls(name, "reno") == ("cubic", "cubic"), "said so: routes override a program"
    assert host.testbed("run", "tiny-pair", "--name", name).returncode == 0
    assert host.testbed("down", name).returncode == 0
    assert congestion.allowed() == ["reno"]
    doctor = host.testbed("doctor", "--quick")
    assert doctor.returncode == 0 and "cubic, set on the routes" in doctor.stdout


def test_a_kernel_without_the_wanted_one_uses_reno_and_says_so(
    bring: Bring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(congestion, "WANTED", "nonesuch")
    testbed = bring("pair")
    assert [limit for limit in testbed.info.limits if "does not offer cubic" in limit]
    assert congestion_controls(testbed.name) == ("reno", "reno")


HOSTILE: dict[str, dict[str, Any]] = {
    "no UTF-8": {"environment": {"LC_ALL": "C", "PYTHONUTF8": "0"}},
    "proxies": {
        "environment": dict.fromkeys(("http_proxy", "https_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
    },
    "no HOME": {"environment": {"HOME": None, "USER": None, "LOGNAME": None}},
    "a bare PATH": {"environment": {"PATH": "/nowhere"}},
    "no PATH": {"environment": {"PATH": None}},
    "sudo": {"environment": {"SUDO_USER": "somebody", "SUDO_UID": "1000", "SUDO_GID": "1000", "USER": "root"}},
    "another time zone": {"environment": {"TZ": "Pacific/Apia"}},
    "another virtual environment": {"environment": {"VIRTUAL_ENV": "/nowhere", "CONDA_PREFIX": "/nowhere"}},
    "umask 077": {"wrapper": ["/bin/sh", "-c", 'umask 077; exec "$@"', "sh"]},
    "256 open files": {"wrapper": ["/usr/bin/prlimit", "--nofile=256:256"]},
}


@pytest.mark.hosts
@pytest.mark.parametrize("how", HOSTILE.values(), ids=HOSTILE)
def test_hostile_surroundings(host: Host, unique_name: Callable[[], str], how: dict[str, Any]) -> None:
    works(host, unique_name(), **how)


def test_all_hostile_surroundings_at_once(host: Host, unique_name: Callable[[], str]) -> None:
    odd = host.folder / ("a long way to nowhere, " * 5) / "für Größen"
    odd.mkdir(parents=True)
    environment = {"TMPDIR": str(odd), "STORMBED_RUN_ROOT": str(host.folder / "run")}
    for how in HOSTILE.values():
        environment |= how.get("environment", {})
    environment["PATH"] = "/nowhere"
    wrapper = [word for how in HOSTILE.values() for word in how.get("wrapper", ())]
    works(host, unique_name(), environment=environment, wrapper=wrapper)


@pytest.mark.hosts
def test_a_language_with_other_capitals(host: Host, unique_name: Callable[[], str]) -> None:
    """In Turkish the capital of i is not I."""
    host.prepare("localedef --inputfile=tr_TR --charmap=UTF-8 ./tr_TR.UTF-8")
    works(host, unique_name(), environment={"LC_ALL": "tr_TR.UTF-8", "LOCPATH": str(host.folder)})


@pytest.mark.hosts
def test_directories_with_spaces_and_letters_beyond_ascii(
    tmp_path: Path, unique_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "für Größen").mkdir()
    host = Host(tmp_path / "für Größen")
    monkeypatch.setenv("STORMBED_RUN_ROOT", host.environment["STORMBED_RUN_ROOT"])
    try:
        works(host, unique_name())
    finally:
        host.end()


@pytest.mark.hosts
def test_a_taken_port_of_the_live_page(host: Host, unique_name: Callable[[], str]) -> None:
    name = unique_name()
    hold = "import socket, time; _ = socket.create_server(('127.0.0.1', 8800)); print(flush=True); time.sleep(600)"
    with host.start([sys.executable, "-c", hold]) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        up = host.testbed("up", "pair", "--name", name)
        holder.kill()
    assert up.returncode == 0 and "http://127.0.0.1:" in up.stdout and ":8800/" not in up.stdout, up.stderr
    assert host.testbed("down", name).returncode == 0 and host.leftovers() == []


def test_make_is_not_led_to_other_installations_of_python(tmp_path: Path, unique_name: Callable[[], str]) -> None:
    for name in ("testbed", "encodings"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')\n", encoding="utf-8")
    argv = ["make", "--directory", str(ROOT), "down", f"VENV={sys.prefix}", f"NAME={unique_name()}"]
    environment = {**os.environ, "PYTHONHOME": str(tmp_path), "PYTHONPATH": str(tmp_path), "CONDA_PREFIX": "/nowhere"}
    done = subprocess.run(argv, env=environment, capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


ANSWERS_ONLY = """
nft add table inet filter
nft add chain inet filter input '{ type filter hook input priority 0; policy drop; }'
nft add chain inet filter forward '{ type filter hook forward priority 0; policy drop; }'
nft add rule inet filter input iif lo accept
nft add rule inet filter input ct state established,related accept
"""
NOTHING = """
nft add table inet filter
nft add chain inet filter input '{ type filter hook input priority 0; policy drop; }'
nft add chain inet filter output '{ type filter hook output priority 0; policy drop; }'
"""
NOTHING_BY_IPTABLES = "iptables -P INPUT DROP; iptables -P OUTPUT DROP; iptables -P FORWARD DROP"
UFW = """
cp -a /etc/ufw etc-of-ufw && cp /etc/default/ufw default-of-ufw
mount --bind etc-of-ufw /etc/ufw
mount --bind default-of-ufw /etc/default/ufw
ufw --force enable
"""
MACHINES = {
    "a firewall that lets answers in": ANSWERS_ONLY,
    "ufw": UFW,
    "bridges that ask the firewall": ANSWERS_ONLY + "sysctl -w net.bridge.bridge-nf-call-iptables=1",
    "a route over 10.199.0.0/16": "ip route add unreachable 10.199.0.0/16",
    "a host name with capitals and dots": "hostname Big.Host.Example",
    "mounts that are shared, as systemd makes them": "mount --make-rshared /",
    "little shared memory": "mount -t tmpfs -o size=64k none /dev/shm",
    "no control groups": "umount --recursive --lazy /sys/fs/cgroup",
    "version 2 of control groups alone": (
        "umount --recursive --lazy /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup"
    ),
    "settings that cannot be written": "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys",
}
REFUSING = {
    "a firewall that drops everything": (
        NOTHING,
        "cannot connect to the testbed",
        "docs/machines.md",
    ),
    "a file where directories of testbeds should be": ("touch run", "is not a directory", "STORMBED_RUN_ROOT"),
    "a link to nowhere there": ("ln -s nowhere run", "is not a directory", "STORMBED_RUN_ROOT"),
    "a read-only file system there": (
        "mkdir -p run; mount -t tmpfs -o ro none run",
        "can be written",
        "STORMBED_RUN_ROOT",
    ),
    "no /dev/net/tun": ("mount -t tmpfs none /dev/net", "/dev/net/tun is absent", "modprobe tun"),
    "a full /run": ("mkdir -p run; mount -t tmpfs -o size=3m none run", "MiB are free", "STORMBED_RUN_ROOT"),
    "routes over all our subnets": (
        "ip route add unreachable 10.198.0.0/16; ip route add unreachable 10.199.0.0/16",
        "is in use on this machine",
        "ip route",
    ),
}


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, id=name, marks=() if "answers" in name else pytest.mark.hosts)
        for name, script in MACHINES.items()
    ],
)
def test_hostile_machines(host: Host, unique_name: Callable[[], str], script: str) -> None:
    host.prepare(script)
    works(host, unique_name())


@pytest.mark.parametrize(
    ("script", "message", "hint"),
    [
        pytest.param(*row, id=name, marks=() if "firewall" in name else pytest.mark.hosts)
        for name, row in REFUSING.items()
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    host: Host, unique_name: Callable[[], str], script: str, message: str, hint: str
) -> None:
    host.prepare(script)
    refused = host.testbed("up", "pair", "--name", unique_name(), "--no-page")
    assert refused.returncode == 4, refused.stderr
    last = [line for line in refused.stderr.splitlines() if not line.startswith("[")]
    assert len(last) == 2 and message in last[0] and hint in last[1], refused.stderr
    assert host.leftovers() == []
    doctor = host.testbed("doctor")
    assert doctor.returncode == 4 and hint in doctor.stdout, doctor.stdout


@pytest.mark.hosts
@pytest.mark.parametrize(("tool", "firewall"), [("nft", NOTHING), ("iptables", NOTHING_BY_IPTABLES)])
def test_the_documented_commands_let_a_testbed_through_a_firewall(
    host: Host, unique_name: Callable[[], str], tool: str, firewall: str
) -> None:
    lines = (ROOT / "docs/machines.md").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line.startswith(f"    {tool} ")]
    assert len(commands) == 2
    host.prepare("\n".join([firewall, *commands]))
    works(host, unique_name())


OWN = {
    **{f"net.ipv4.conf.{name}.rp_filter": "1" for name in ("all", "default")},
    "net.ipv4.ip_forward": "0",
    "net.ipv4.tcp_timestamps": "0",
    "net.ipv4.tcp_sack": "0",
    "net.core.somaxconn": "16",
    "net.ipv6.conf.default.disable_ipv6": "1",
    "net.ipv4.tcp_rmem": "4096 8192 16384",
    "net.ipv4.tcp_wmem": "4096 8192 16384",
}
"""What each network namespace has of its own: these are the machine's end of the management network."""
WHOLE = {
    "net.ipv4.tcp_rmem": "4096 8192 16384",
    "net.ipv4.tcp_wmem": "4096 8192 16384",
    "net.core.rmem_max": "65536",
    "net.core.wmem_max": "8192",
}
"""What all namespaces share, or take from the machine's first one when they are made."""


@contextmanager
def machine_with(settings: Mapping[str, str]) -> Iterator[None]:
    """Sysctls of the whole machine, put back at the end."""
    with ExitStack() as ending:
        for key, value in settings.items():
            path = Path("/proc/sys") / key.replace(".", "/")
            ending.callback(path.write_text, path.read_text(encoding="utf-8"), encoding="utf-8")
            path.write_text(value, encoding="utf-8")
        yield


@pytest.mark.hosts
def test_small_and_strict_settings_of_the_machine(host: Host, unique_name: Callable[[], str]) -> None:
    host.prepare("\n".join(f"sysctl -q -w '{key}={value}'" for key, value in OWN.items()))
    with machine_with(WHOLE):
        works(host, unique_name())


def test_a_path_that_ssh_cannot_be_told_is_refused(
    unique_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for odd in ("100%h", 'a"b', "a\\b", "a\nb", os.fsdecode(b"\xff")):
        monkeypatch.setenv("STORMBED_RUN_ROOT", f"/tmp/{odd}")
        done = subprocess.run([*TESTBED, "up", "pair", "--name", unique_name()], capture_output=True, text=True)
        assert done.returncode == 2 and "testbeds cannot be kept under" in done.stderr, done.stderr
