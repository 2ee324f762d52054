"""A runner's connection to a coordinator: blocking calls."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from agents import wire
from agents.config import Config
from agents.errors_on_wire import error_from_dict
from agents.wire import ProtocolError
from topologies.errors import DeadlineError, RunFailedError

CONNECT_SECONDS: Final = 30.0
# The coordinator sends a sign of life every few seconds.
SILENCE_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 0.1


class ControlClient:
    """The other end of a `ControlServer`, for a runner: a call is one request and its answer.

    One call at a time.

    Args:
        host, port: where it listens.
        timeout: seconds to wait until it does.

    Raises DeadlineError when nobody answers there.
    """

    name = "coordinator"  # of who answers, as errors call it

    def __init__(self, host: str, port: int, timeout: float = CONNECT_SECONDS) -> None:
        self._address = (host, port)
        self._lock = threading.Lock()
        self._decoder = wire.Decoder()
        self._number = 0
        self._socket = _dial(self.name, self._address, timeout)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, verb: str, **arguments: Any) -> Any:
        with self._lock:
            self._number += 1
            body = wire.pack_body({"id": self._number, "args": arguments})
            try:
                self._socket.sendall(wire.encode_bytes({"kind": verb}, body))
                answer = self._receive(verb)
            except TimeoutError:
                raise RunFailedError(f"the {self.name} was silent for {SILENCE_SECONDS:g} s during {verb}") from None
            except OSError as error:
                raise RunFailedError(f"the connection to the {self.name} failed during {verb}: {error}") from None
        if "error" in answer:
            raise error_from_dict(answer["error"])
        return answer.get("result")

    def _receive(self, verb: str) -> dict[str, Any]:
        while True:
            while (frame := self._decoder.next_frame()) is not None:
                if frame.header.get("kind") != "answer":
                    continue
                answer = wire.unpack_body(frame.payload)
                if not isinstance(answer, dict):
                    raise ProtocolError(f"the {self.name}'s answer to {verb} is not a map")
                if answer.get("id") == self._number:
                    return answer
            count = self._socket.recv_into(self._decoder.buffer())
            if not count:
                raise RunFailedError(f"the {self.name} ended during {verb}")
            self._decoder.advance(count)


class CoordinatorClient(ControlClient):
    """Opens jobs and runs segments. Jobs that it opened stop when its connection ends.

    One call at a time, but `abort`, `status` and `plan` may be called from another thread meanwhile.
    """

    @classmethod
    def of_testbed(cls, run_dir: str | Path, timeout: float = CONNECT_SECONDS) -> Self:
        """To the coordinator of a running testbed."""
        return cls(*Config.load(Path(run_dir)).addresses.for_runners, timeout)

    def open_job(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Make a job known at its sites, so that workers can join.

        Args:
            spec: {"job": name, "sites": {site: workers}, "chunk_elements", "deadline_s", "scheduler"}; only
                the first two are required. With a scheduler the workers need no segment before their first
                collective.

        Returns {"job", "world_size"}.
        """
        result: dict[str, Any] = self._call("open_job", spec=dict(spec))
        return result

    def run_segment(
        self,
        job: str,
        segment: Mapping[str, Any],
        *,
        start_timeout: float = 120.0,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Let all workers of a job run a segment; returns when every one has finished it.

        Args:
            segment: handed to the workers as it is; "label" names it, "scheduler" is planned with (a name, or
                name and options; without it the one in use stays), "chunk_elements" replaces the job's.
            start_timeout: seconds until all workers must have joined and be free.
            timeout: seconds that the segment may take; None leaves it to the deadlines of its collectives.

        Returns {"segment", "policy_version", "collectives", "plan"}. Raises RunFailedError with the named
        cause when the job stopped, DeadlineError naming the workers that were waited for.
        """
        result: dict[str, Any] = self._call(
            "run_segment", job=job, segment=dict(segment), start_timeout=start_timeout, timeout=timeout
        )
        return result

    def close_job(self, job: str, timeout: float = 30.0) -> None:
        """End a job: its workers are told that there are no more segments, and leave."""
        self._call("close_job", job=job, timeout=timeout)

    def abort(self, job: str, why: str) -> None:
        """Stop a job; its workers and a `run_segment` under way fail with this cause."""
        self._aside("abort", job=job, why=why)

    def status(self) -> dict[str, Any]:
        """{"schema", "agents": {site: connected}, "jobs": [...]}"""
        result: dict[str, Any] = self._aside("status")
        return result

    def plan(self, job: str) -> dict[str, Any]:
        """The policy that carries a job's collectives now.

        Returns {"job", "policy_version", "plan"}; the plan as `testbed plan --format json` prints it, None where
        the scheduler decides per transfer. Raises UsageError when there is no such job.
        """
        result: dict[str, Any] = self._aside("plan", job=job)
        return result

    def set_rates(self, rates: Mapping[tuple[str, str], float]) -> None:
        """Plan with these bit/s from the next segment on, by (from, to); other links keep theirs."""
        self._call("rates", rates=[[src, dst, bps] for (src, dst), bps in rates.items()])

    def follow_coflow(self, address: tuple[str, int] | None) -> None:
        """Let all agents follow the coflow coordinator at an address, until this connection ends or None."""
        self._call("coflow", address=None if address is None else list(address))

    def _aside(self, verb: str, **arguments: Any) -> Any:
        """A call on a connection of its own, so that it need not wait for one under way."""
        with type(self)(*self._address) as other:
            return other._call(verb, **arguments)


def _dial(name: str, address: tuple[str, int], timeout: float) -> socket.socket:
    deadline = time.monotonic() + timeout
    waiter = threading.Event()
    while True:
        try:
            sock = socket.create_connection(address, timeout=min(5.0, timeout))
            break
        except OSError as error:
            if time.monotonic() + RETRY_SECONDS > deadline:
                where = f"the {name} to answer at {address[0]}:{address[1]}"
                raise DeadlineError(where, timeout, hint=f"{error}; is the testbed up?") from None
            waiter.wait(RETRY_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(SILENCE_SECONDS)
    hello = {"role": "runner", "version": wire.VERSION}
    sock.sendall(wire.encode_bytes({"kind": "hello"}, wire.pack_body(hello)))
    return sock
