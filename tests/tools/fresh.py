"""Rehearse the first hour on pristine machines: Debian systems made from Debian's own packages.

    python -m tests.tools.fresh [--suites bookworm,trixie] [--write docs/machines.md]

Each system is a directory that mmdebstrap fills with the smallest Debian and `make` and `git`. It is entered with
mounts, processes and a host name of its own; the network is the machine's, since packages come over it. Debian 13 is
booted by systemd, Debian 12 is not. In a clone of the last commit it runs what the README tells a newcomer. Of this
machine it gets only the way to the packages: apt's and pip's settings, certificates, and the folders that pip's
settings name.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHECKOUTS = {"bookworm": "/root/stormbed", "trixie": "/root/für Größen/storm bed"}
"""Debian's two suites, and where each has its clone: once as anybody would, once where a path can break commands."""
BEGIN, END = "<!-- written by `make test-fresh` -->", "<!-- end -->"
SMOKE = (
    "tests/emulated/test_emulation.py::test_a_site_is_what_a_user_expects",
    "tests/emulated/test_emulation.py::test_every_pair_is_joined_and_a_megabyte_passes",
    "tests/emulated/test_ssh.py",
    "tests/emulated/test_api.py",
)
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
UNSHARE = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--propagation", "private")
ENTER = """
set -e
mount --bind "$ROOT" "$ROOT"
cd "$ROOT"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/net dev/pts dev/shm
for file in null zero full random urandom tty net/tun; do
    touch "dev/$file"
    mount --bind "/dev/$file" "dev/$file"
done
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=755 tmpfs run
mount --rbind /sys/fs/cgroup sys/fs/cgroup
for folder in $SHARED; do mkdir -p ".$folder"; mount --rbind "$folder" ".$folder"; done
hostname "$HOST"
mkdir -p old
pivot_root . old
umount -l /old
"""
# In one entry into the system: when it ends, everything in it does, and a testbed stands only as long.
BOTH = """
make testbed "$1"
make down "$1"
if grep -hxE "prometheus|ovs-vswitchd|sshd" /proc/[0-9]*/comm; then echo "runs as a service"; exit 1; fi
if systemctl is-enabled prometheus openvswitch-switch ssh 2>/dev/null; then echo "starts at boot"; exit 1; fi
"""
HOME = "mkdir -p /home && git clone -q . /home/newcomer && chown -R 4242:4242 /home/newcomer"
RUN = ENTER + 'cd "$CHECKOUT"; exec "$@"'
BOOT = ENTER + """
umount -l /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --make-rshared /
exec env -i container=other /lib/systemd/systemd
"""


@dataclass(frozen=True)
class Step:
    """One thing that was tried on a system: how long it took, whether it worked, and what it installed."""

    system: str
    name: str
    seconds: float
    ok: bool
    packages: int
    mebibytes: int
    memory: int


