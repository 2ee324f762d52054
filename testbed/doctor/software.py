"""Rows about what has to be installed: programs, Open vSwitch, Python packages, SSH, Prometheus."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from testbed import sites
from testbed.doctor.rows import APT, Check, State, degraded, missing, ok
from testbed.runner import run

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


def absent_of(programs: Iterable[str]) -> list[str]:
    # Root's login path may lack sbin in a container; our own children get a full one.
    return [program for program in programs if shutil.which(program, path=sites.SITE_PATH) is None]


def check_programs() -> Check:
    absent = absent_of(PROGRAMS)
    if not absent:
        return ok("programs", ", ".join(PROGRAMS))
    packages = sorted({PROGRAMS[program] for program in absent})
    return missing("programs", f"not found: {', '.join(absent)}", APT + " ".join(packages))


def check_open_vswitch() -> Check:
    absent = absent_of(OPEN_VSWITCH)
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
        return missing("python", f"{where} has no {', '.join(absent)}", "make setup")
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
    return ok("torch", version("torch"))


def check_ssh_programs() -> Check:
    absent = absent_of(SSH)
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
        files.config.write_text(sites.sshd_config(scratch, "dc1", "127.0.0.1", use_pam=locked), encoding="utf-8")
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
    if absent_of(["prometheus"]):
        return missing("prometheus", "not found", APT + "prometheus")
    return ok("prometheus", str(shutil.which("prometheus", path=sites.SITE_PATH)))
