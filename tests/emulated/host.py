"""A machine of a test's own, on which everything can be turned against a testbed without anybody else noticing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.emulation.waiting import wait_for

TESTBED = (sys.executable, "-m", "testbed")


class Host:
    """Namespaces of network, mounts and host name, as a container has them.

    Like a container's, its network namespace cannot extend the machine's list of congestion controls.

    Args:
        folder: an empty one; testbeds, runs and temporary files of this host are kept there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "STORMBED_RUN_ROOT": str(folder / "run"), "PYTHONUNBUFFERED": "1"}
        self._holder = subprocess.Popen(
            ["/usr/bin/unshare", "--net", "--mount", "--uts", "--propagation", "private", "--", "sleep", "infinity"]
        )
        self._enter = ["/usr/bin/nsenter", "--target", str(self._holder.pid), "--net", "--mount", "--uts", "--"]
        self._enter += ["/usr/bin/env", "--chdir", str(folder)]
        try:
            wait_for(self._apart, "namespaces of its own", 10)
            self.prepare("ip link set dev lo up")
        except BaseException:
            self._holder.kill()
            raise

    def _apart(self) -> bool:
        return Path(f"/proc/{self._holder.pid}/comm").read_text(encoding="utf-8") == "sleep\n"

    def prepare(self, script: str) -> str:
        """Run lines of shell as this host's root; fails when one of them does."""
        done = subprocess.run(
            [*self._enter, "sh", "-ec", script], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        """Start a program of this host's."""
        return subprocess.Popen([*self._enter, *argv], stdout=subprocess.PIPE, encoding="utf-8")

    def testbed(
        self,
        *words: str,
        environment: Mapping[str, str | None] | None = None,
        wrapper: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run the command `testbed` to its end.

        Args:
            words: verb and arguments.
            environment: what is set besides this host's own; None removes a variable.
            wrapper: a command that runs it, such as ["prlimit", "--nofile=256"].
        """
        changed = {**self.environment, **(environment or {})}
        return subprocess.run(
            [*self._enter, *wrapper, *TESTBED, *words],
            env={key: value for key, value in changed.items() if value is not None},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=240,
        )

    def leftovers(self) -> list[str]:
        """What testbeds have left on this host: directories, interfaces and processes."""
        root = Path(self.environment["STORMBED_RUN_ROOT"])
        found = [entry.name for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []
        links = [line.split()[0] for line in self.prepare("ip -br link").splitlines()]
        found += [name for name in links if name.startswith("sb")]
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if os.fsencode(root) in (line := path.read_bytes()):
                    found.append(line.replace(b"\0", b" ").decode(errors="replace"))
        return found

    def end(self) -> None:
        """Take down what a test that failed has left, and the host with it."""
        root = Path(self.environment["STORMBED_RUN_ROOT"])
        for entry in sorted(root.iterdir()) if root.is_dir() else []:
            if entry.is_dir():
                self.testbed("down", entry.name, "--if-up")
        self._holder.kill()
        self._holder.wait()
