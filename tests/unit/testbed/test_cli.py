"""The command line: parsing, messages, exit codes, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed import api
from testbed.cli import errors
from testbed.cli.graph import as_mermaid
from testbed.cli.list import age
from testbed.cli.output import Progress
from testbed.cli.plan import parse_options
from testbed.cli.validate import kind_of
from topologies.errors import (
    CannotHonourError,
    CleanupError,
    DeadlineError,
    FidelityError,
    InvalidFileError,
    RunFailedError,
    StormbedError,
    UsageError,
)
from topologies.load import load_topology, topology_from_dict

# --- Errors become exit codes in one place ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StormbedError("x"), 1),
        (DeadlineError("the sun", 5), 1),
        (UsageError("x"), 2),
        (InvalidFileError("x"), 2),
        (FidelityError("x"), 3),
        (CannotHonourError("x"), 4),
        (RunFailedError("x"), 5),
        (CleanupError("x"), 6),
        (KeyboardInterrupt(), 130),
        (SystemExit(0), 0),
        (SystemExit(130), 130),
    ],
)
def test_exit_codes(error: BaseException, code: int) -> None:
    def command() -> None:
        raise error

    assert errors.exit_code_of(command) == code


def test_message_and_hint_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise UsageError("no testbed 'x' is up", hint="did you mean y?")

    errors.exit_code_of(command)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "testbed: no testbed 'x' is up\n  hint: did you mean y?\n"


def test_an_unexpected_error_is_one_line_and_saves_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise ZeroDivisionError("two\nlines")

    assert errors.exit_code_of(command) == 1
    err = capsys.readouterr().err
    assert err.startswith("testbed: internal error: ZeroDivisionError: two lines; ")
    assert err.count("\n") == 1
    saved = Path(err.rsplit(" ", 1)[1].strip())
    assert "raise ZeroDivisionError" in saved.read_text()
    saved.unlink()


def test_a_closed_pipe_is_not_an_internal_error() -> None:
    shown = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m testbed graph netstorm-9 | head -1"],
        capture_output=True,
        text=True,
    )
    assert shown.stdout.startswith("netstorm-9: 9 sites")
    assert "internal" not in shown.stderr and "Traceback" not in shown.stderr


def test_a_polite_kill_counts_as_an_interrupt() -> None:
    code = (
        "import os, signal, threading, testbed.cli as c\n"
        "def build():\n"
        "    def run(**_):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        threading.Event().wait(20)\n"
        "    return run\n"
        "c.build = build\n"
        "c.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 130
    assert done.stderr == "testbed: interrupted\n"


# --- Verbs that only read ---------------------------------------------------------------------------------


def test_help_names_every_verb_and_the_exit_codes(testbed: Any) -> None:
    text = testbed("--help").stdout
    for verb in (
        *("doctor", "validate", "graph", "plan", "up", "list", "status", "link"),
        *("exec", "shell", "ps", "kill", "down", "clean"),
    ):
        assert f" {verb} " in text, verb
    assert "130 interrupted" in " ".join(text.split())


def test_version(testbed: Any) -> None:
    assert testbed("--version").stdout.startswith("stormbed 0.")


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("graph",), ("graph", "pair", "--nonsense"), ("plan", "pair", "--scale", "much")],
)
def test_usage_errors_exit_2(testbed: Any, arguments: tuple[str, ...]) -> None:
    assert testbed(*arguments).returncode == 2


def test_a_verb_that_is_nearly_right_is_suggested(testbed: Any) -> None:
    assert "graph" in testbed("grpah", "pair").stderr


def test_graph_shows_both_directions(testbed: Any) -> None:
    document = json.loads(testbed("graph", "netstorm-9", "--format", "json").stdout)
    assert document["schema"] == 1
    rates = {(link["src"], link["dst"]): link["rate_bps"] for link in document["links"]}
    assert (rates["dc1", "dc2"], rates["dc2", "dc1"]) == (38e6, 54e6)
    assert len(rates) == 26
    text = testbed("graph", "netstorm-9").stdout
    assert any(line.split()[:3] == ["dc2", "dc1", "54.0"] for line in text.splitlines())


def test_graph_scales(testbed: Any) -> None:
    document = json.loads(testbed("graph", "pair", "--scale", "0.5", "--format", "json").stdout)
    assert document["links"][0]["rate_bps"] == 50e6


def test_mermaid_holds_whatever_a_site_is_called() -> None:
    # `end` and `graph` are words of Mermaid's own.
    plain = {"name": "x", "sites": {"end": {}, "graph": {}}}
    network = topology_from_dict(
        plain | {"links": [{"endpoints": ["end", "graph"], "rate": "1mbit", "backward": {"rate": "2mbit"}}]}
    )
    text = as_mermaid(network)
    assert text.startswith("graph LR\n")
    assert 'n0 -->|"1mbit, 0ms"| n1' in text
    assert 'n1 -->|"2mbit, 0ms"| n0' in text


def test_validate_tells_the_kinds_apart(testbed: Any) -> None:
    assert kind_of("netstorm-9") == "topology"
    assert kind_of("quickstart") == "experiment"
    assert json.loads(testbed("validate", "quickstart", "--format", "json").stdout)["kind"] == "experiment"


def test_validate_resolved_prints_every_default(testbed: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nsites: {a: , b: }\nlinks:\n- {endpoints: [a, b], rate: 5mbit}\n")
    text = testbed("validate", str(file), "--resolved").stdout
    for default in ("delay: 0ms", "jitter: 0ms", "loss: 0%", "workers: 1"):
        assert default in text
    again = tmp_path / "again.yaml"
    again.write_text(text)
    assert load_topology(again).rates() == load_topology(file).rates()


WRONG = {
    "unknown key": ("sites: {a: , b: }\nlinks:\n- {endpoints: [a, b], rat: 5mbit}\n", ["'rat'", "rate"]),
    "bare number": ("sites: {a: , b: }\nlinks:\n- {endpoints: [a, b], rate: 5}\n", ["bare number", "unit"]),
    "self link": ("sites: {a: , b: }\nlinks:\n- {endpoints: [a, a], rate: 5mbit}\n", ["itself"]),
    "disconnected": (
        "sites: {a: , b: , c: }\nlinks:\n- {endpoints: [a, b], rate: 5mbit}\n",
        ["c cannot be reached"],
    ),
    "neither kind": ("sizes: 3\n", ["neither a topology nor an experiment"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_one_clear_message(testbed: Any, tmp_path: Path, case: str) -> None:
    text, words = WRONG[case]
    file = tmp_path / "wrong.yaml"
    file.write_text(f"name: wrong\n{text}")
    done = testbed("validate", str(file))
    assert done.returncode == 2
    assert done.stdout == ""
    for word in (*words, str(file)):
        assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_file_and_a_misspelt_name(testbed: Any, tmp_path: Path) -> None:
    missing = testbed("validate", str(tmp_path / "none.yaml"))
    assert missing.returncode == 2 and "none.yaml" in missing.stderr
    misspelt = testbed("validate", "netstorm9")
    assert misspelt.returncode == 2 and "netstorm-9" in misspelt.stderr


def test_plan_prints_the_agreed_shape(testbed: Any) -> None:
    document = json.loads(
        testbed("plan", "netstorm-9", "-s", "netstorm", "--roots", "2", "--format", "json").stdout
    )
    assert document["schema"] == 1 and document["scheduler"] == "netstorm"
    assert len(document["roots"]) == 2
    assert sum(root["share"] for root in document["roots"]) == pytest.approx(1)
    for root in document["roots"]:
        assert root["parents"][root["site"]] is None
        assert set(root["parents"]) == {f"dc{k}" for k in range(1, 10)}


def test_plan_takes_a_star_at_a_site(testbed: Any) -> None:
    document = json.loads(
        testbed("plan", "triangle", "-s", "star", "--site", "dc3", "--format", "json").stdout
    )
    assert document["scheduler"] == "star-dc3"
    assert testbed("plan", "triangle", "-s", "star", "--site", "dc3").stdout.count("root") >= 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-s", "netstrom"), ["netstrom", "netstorm"]),
        (("-s", "star", "--site", "dc9"), ["dc9"]),
        (("-s", "netstorm", "--site", "dc1"), ["server"]),
        (("-o", "server"), ["KEY=VALUE"]),
    ],
)
def test_plan_refuses_what_it_does_not_know(
    testbed: Any, arguments: tuple[str, ...], words: list[str]
) -> None:
    done = testbed("plan", "triangle", *arguments)
    assert done.returncode == 2
    for word in words:
        assert word in done.stderr


def test_options_are_read_as_yaml() -> None:
    assert parse_options(["server=best", "roots=3", "on=true"]) == {"server": "best", "roots": 3, "on": True}


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (59.9, "59s"), (190, "3m10s"), (7500, "2h05m")])
def test_age(seconds: float, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("name", "default"),
    [("netstorm-9", "netstorm-9"), ("My.Net_2", "my-net-2"), ("9", "9"), ("x" * 64, "x" * 32)],
)
def test_default_names_are_names(name: str, default: str) -> None:
    network = topology_from_dict({"name": name, "sites": {"a": {}}})
    assert api.default_name(network) == default


def test_progress_off_a_terminal_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Progress()("starting sshd")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("s] starting sshd\n") and "\x1b" not in err
