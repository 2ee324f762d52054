"""What `python -m controller` says when it cannot start. None of these needs the OpenFlow engine."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.__main__ import main


@pytest.fixture(autouse=True)
def plain_logging() -> Iterator[None]:
    """`main` sets up the root logger; put it back."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    for handler in set(root.handlers) - set(before):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        (["--topology", "netstorm9"], 2, "did you mean netstorm-9?"),
        (["--topology", "nowhere/wan.yaml"], 2, "there is no file nowhere/wan.yaml"),
        (["--topology", "pair", "--openflow", "6653"], 2, "--openflow '6653' is not HOST:PORT"),
        (["--topology", "pair", "--http", "127.0.0.1:0"], 2, "--http '127.0.0.1:0' is not HOST:PORT"),
        (["--topology", "pair", "--http", "127.0.0.1:99999"], 2, "is not HOST:PORT"),
        (["--topology", "pair", "--log", "/nowhere/at/all.log"], 2, "cannot write the log"),
        (
            ["--topology", "pair", "--openflow", "203.0.113.1:6653"],
            4,
            "cannot listen for switches on 203.0.113.1",
        ),
    ],
)
def test_what_cannot_be(
    options: list[str], code: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options) == code
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and expected in shown and "Traceback" not in shown


@pytest.mark.parametrize("option", ["--openflow", "--http"])
def test_a_taken_port(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = "--http" if option == "--openflow" else "--openflow"
    log = tmp_path / "controller.log"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        options = [
            "--topology",
            "pair",
            option,
            address,
            other,
            f"127.0.0.1:{free_port()}",
            "--log",
            str(log),
        ]
        assert main(options) == 4
    assert address in capsys.readouterr().err
    assert address in log.read_text()
