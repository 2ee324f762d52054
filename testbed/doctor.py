"""What this machine offers to an emulated testbed, and what is used where something is absent.

Every row is one of the field's known pains. Whatever has to be tried is tried in scratch namespaces by a
child of this process (`python -m testbed.doctor` is that child); the machine's own devices are only read.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from testbed import sites
from testbed.emulation.environment import capability_hint, missing_capabilities
from testbed.runner import run
from topologies.errors import CannotHonourError, StormbedError

APT = "apt-get install --no-install-recommends "
# Debian package of every program that the emulated world starts.
PROGRAMS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setsid": "util-linux",
    "tini": "tini",
    "mnexec": "mininet",
    "ip": "iproute2",
    "tc": "iproute2",
    "ethtool": "ethtool",
    "ping": "iputils-ping",
}
OPEN_VSWITCH = ("ovsdb-server", "ovs-vswitchd", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl")
SSH = ("ssh", "ssh-keygen")
PYTHON_PACKAGES = {"mininet": "mininet", "os_ken": "os-ken", "fabric": "fabric"}
MIN_MEMORY_BYTES = 3 * 2**30
MIN_DISK_BYTES = 500 * 2**20
MAX_STEAL_RATIO = 0.05


class State(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    MISSING = "missing"


@dataclass(frozen=True)
class Check:
    """One row: what was looked at, what was found, and what follows from it.

    `instead` says what a testbed uses when the state is degraded; `fix` is what to type when it is missing.
    """

    name: str
    state: State
    found: str
    instead: str = ""
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def ok(name: str, found: str) -> Check:
    return Check(name, State.OK, found)


def degraded(name: str, found: str, instead: str, fix: str = "") -> Check:
    return Check(name, State.DEGRADED, found, instead=instead, fix=fix)


def missing(name: str, found: str, fix: str) -> Check:
    return Check(name, State.MISSING, found, fix=fix)


def examine() -> tuple[Check, ...]:
    """All rows, in the order of the table. Takes about a second and changes nothing."""
    checks: dict[str, Callable[[], Check | list[Check]]] = {
        "root": check_root,
        "kernel": check_kernel,
        "open vswitch": check_open_vswitch,
        "programs": check_programs,
        "python": check_python,
        "torch": check_torch,
        "ssh": check_ssh,
        "prometheus": check_prometheus,
        "cpu": check_cpu,
        "memory": check_memory,
        "disk": check_disk,
        "testbeds": check_testbeds,
    }
    rows: list[Check] = []
    for name, check in checks.items():
        rows += rows_of(name, check)
    return tuple(rows)


def rows_of(name: str, check: Callable[[], Check | list[Check]]) -> list[Check]:
    """What a check finds; a check that fails is a row that says why, and the others are still made."""
    try:
        found = check()
    except StormbedError as error:
        return [missing(name, error.message, error.hint or "see what it says")]
    except OSError as error:
        return [missing(name, str(error), "see what it says")]
    return found if isinstance(found, list) else [found]


def fit(rows: Iterable[Check]) -> bool:
    """Whether a testbed can be brought up: nothing required is missing."""
    return all(row.state is not State.MISSING for row in rows)


def preflight() -> None:
    """The part of `examine` that costs nothing, before anything is created.

    Raises:
        CannotHonourError: not root, or a program or Python package is missing; the first one found is named.
    """
    for check in (
        check_root,
        check_open_vswitch,
        check_programs,
        check_python,
        check_ssh_programs,
        check_prometheus,
    ):
        row = check()
        if row.state is State.MISSING:
            raise CannotHonourError(f"{row.name}: {row.found}", hint=row.fix)


def require_packages() -> None:
    """Refuse what needs the emulated world's Python packages, wherever they are not installed.

    Raises:
        CannotHonourError: one is missing; the hint installs it for this very interpreter.
    """
    row = check_python()
    if row.state is State.MISSING:
        raise CannotHonourError(f"{row.name}: {row.found}", hint=row.fix)


# --- Rows that only look ----------------------------------------------------------------------------------


def check_root() -> Check:
    if os.geteuid() != 0:
        return missing(
            "root", f"running as user {os.geteuid()}, and namespaces need root", "run it with sudo"
        )
    absent = missing_capabilities()
    if absent:
        return missing("root", f"running as root without {' and '.join(absent)}", capability_hint(absent))
    return ok("root", "running as root")


def _absent(programs: Iterable[str]) -> list[str]:
    # Root's login path may lack sbin in a container; our own children get a full one.
    return [program for program in programs if shutil.which(program, path=sites.SITE_PATH) is None]


def check_programs() -> Check:
    absent = _absent(PROGRAMS)
    if not absent:
        return ok("programs", ", ".join(PROGRAMS))
    packages = sorted({PROGRAMS[program] for program in absent})
    return missing("programs", f"not found: {', '.join(absent)}", APT + " ".join(packages))


def check_open_vswitch() -> Check:
    absent = _absent(OPEN_VSWITCH)
    if absent:
        return missing("open vswitch", f"not found: {', '.join(absent)}", APT + "openvswitch-switch")
    if not Path("/dev/net/tun").exists():
        return missing(
            "open vswitch", "/dev/net/tun is absent, which its userspace datapath needs", "modprobe tun"
        )
    version = run(["ovs-vswitchd", "--version"], timeout=10).stdout.split("\n")[0].split()[-1]
    if Path("/sys/module/openvswitch").exists():
        return ok(
            "open vswitch", f"{version}; the userspace datapath is used (the kernel module is there too)"
        )
    return degraded(
        "open vswitch",
        f"{version}; no kernel module loaded",
        "the userspace datapath with TSO: about 3 Gbit/s over two hops",
    )


def check_python() -> Check:
    where = f"{sys.executable} ({'.'.join(map(str, sys.version_info[:3]))})"
    absent = [name for module, name in PYTHON_PACKAGES.items() if importlib.util.find_spec(module) is None]
    if absent:
        return missing(
            "python",
            f"{where} has no {', '.join(absent)}",
            f"{sys.executable} -m pip install 'stormbed[emulation]'",
        )
    mininet = importlib.util.find_spec("mininet")
    origin = str(Path(mininet.origin).parent) if mininet is not None and mininet.origin else "?"
    return ok("python", f"{where}; mininet from {origin}")


def check_torch() -> Check:
    if importlib.util.find_spec("torch") is None:
        return degraded(
            "torch",
            "not installed for this interpreter",
            "numpy workers only; experiments with `model:` do not run",
            f"{sys.executable} -m pip install torch==2.13.0",
        )
    from importlib.metadata import version

    return ok("torch", version("torch"))


def check_ssh_programs() -> Check:
    absent = _absent(SSH)
    if not Path(sites.SSHD).exists():
        absent.append("sshd")
    if absent:
        return missing("ssh", f"not found: {', '.join(absent)}", APT + "openssh-server openssh-client")
    return ok("ssh", sites.SSHD)


def check_ssh() -> Check:
    """sshd accepts the very configuration that a site would get."""
    programs = check_ssh_programs()
    if programs.state is not State.OK or os.geteuid() != 0:
        return programs
    with tempfile.TemporaryDirectory(prefix="stormbed-doctor-") as directory:
        scratch = Path(directory)
        files = sites.SiteFiles(scratch, "dc1")
        files.home.mkdir(parents=True)
        sites.keygen(files.host_key, "doctor")
        locked = sites.root_locked()
        files.config.write_text(sites.sshd_config(scratch, "dc1", "127.0.0.1", use_pam=locked))
        sites.PRIVSEP_DIR.mkdir(mode=0o755, exist_ok=True)
        tried = run([sites.SSHD, "-t", "-f", str(files.config)], timeout=10, check=False)
    if tried.returncode != 0:
        return missing(
            "ssh", f"sshd refuses our configuration: {tried.stderr.strip()}", "install OpenSSH 8.7 or later"
        )
    if locked:
        return degraded(
            "ssh", 'root\'s password is locked ("!" in /etc/shadow)', "sshd admits root's key through PAM"
        )
    return ok("ssh", f"{sites.SSHD} accepts a site's configuration")


def check_prometheus() -> Check:
    if _absent(["prometheus"]):
        return missing("prometheus", "not found", APT + "prometheus")
    return ok("prometheus", str(shutil.which("prometheus", path=sites.SITE_PATH)))


def check_cpu() -> Check:
    cores = len(os.sched_getaffinity(0))
    ratio = steal_ratio(Path("/proc/stat").read_text())
    cgroup = "2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "1"
    found = f"{cores} cores, {ratio:.1%} stolen by the hypervisor since boot, cgroup v{cgroup}"
    if cores < 2:
        return degraded(
            "cpu", found, "rates that one core can carry; scale a topology down with `up --scale`"
        )
    if ratio > MAX_STEAL_RATIO:
        return degraded("cpu", found, "what is left; read every run's fidelity verdict before its numbers")
    return ok("cpu", found)


def steal_ratio(stat: str) -> float:
    """The share of CPU time taken by other guests, from the text of /proc/stat."""
    fields = [int(field) for field in stat.splitlines()[0].split()[1:9]]
    total = sum(fields)
    return fields[7] / total if total and len(fields) > 7 else 0.0


def check_memory() -> Check:
    found = {line.split(":")[0]: line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines()}
    available = int(found["MemAvailable"]) * 1024
    text = f"{available / 2**30:.1f} GiB available"
    if available < MIN_MEMORY_BYTES:
        return degraded("memory", text, "fewer workers: each torch worker takes about 0.25 GiB")
    return ok("memory", text)


def check_disk() -> Check:
    directory = _existing(_run_root())
    free = shutil.disk_usage(directory).free
    text = f"{free / 2**30:.1f} GiB free under {directory}"
    if free < MIN_DISK_BYTES:
        return degraded("disk", text, "what is left", "set STORMBED_RUN_ROOT to a directory with more room")
    return ok("disk", text)


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _run_root() -> Path:
    from testbed.emulation.rundir import run_root

    return run_root()


def check_testbeds() -> list[Check]:
    """Whether a management subnet is free, and what an earlier testbed has left."""
    if os.geteuid() != 0 or _absent(["ip"]):
        return []
    from testbed.emulation.management import choose_subnet, networks_in_use

    try:
        row = ok("management subnet", f"{choose_subnet(networks_in_use()).subnet} is free")
    except StormbedError as error:
        row = missing("management subnet", error.message, error.hint)
    return [row, check_leftovers()]


def check_leftovers() -> Check:
    """What stands is fine; what is left of a testbed whose supervisor is gone is in nobody's use."""
    from testbed.emulation.launch import list_testbeds

    found = list_testbeds()
    up = [listed.name for listed in found if listed.alive]
    dead = [listed.name for listed in found if not listed.alive]
    if dead:
        return degraded("leftovers", f"of {', '.join(dead)}", "nothing of it", "testbed clean")
    return ok("leftovers", f"none; up: {', '.join(up) or 'none'}")


