"""The workers of a run: started over SSH at every site, watched, and ended."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agents.compute import CPU_SHARE
from testbed import remote
from testbed.experiments.manifest import WorkerRow
from topologies.errors import RunFailedError, StormbedError

if TYPE_CHECKING:
    from fabric import Connection

    from testbed.emulation.rundir import TestbedInfo

Result = TypeVar("Result")

CONNECT_ATTEMPTS = 4
CONNECT_BACKOFF_S = 0.5
TAIL_LINES = 5
TAIL_BYTES = 8192


def cpu_padding(testbed: TestbedInfo, site: str) -> dict[str, str]:
    """What a worker's environment says about the share of a core it is to be held to, where nothing else does."""
    share = testbed.padded_share(site)
    return {} if share is None else {CPU_SHARE: f"{share:g}"}


@dataclass
class RunningWorker:
    """One worker's process.

    `folder` holds its trace, stdout and stderr; `watch` is an SSH channel whose command ends with
    the process.
    """

    row: WorkerRow
    folder: Path
    process: remote.RemoteProcess
    watch: Any = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.row.site}-{self.row.worker}"

    @property
    def ended(self) -> bool:
        """Whether the process is gone, or the connection that tells."""
        return bool(self.watch.exit_status_ready() or self.watch.closed)


class Workers:
    """All workers of one run, over one SSH connection a site.

    Args:
        ssh_config: the testbed's.
        python: the interpreter that runs them at the sites.
    """

    def __init__(self, ssh_config: Path, python: str = sys.executable) -> None:
        self._ssh_config = ssh_config
        self._python = python
        self._connections: dict[str, Connection] = {}
        self.running: list[RunningWorker] = []

    def start(
        self,
        rows: Sequence[WorkerRow],
        module: str,
        env: Callable[[WorkerRow], Mapping[str, str]],
        folder: Callable[[WorkerRow], Path],
    ) -> None:
        """Connect to every site and start its workers, all sites at once.

        Raises:
            RunFailedError: a site could not be reached after several attempts, or would not start a worker.
        """
        by_site: dict[str, list[WorkerRow]] = {}
        for row in rows:
            by_site.setdefault(row.site, []).append(row)

        def start_site(site: str) -> None:
            connection = self._connections[site] = self._connect(site)
            for row in by_site[site]:
                # One by one, so that those of a site that fails halfway are known and can be ended.
                self.running.append(self._start_one(connection, row, module, env(row), folder(row)))

        _in_parallel(start_site, by_site)
        self.running.sort(key=lambda worker: worker.row.rank)

    def _connect(self, site: str) -> Connection:
        pause = threading.Event()
        for attempt in range(1, CONNECT_ATTEMPTS + 1):
            connection = remote.connect(self._ssh_config, site)
            try:
                connection.open()
            except Exception as error:
                connection.close()
                if attempt == CONNECT_ATTEMPTS:
                    raise RunFailedError(
                        f"site {site} cannot be reached over SSH: {error} ({attempt} attempts)",
                        hint=f"try `ssh -F {self._ssh_config} {site}`",
                    ) from error
                pause.wait(CONNECT_BACKOFF_S * 2 ** (attempt - 1))
            else:
                return connection
        raise AssertionError("unreachable")

    def _start_one(
        self, connection: Connection, row: WorkerRow, module: str, env: Mapping[str, str], folder: Path
    ) -> RunningWorker:
        process = remote.start_detached(
            connection,
            [self._python, "-u", "-m", module],
            env=env,
            stdout=folder / "stdout",
            stderr=folder / "stderr",
        )
        # Ends when the process does: no polling over SSH, and a lost connection shows as well.
        watch = connection.transport.open_session()
        watch.exec_command(f"exec tail --pid={process.pid} -s 0.2 -f /dev/null")
        return RunningWorker(row, folder, process, watch)

    def ended(self) -> list[RunningWorker]:
        """The workers whose process is gone."""
        return [worker for worker in self.running if worker.ended]

    @property
    def all_ended(self) -> bool:
        return all(worker.ended for worker in self.running)

    def exit_code(self, worker: RunningWorker) -> int | None:
        """What an ended worker ended with; None where that is not known."""
        connection = self._connections[worker.row.site]
        try:
            return remote.find_process(connection, worker.process.key).exit_code
        except Exception:
            # The site itself may be gone; the caller has a cause already and this only adds to it.
            return None

    def failures(self) -> list[str]:
        """In words, every ended worker whose exit code is not 0."""
        codes = _in_parallel(lambda worker: (worker, self.exit_code(worker)), self.ended())
        return [describe_end(worker, code) for worker, code in codes if code != 0]

    def wait(self, seconds: float) -> list[RunningWorker]:
        """Give the workers so long to end by themselves; return those that have not."""
        pause = threading.Event()
        for _ in range(max(1, round(seconds / 0.1))):
            left = [worker for worker in self.running if not worker.ended]
            if not left:
                return []
            pause.wait(0.1)
        return [worker for worker in self.running if not worker.ended]

    def end(self) -> list[str]:
        """End whatever still runs and close the connections; return what could not be ended, in words."""
        problems: list[str] = []

        def end_one(worker: RunningWorker) -> str | None:
            try:
                remote.end_process(self._connections[worker.row.site], worker.process)
            except Exception as error:
                return f"worker {worker.name}: {error}"
            return None

        left = [worker for worker in self.running if not worker.ended]
        problems += [problem for problem in _in_parallel(end_one, left) if problem]
        self.close()
        return problems

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


def describe_end(worker: RunningWorker, exit_code: int | None) -> str:
    """How a worker ended, with its last words, as `worker dc3-0 ended with status 1: ...`."""
    if exit_code is None:
        how = "is gone"
    elif exit_code > 128:
        how = f"was ended by signal {exit_code - 128}"
    else:
        how = f"ended with status {exit_code}"
    words = last_lines(worker.folder / "stderr")
    return f"worker {worker.name} {how}" + (f": {' | '.join(words)}" if words else "")


def last_lines(path: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a file that are not blank; none where there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return list(deque((line.strip() for line in text.splitlines() if line.strip()), maxlen=lines))


def _in_parallel(task: Callable[[Any], Result], items: Iterable[Any]) -> list[Result]:
    """Do a task for all items at once. If some fail, raise one error that names them all.

    An interrupt is passed on only when no task runs any more: a worker that is just being started would
    otherwise be known to nobody, and outlive the run.
    """
    items = list(items)
    if not items:
        return []
    pool = ThreadPoolExecutor(max_workers=min(32, len(items)))
    futures = [pool.submit(task, item) for item in items]
    try:
        wait(futures)
    except KeyboardInterrupt:
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()
    errors = [error for future in futures if (error := future.exception()) is not None]
    if not errors:
        return [future.result() for future in futures]
    if len(errors) == 1 or not all(isinstance(error, StormbedError) for error in errors):
        raise errors[0]
    raise RunFailedError("; ".join(str(error) for error in errors))
