"""What is no file is refused by every verb that takes one, at once: a pipe would be waited for without end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents.npz import read_arrays
from testbed.cli import build, errors
from topologies.errors import InvalidFileError
from topologies.files import open_file, read_text

VERBS = {
    "validate": ("validate", "{}.yaml"),
    "graph": ("graph", "{}.yaml"),
    "graph of GML": ("graph", "{}.gml"),
    "plan": ("plan", "{}.yaml"),
    "bound": ("bound", "{}.yaml"),
    "up": ("up", "{}.yaml"),
    "run": ("run", "{}.yaml", "--world", "simulated"),
    "coflow": ("coflow", "{}.txt"),
    "trace": ("trace", "convert", "{}.csv", "out.mahi"),
}


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/null")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "says"), [(make_pipe, "is a pipe"), (make_device, "is a device"), (Path.mkdir, "is a folder")]
)
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_what_is_no_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    make: Callable[[Path], None],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STORMBED_RUN_ROOT", str(tmp_path / "root"))
    words = [word.format("./odd") for word in VERBS[verb]]
    make(Path(next(word for word in words if word.startswith("./odd"))))
    code = errors.exit_code_of(lambda: build()(words, prog_name="testbed"))
    said = capsys.readouterr().err
    assert code == 2, said
    assert f"{says}, not a file" in said
    assert len(said.strip().splitlines()) <= 2


def test_the_topology_of_an_experiment_goes_through_the_same_door(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "wan.yaml")
    file = tmp_path / "experiment.yaml"
    file.write_text("name: t\ntopology: wan.yaml\ntraining: {model: tensor-1m}\nschedulers: [star]\n")
    code = errors.exit_code_of(lambda: build()(["validate", str(file)], prog_name="testbed"))
    assert code == 2
    assert "wan.yaml is a pipe" in capsys.readouterr().err


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Path]:
    with socket.socket(socket.AF_UNIX) as server:
        path = tmp_path / "s.npz"
        server.bind(str(path))
        yield path


def test_sockets_and_arrays(tmp_path: Path, listening: Path) -> None:
    with pytest.raises(InvalidFileError, match="is a socket"):
        read_text(listening)
    with pytest.raises(InvalidFileError, match="is a socket"):
        read_arrays(listening)
    file = tmp_path / "plain"
    file.write_bytes(b"ok")
    with open_file(file) as opened:
        assert opened.read() == b"ok"