# --- Rows that try in scratch namespaces ------------------------------------------------------------------

_SCRATCH = ["unshare", "--net", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]

# feature -> what is used instead when it is absent, or None when nothing can replace it.
KERNEL_FEATURES: Mapping[str, str | None] = {
    "veth": None,
    "bridge": None,
    "tun": None,
    "htb": None,
    "bfifo": None,
    "u32": None,
    "packet sockets": None,
    "cubic": None,
    "netem": "Stormbed's delay line: delay, jitter and loss in a process of its own",
    "realtime": "a delay line at normal priority: a few ms more lateness under load",
}


def check_kernel() -> list[Check]:
    if os.geteuid() != 0:
        return [missing("kernel", "not tried, because namespaces need root", "run it with sudo")]
    if _absent(["unshare", "ip", "tc"]):
        return [
            missing("kernel", "not tried, because unshare, ip or tc is absent", APT + "util-linux iproute2")
        ]
    child = run([*_SCRATCH, sys.executable, "-m", "testbed.doctor", _network()], timeout=20, check=False)
    if child.returncode != 0:
        return [
            missing(
                "namespaces",
                child.stderr.strip() or "unshare failed",
                "allow this container network namespaces",
            )
        ]
    return [ok("namespaces", "net, pid and uts"), *kernel_rows(json.loads(child.stdout))]


