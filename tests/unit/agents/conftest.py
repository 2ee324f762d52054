"""Agents and a coordinator on loopback addresses, as threads of this process or as processes of their own."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agents.agent import Agent
from agents.config import AddressBook, Config
from agents.control import CoordinatorClient
from agents.coordinator import Coordinator
from agents.local import LocalClient
from topologies.load import load_topology

_NUMBERS = itertools.count(1)


def loopback_block() -> str:
    """Addresses that no other test run on this machine uses: 127.a.b.1, .2, ..."""
    return f"127.{1 + os.getpid() % 250}.{next(_NUMBERS) % 250}."


class Cluster:
    """All sites of a topology, with their agents and a coordinator.

    Args:
        processes: each daemon is a process of its own instead of a task of one thread.
    """

    def __init__(self, tmp_path: Path, topology: str = "pair", *, processes: bool = False) -> None:
        self.topology = load_topology(topology)
        self.names = self.topology.site_names
        self.run_dir = tmp_path
        block = loopback_block()
        n = len(self.names)
        self.addresses = AddressBook(
            tuple((f"{block}{k + 1}", 7000) for k in range(n)),
            (f"{block}253", 7002),
            tuple((f"{block}{k + 1}", 9101) for k in range(n)),
            (f"{block}253", 9102),
        )
        self.config = Config(self.topology, self.addresses, tmp_path)
        for name in self.names:
            (tmp_path / "sites" / name).mkdir(parents=True)
        (tmp_path / "testbed.json").write_text(json.dumps({"topology": self.topology.to_dict()}))
        (tmp_path / "addresses.json").write_text(json.dumps(self.addresses.to_dict()))
        self.agents: list[Agent] = []
        self.coordinator: Coordinator | None = None
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._clients: list[CoordinatorClient] = []
        self._thread.start()
        if processes:
            for k, name in enumerate(self.names):
                self.spawn(name, "agents", "--site", str(k), "--run-dir", str(tmp_path))
            self.spawn("coordinator", "agents.coordinator", "--run-dir", str(tmp_path))
        else:
            self.do(self._start())

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the daemons' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function on the daemons' loop."""

        async def work() -> Any:
            return function()

        return self.do(work())

    async def _start(self) -> None:
        self.coordinator = Coordinator(self.config)
        await self.coordinator.start()
        for k in range(len(self.names)):
            agent = Agent(self.config, k)
            await agent.start()
            self.agents.append(agent)

    async def _stop(self) -> None:
        for agent in self.agents:
            await agent.close()
        if self.coordinator is not None:
            await self.coordinator.close()

    def runner(self) -> CoordinatorClient:
        client = CoordinatorClient(*self.addresses.coordinator)
        self._clients.append(client)
        return client

    def join(self, site: int, job: str = "job", worker: int = 0, timeout: float = 10.0) -> LocalClient:
        return LocalClient.connect(self.run_dir, self.names[site], job, worker, timeout)

    def spawn(self, name: str, module: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        log = (self.run_dir / f"{name}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        log.close()
        self.processes[name] = process
        return process

    def numpy_worker(self, site: str, worker: int = 0, job: str = "job") -> subprocess.Popen[bytes]:
        out = self.run_dir / "out" / job / f"{site}-{worker}"
        out.mkdir(parents=True)
        return self.spawn(
            f"{job}-{site}-{worker}",
            "agents.numpy_worker",
            STORMBED_RUN_DIR=str(self.run_dir),
            STORMBED_SITE=site,
            STORMBED_JOB=job,
            STORMBED_WORKER=str(worker),
            STORMBED_OUT=str(out),
        )

    def trace(self, site: str, worker: int = 0, job: str = "job") -> list[dict[str, Any]]:
        path = self.run_dir / "out" / job / f"{site}-{worker}" / "trace.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def log(self, name: str) -> str:
        return (self.run_dir / f"{name}.log").read_text()

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    clusters: list[Cluster] = []

    def make(topology: str = "pair", *, processes: bool = False) -> Cluster:
        path = tmp_path / f"testbed-{len(clusters)}"
        path.mkdir()
        clusters.append(Cluster(path, topology, processes=processes))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()


def everywhere(work: Mapping[Any, Callable[[], Any]]) -> dict[Any, Any]:
    """Run functions at the same time, each in a thread; their results, or the first error."""
    results: dict[Any, Any] = {}
    errors: list[BaseException] = []

    def run(key: Any, function: Callable[[], Any]) -> None:
        try:
            results[key] = function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in work.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while any(thread.is_alive() for thread in threads) and not errors:
        assert time.monotonic() < deadline, "a worker hangs"
        next(thread for thread in threads if thread.is_alive()).join(0.05)
    if errors:
        raise errors[0]
    return results


@pytest.fixture(name="everywhere")
def _everywhere() -> Callable[[Mapping[Any, Callable[[], Any]]], dict[Any, Any]]:
    return everywhere
