"""Real agents and a real coordinator on loopback: the whole way but for the emulated network."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from topologies.load import load_topology


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def entry_point(directory: Path) -> str:
    """A PYTHONPATH on which the project looks installed: torch finds the backend's entry point there."""
    info = directory / "installed-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nstormbed = agents.worker.backend:register\n")
    return f"{directory}:{Path.cwd()}"


@dataclass
class Loopback:
    """A topology's sites as processes here."""

    run_dir: Path
    sites: tuple[str, ...]
    coordinator: tuple[str, int]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def environment(
        self, job: str, site: str, worker: int = 0, out: Path | None = None, **more: str
    ) -> dict[str, str]:
        environment = {
            **os.environ,
            "STORMBED_RUN_DIR": str(self.run_dir),
            "STORMBED_SITE": site,
            "STORMBED_JOB": job,
            "STORMBED_WORKER": str(worker),
            "OMP_NUM_THREADS": "1",
            **more,
        }
        return environment | ({"STORMBED_OUT": str(out)} if out else {})


@contextlib.contextmanager
def loopback(tmp_path: Path, topology: str) -> Iterator[Loopback]:
    described = load_topology(topology)
    names = described.site_names
    coordinator, *data = free_ports(1 + len(names))
    (tmp_path / "testbed.json").write_text(
        json.dumps({"topology": described.to_dict(), "subnet": "10.199.0.0/24"})
    )
    addresses = {
        "data": [("127.0.0.1", port) for port in data],
        "coordinator": ("127.0.0.1", coordinator),
        "metrics": [None] * len(names),
        "coordinator_metrics": None,
    }
    (tmp_path / "addresses.json").write_text(json.dumps(addresses))
    world = Loopback(tmp_path, names, ("127.0.0.1", coordinator))

    def start(name: str, *arguments: str) -> None:
        with (tmp_path / f"{name}.log").open("wb") as log:
            world.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *arguments, "--run-dir", str(tmp_path)], stdout=log, stderr=log
            )

    try:
        for index, name in enumerate(names):
            (tmp_path / "sites" / name).mkdir(parents=True)
            start(name, "agents", "--site", str(index))
        start("coordinator", "agents.coordinator")
        deadline = time.monotonic() + 30
        waiting = list(world.processes)
        while waiting:
            waiting = [n for n in waiting if " is ready" not in (tmp_path / f"{n}.log").read_text()]
            for name in waiting:
                log = (tmp_path / f"{name}.log").read_text()
                assert world.processes[name].poll() is None, f"{name} ended:\n{log}"
                assert time.monotonic() < deadline, f"{name} is not ready:\n{log}"
            time.sleep(0.05)
        yield world
    finally:
        for process in world.processes.values():
            process.terminate()
        for process in world.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