def kernel_rows(probed: Mapping[str, str]) -> list[Check]:
    """Rows from what the child found: feature to "" (works) or the reason why it does not."""
    works = [feature for feature in KERNEL_FEATURES if probed[feature] == ""]
    rows = [ok("kernel", ", ".join(works))] if works else []
    for feature, instead in KERNEL_FEATURES.items():
        reason = probed[feature]
        if reason and instead is None:
            rows.append(missing(f"kernel {feature}", reason, "use a kernel built with it"))
        elif reason and instead is not None:
            rows.append(degraded(f"kernel {feature}", reason, instead))
    return rows


def _probe() -> dict[str, str]:
    """Try every kernel feature. Runs in a child's own network, PID and UTS namespaces."""

    def tries(*argvs: str) -> Callable[[], None]:
        def attempt() -> None:
            for argv in argvs:
                run(argv.split(), timeout=10)

        return attempt

    attempts: dict[str, Callable[[], None]] = {
        "veth": tries("ip link add name v1 type veth peer name v2", "ip link set dev v1 up"),
        "bridge": tries("ip link add name br1 type bridge"),
        "tun": tries("ip tuntap add name t1 mode tap"),
        "htb": tries(
            "tc qdisc add dev v1 root handle 1: htb default 1",
            "tc class add dev v1 parent 1: classid 1:1 htb rate 10mbit quantum 1514",
        ),
        "bfifo": tries("tc qdisc add dev v1 parent 1:1 bfifo limit 100000"),
        "u32": tries(
            "tc filter add dev v1 parent 1: protocol ip u32"
            " match ip dsfield 0x1c 0x1c match u16 0 0xff80 at 2 flowid 1:1"
        ),
        "packet sockets": _try_packet_socket,
        "cubic": lambda: _write("/proc/sys/net/ipv4/tcp_congestion_control", "cubic"),
        "netem": tries("tc qdisc add dev v2 root netem delay 1ms"),
        "realtime": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    }
    result = {}
    for feature, attempt in attempts.items():
        try:
            attempt()
        except (OSError, StormbedError) as error:
            result[feature] = " ".join(str(error).split())
        else:
            result[feature] = ""
    return result


def _try_packet_socket() -> None:
    """A raw socket that passes 64 KB segments whole, as the delay line needs."""
    sol_packet, packet_vnet_hdr, packet_ignore_outgoing = 263, 15, 23
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as raw:
        raw.setsockopt(sol_packet, packet_vnet_hdr, 1)
        raw.setsockopt(sol_packet, packet_ignore_outgoing, 1)
        raw.bind(("v1", 0))


def _write(path: str, text: str) -> None:
    Path(path).write_text(text)


def _network() -> str:
    """Which network namespace this process is in."""
    return str(Path("/proc/self/ns/net").readlink())


if __name__ == "__main__":
    # Outside a scratch namespace the attempts would change the machine itself.
    if len(sys.argv) != 2 or sys.argv[1] == _network():
        sys.exit("this is the child of `testbed doctor`, and runs only in scratch namespaces")
    sys.stdout.write(json.dumps(_probe()))
