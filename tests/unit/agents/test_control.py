"""The runner's client: errors keep their class and text, and nothing waits for ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from agents import control, wire
from agents.control import CoordinatorClient, error_from_dict
from agents.errors_on_wire import error_to_dict
from agents.planning.base import PlanError
from topologies import errors
from topologies.errors import DeadlineError, RunFailedError, StormbedError


@pytest.mark.parametrize("name", ["StormbedError", "UsageError", "RunFailedError", "CannotHonourError"])
def test_errors_cross_the_wire(name: str) -> None:
    error = getattr(errors, name)("what", hint="do this")
    again = error_from_dict(error_to_dict(error))
    assert type(again) is type(error) and str(again) == "what (do this)"


def test_deadlines_and_unknown_classes_cross_too() -> None:
    again = error_from_dict(error_to_dict(DeadlineError("the moon", 3.0, hint="look up")))
    assert isinstance(again, DeadlineError) and (again.what, again.seconds) == ("the moon", 3.0)
    assert str(again) == "waited 3 s for the moon in vain (look up)"
    plan = error_from_dict(error_to_dict(PlanError("no way")))
    assert type(plan) is StormbedError and str(plan) == "no way"
    other = {"type": "SomethingNewer", "message": "m", "hint": "", "exit_code": 5}
    assert type(error_from_dict(other)) is RunFailedError


@pytest.fixture
def fake() -> Iterator[Callable[[Callable[[socket.socket], None]], tuple[str, int]]]:
    """A listener that handles its one connection as told."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def serve(handle: Callable[[socket.socket], None]) -> tuple[str, int]:
        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                handle(connection)

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        host, port = listener.getsockname()
        return host, port

    yield serve
    listener.close()
    for thread in threads:
        thread.join(5)


def test_nobody_there(fake: object) -> None:
    with pytest.raises(
        DeadlineError, match=r"the coordinator to answer at 127\.0\.0\.1:1 in vain .*is the testbed up"
    ):
        CoordinatorClient("127.0.0.1", 1, timeout=0.3)


def test_a_coordinator_that_falls_silent(
    fake: Callable[[Callable[[socket.socket], None]], tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "SILENCE_SECONDS", 0.2)
    over = threading.Event()
    with CoordinatorClient(*fake(lambda connection: over.wait(5) and None)) as client:
        with pytest.raises(RunFailedError, match=r"the coordinator was silent for 0\.2 s during close_job"):
            client.close_job("job")
        over.set()


def test_a_coordinator_that_ends(fake: Callable[[Callable[[socket.socket], None]], tuple[str, int]]) -> None:
    with (
        CoordinatorClient(*fake(lambda connection: connection.recv(1) and None)) as client,
        pytest.raises(RunFailedError, match=r"coordinator .*during open_job"),
    ):
        client.open_job({"job": "x"})


def test_an_answer_to_another_request_is_not_taken(
    fake: Callable[[Callable[[socket.socket], None]], tuple[str, int]],
) -> None:
    def handle(connection: socket.socket) -> None:
        connection.recv(10_000)
        for number, result in [(7, "wrong"), (1, "right")]:
            body = wire.pack_body({"id": number, "result": result})
            connection.sendall(wire.encode_bytes({"kind": "ping"}))
            connection.sendall(wire.encode_bytes({"kind": "answer"}, body))
        while connection.recv(10_000):
            pass

    with CoordinatorClient(*fake(handle)) as client:
        assert client.open_job({"job": "x"}) == "right"