class MemoryWatch(threading.Thread):
    """Samples how much memory this machine has available; `end` gives the range of it, in MiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._samples = [self._available()]
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.2):
            self._samples.append(self._available())

    def end(self) -> int:
        self._over.set()
        self.join()
        return max(self._samples) - min(self._samples)

    @staticmethod
    def _available() -> int:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
        found = re.search(r"^MemAvailable: *(\d+) kB", text, re.MULTILINE)
        assert found is not None
        return int(found[1]) // 1024


class System:
    """A pristine Debian in a directory.

    Args:
        suite: "bookworm" or "trixie".
        root: an empty directory, which gets the system.
    """

    include = "make,git,ca-certificates"

    def __init__(self, suite: str, root: Path) -> None:
        self.suite, self.root = suite, root
        self.checkout = CHECKOUTS[suite]
        self.shared: list[str] = []

    def make(self) -> None:
        """Fill the directory, and show the new system the way to the packages."""
        entry = f"deb [signed-by={KEYRING}] {mirror()} {self.suite} main"
        argv = ["mmdebstrap", "--variant=minbase", f"--include={self.include}", "--quiet"]
        argv += [f"--aptopt={line}" for line in apt_options()]
        subprocess.run([*argv, self.suite, str(self.root), entry], check=True, timeout=600)
        options = "".join(f"{line}\n" for line in apt_options())
        (self.root / "etc/apt/apt.conf.d/99way").write_text(options, encoding="utf-8")
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", self.root / "etc/ssl/certs/ca-certificates.crt")
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
        settings = pip_settings()
        lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
        (self.root / "etc/pip.conf").write_text(f"[global]\n{lines}", encoding="utf-8")
        named = re.findall(r"(?:^|\s|file://)(/[^\s]+)", " ".join(settings.values()), re.MULTILINE)
        # Their parents: the pages of an index may lead to packages beside it.
        folders = {Path(folder).parent for folder in named if Path(folder).is_dir()} - {Path("/")}
        self.shared = sorted(str(folder) for folder in folders if not folders & set(folder.parents))

    def environment(self) -> dict[str, str]:
        """What this system's commands find set."""
        passed = {key: value for key, value in os.environ.items() if key.startswith("PIP_") or key == "TORCH_INDEX"}
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "HOME": "/root", "TERM": "dumb", **passed}

    def entry(self) -> dict[str, str]:
        """What the scripts that enter it want to know."""
        shared = " ".join(self.shared)
        return {"ROOT": str(self.root), "SHARED": shared, "HOST": f"fresh-{self.suite}", "CHECKOUT": self.checkout}

    def argv(self, argv: Sequence[str]) -> list[str]:
        """How this machine runs a command in the checkout as that system's root."""
        return [*UNSHARE, "sh", "-c", RUN, "sh", *argv]

    def run(self, *argv: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a command in the checkout as this system's root."""
        return subprocess.run(
            self.argv(argv),
            env=self.environment() | self.entry(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
        )

    def start(self) -> None:
        """Before the first command."""

    def end(self) -> None:
        """After the last one."""

    def mebibytes(self) -> int:
        """What the system takes on the disk."""
        done = subprocess.run(["du", "-xsm", str(self.root)], capture_output=True, text=True, check=False)
        return int(done.stdout.split()[0])

    def packages(self) -> int:
        """How many Debian packages are installed."""
        return len(list((self.root / "var/lib/dpkg/info").glob("*.list")))


class Booted(System):
    """One that systemd has booted, as its first process. Commands are services of it, with its control groups."""

    include = f"{System.include},systemd-sysv,dbus"

    _group: Path | None = None
    _first: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        unified = next((line.split()[1] for line in mounts if line.split()[2] == "cgroup2"), None)
        if unified is None:
            sys.exit("test-fresh: systemd needs version 2 of control groups, and none is mounted here")
        self._group = Path(unified) / f"fresh-{os.getpid()}"
        self._group.mkdir()
        join = f"echo $$ > {self._group}/cgroup.procs; exec \"$@\""
        argv = ["sh", "-c", join, "sh", *UNSHARE, "--ipc", "--cgroup", "sh", "-c", BOOT]
        environment = self.environment() | self.entry()
        # What systemd has to say of consoles that are not there is of no interest.
        self._first = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        asked = ["sh", "-c", "systemctl is-system-running --wait"]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            done = subprocess.run(self._inside(asked), capture_output=True, encoding="utf-8")
            if done.stdout.strip() in ("running", "degraded"):
                return
            time.sleep(0.5)
        sys.exit(f"test-fresh: systemd did not come up: {done.stdout}{done.stderr}")

    def _inside(self, argv: Sequence[str]) -> list[str]:
        assert self._first is not None
        pid = self._first.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
        namespaces = ["--mount", "--uts", "--ipc", "--pid", "--cgroup"]
        return ["nsenter", "--target", (children.split() or ["0"])[0], *namespaces, *argv]

    def argv(self, argv: Sequence[str]) -> list[str]:
        settings = [f"--setenv={key}={value}" for key, value in self.environment().items()]
        run = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", f"--working-directory={self.checkout}"]
        return self._inside([*run, *settings, *argv])

    def end(self) -> None:
        if self._first is not None:
            self._first.kill()
            self._first.wait()
        if self._group is None:
            return
        deadline = time.monotonic() + 30
        while "populated 1" in (self._group / "cgroup.events").read_text(encoding="utf-8"):
            if time.monotonic() > deadline:
                sys.exit(f"test-fresh: processes are left in {self._group}")
            time.sleep(0.1)
        for folder in sorted(self._group.rglob("*/"), reverse=True):
            folder.rmdir()
        self._group.rmdir()


SYSTEMS: dict[str, type[System]] = {"bookworm": System, "trixie": Booted}


def mirror() -> str:
    """Where this machine has Debian's packages from."""
    for path in sorted(Path("/etc/apt").glob("sources.list.d/*.sources")):
        if found := re.search(r"^URIs:\s*(\S+/debian/?)\s*$", path.read_text(encoding="utf-8"), re.MULTILINE):
            return found[1]
    text = Path("/etc/apt/sources.list").read_text(encoding="utf-8")
    if found := re.search(r"^deb\s+(?:\[[^]]*\]\s+)?(\S+/debian/?)\s", text, re.MULTILINE):
        return found[1]
    sys.exit("test-fresh: no source of Debian's packages in /etc/apt")


def apt_options() -> list[str]:
    """What this machine tells apt of the way to packages, such as a proxy."""
    done = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if re.match(r"Acquire::(https?::|Check-|Retries)", line)]


def pip_settings() -> dict[str, str]:
    """What this machine tells pip, without constraints, which are for this machine's Python."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    found = re.findall(r"^(?:global|user|site|:env:)\.([a-z-]+)='(.*)'$", done.stdout, re.MULTILINE)
    return {key: value.replace("\\n", " ") for key, value in found if key != "constraint"}


@contextmanager
def pristine(suite: str) -> Iterator[System]:
    """A new system with a clone of this checkout, removed at the end."""
    with tempfile.TemporaryDirectory(prefix=f"fresh-{suite}-") as folder:
        system = SYSTEMS[suite](suite, Path(folder))
        system.make()
        clone = ["git", "clone", "--quiet", "--no-local", str(ROOT), f"{system.root}{system.checkout}"]
        subprocess.run(clone, check=True, timeout=120)
        try:
            system.start()
            yield system
        finally:
            system.end()


def rehearse(suite: str) -> list[Step]:
    """Do what the README tells a newcomer."""
    steps: list[Step] = []
    testbed = f"NAME=fresh-{os.getpid()}-{suite}"
    as_user = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups", "env", "HOME=/home/newcomer"]
    with pristine(suite) as system:

        def step(name: str, *argv: str) -> bool:
            print(f"{suite}: {name}", flush=True)
            packages, size, began = system.packages(), system.mebibytes(), time.monotonic()
            memory = MemoryWatch()
            try:
                done = system.run(*argv, timeout=600)
                ok, said = done.returncode == 0, done.stdout
            except subprocess.TimeoutExpired as error:
                ok, said = False, f"{error.stdout!r}\nstill running after {error.timeout:g} s"
            seconds = time.monotonic() - began
            installed = system.packages() - packages, system.mebibytes() - size
            steps.append(Step(suite, name, seconds, ok, *installed, memory.end()))
            print("\n".join(said.splitlines()[-1 if ok else -40 :]), flush=True)
            return ok

        python_and_home = "apt-get update -qq && apt-get install -qq --no-install-recommends python3-venv && " + HOME
        done = system.run("sh", "-ec", python_and_home, timeout=300)
        if done.returncode:
            sys.exit(f"test-fresh: {done.stdout}")
        step("`make demo`, as another user", *as_user, "make", "-C", "/home/newcomer", "demo")
        if step("`make testbed`, `make down`", "sh", "-ec", BOTH, "sh", testbed):
            step("emulated smoke tests", "sh", "-c", '.venv/bin/pytest -q "$@"', "sh", *SMOKE)
        version = "import platform; print(platform.python_version())"
        python = system.run("python3", "-c", version, timeout=20).stdout.strip()
    return [replace(taken, system=f"{suite}, Python {python}") for taken in steps]


def table(steps: Sequence[Step]) -> str:
    rows = [
        f"| {step.system} | {step.name} | {'yes' if step.ok else 'NO'} | {step.seconds:.0f} "
        f"| {step.packages} | {step.mebibytes:,} | {step.memory:,} |"
        for step in steps
    ]
    head = "| system | tried | worked | seconds | Debian packages | disk MiB | memory MiB |"
    return "\n".join([head, "| --- | --- | --- | --: | --: | --: | --: |", *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suites", default=",".join(CHECKOUTS))
    parser.add_argument("--write", type=Path, help="put the table into this document, between its marks")
    asked = parser.parse_args()
    steps = [step for suite in asked.suites.split(",") for step in rehearse(suite)]
    text = table(steps)
    print(text)
    if asked.write is not None:
        before, _, rest = asked.write.read_text(encoding="utf-8").partition(BEGIN)
        asked.write.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.partition(END)[2], encoding="utf-8")
    failed = [step for step in steps if not step.ok]
    print(f"{len(steps) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
