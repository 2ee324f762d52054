"""The command line: parsing, messages, exit codes, JSON; and wrong use, refused before anything is made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from testbed import api, doctor
from testbed.cli import build, errors
from testbed.cli.graph import as_mermaid
from testbed.cli.link import between
from testbed.cli.list import age
from testbed.cli.output import Progress
from testbed.cli.plan import parse_options
from testbed.cli.select import one_name
from testbed.cli.validate import kind_of
from testbed.emulation.rundir import RunDir, SiteInfo, TestbedInfo, write_info
from testbed.emulation.waiting import start_ticks
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

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: this claim is UNVERIFIED here")


@pytest.fixture
def testbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command with a run root of its own: no testbed that stands here is seen.

    It runs in this process, which saves a second each, unless it is to run `before` something.
    """
    monkeypatch.setenv("STORMBED_RUN_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        if before:
            argv = [*before, sys.executable, "-m", "testbed", *arguments]
            return subprocess.run(argv, capture_output=True, text=True, timeout=60)
        capsys.readouterr()
        code = errors.exit_code_of(lambda: build()(list(arguments), prog_name="testbed"))
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run


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


# --- Wrong use of a testbed, refused before anything is made -----------------------------------------------


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr


@needs_root
@pytest.mark.parametrize("verb", [("up", "pair"), ("exec", "dc1", "--", "true"), ("down",), ("clean",)])
def test_not_root(testbed: Any, tmp_path: Path, verb: tuple[str, ...]) -> None:
    # A user namespace without a mapping: nobody to themselves and to the kernel.
    done = testbed(*verb, before=["unshare", "--user", "--"])
    assert_refused(done, 4, "root", "sudo")
    assert not (tmp_path / "root").exists()


@needs_root
def test_no_open_vswitch(testbed: Any, tmp_path: Path) -> None:
    hide = 'mount --bind /dev/null "$(command -v ovs-vswitchd)" && exec "$@"'
    done = testbed("up", "pair", before=["unshare", "--mount", "--", "sh", "-c", hide, "sh"])
    assert_refused(done, 4, "ovs-vswitchd", "apt-get install")
    assert not (tmp_path / "root").exists()


@needs_root
def test_every_management_subnet_taken(testbed: Any, tmp_path: Path) -> None:
    take = 'ip link set lo up && ip addr add 10.199.0.1/16 dev lo && exec "$@"'
    done = testbed("up", "pair", before=["unshare", "--net", "--", "sh", "-c", take, "sh"])
    assert_refused(done, 4, "10.199.0.0/24", "in use")
    assert not list((tmp_path / "root").glob("*/"))


@needs_root
def test_a_wrong_name_for_a_testbed(testbed: Any, tmp_path: Path) -> None:
    assert_refused(testbed("up", "pair", "--name", "No Such"), 2, "No Such", "a-z")
    assert not (tmp_path / "root").exists()


@needs_root
@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("exec", "dc1", "--", "true"),
        ("shell", "dc1"),
        ("ps",),
        ("link", "show"),
        ("link", "set", "dc1", "dc2", "--rate", "5mbit"),
        ("down",),
        ("next-steps",),
    ],
)
def test_no_testbed_is_up(testbed: Any, arguments: tuple[str, ...]) -> None:
    assert_refused(testbed(*arguments), 2, "no testbed is up", "testbed up")


@needs_root
def test_a_named_testbed_that_is_not_up(testbed: Any) -> None:
    assert_refused(testbed("down", "mine"), 2, "'mine'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("exec", "dc1"), ["after --", "testbed exec dc1 -- hostname"]),
        (("exec", "a", "b", "c", "--", "true"), ["one site"]),
        (("link", "set", "dc1", "dc2"), ["nothing to change", "--rate"]),
        (("link", "set", "dc1", "dc2", "--rate", "5"), ["no unit", "5mbit"]),
        (("link", "set", "dc1", "dc2", "--rate", "5MB"), ["bytes"]),
        (("link", "set", "dc1", "dc2", "--rate", "1bit"), ["rate of 1 bit/s", "1kbit"]),
        (("link", "set", "dc1", "dc2", "--rate", "0mbit"), ["not above zero", "testbed link down"]),
        (("up", "pair", "--scale", "1e-9"), ["dc1 > dc2", "100mbit times 1e-09", "1kbit"]),
        (("link", "set", "dc1", "dc2", "--loss", "1% burst 0.5"), ["burst of 0.5"]),
        (("link", "set", "dc1", "dc2", "--loss", "2"), ["per cent"]),
        (("up", "pair", "--dynamics", "tide"), ["tide", "netstorm, uniform, walk, trace"]),
        (("up", "pair", "--dynamics", "netstorm"), ["nine sites"]),
        (("up", "pair", "--dynamics", "uniform?evry=1s"), ["evry=1s", "uniform?every=10s"]),
        (("up", "pair", "--dynamics", "trace?path=nowhere.csv"), ["nowhere.csv"]),
        (("up", "pair", "--dynamics", "uniform", "--scale", "1e-5"), ["below 1kbit"]),
    ],
)
def test_wrong_words_are_told_before_any_testbed_is_looked_for(
    testbed: Any, arguments: tuple[str, ...], words: list[str]
) -> None:
    assert_refused(testbed(*arguments), 2, *words)


def stand(*names: str) -> None:
    """Have testbeds listed as up, as far as their files tell: this process answers for them."""
    topology = load_topology("triangle")
    for name in names:
        run = RunDir.of(name)
        run.path.mkdir(parents=True)
        sites = {
            site: SiteInfo(index=k, wan_ip=f"10.0.0.{k + 1}", mgmt_ip=f"10.199.1.{k + 1}")
            for k, site in enumerate(topology.site_names)
        }
        info = TestbedInfo(
            name=name,
            created_s=0.0,
            state="up",
            topology=topology.to_dict(),
            subnet="10.199.1.0/24",
            interface="sb1-m",
            pid=os.getpid(),
            started_ticks=start_ticks(os.getpid()),
            sites=sites,
        )
        write_info(run, info)


@needs_root
def test_an_emulated_run_without_its_packages_leaves_no_run(
    testbed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(doctor.PYTHON_PACKAGES, "not_installed_here", "fabric")
    runs = tmp_path / "runs"
    assert_refused(testbed("run", "quickstart", "--out", str(runs)), 4, "has no fabric", "pip install")
    assert not runs.exists()


@needs_root
def test_the_hint_among_several_testbeds_is_a_command_of_the_verb(testbed: Any) -> None:
    stand("mine", "other")
    for verb, rest in (("kill", ["182"]), ("shell", []), ("exec", ["--", "hostname"])):
        done = testbed(verb, "dc1", *rest)
        hint = f"testbed {verb} dc1 --name NAME"
        assert_refused(done, 2, "mine, other", hint)
        words = hint.split()[1:]
        assert parsed([*words[:2], *(rest if verb == "kill" else []), *words[2:]])["name"] == "NAME"


def test_a_link_is_called_by_its_directions() -> None:
    assert (between("a", "b"), between("a", "b", True)) == ("a - b", "a > b")


def test_exec_without_a_command_knows_a_testbed_from_a_command(testbed: Any) -> None:
    stand("mine")
    assert_refused(testbed("exec", "mine", "dc1"), 2, "testbed exec mine dc1 -- hostname")
    assert_refused(testbed("exec", "dc1", "uptime"), 2, "testbed exec dc1 -- uptime")


@pytest.mark.parametrize("pid", ["-1", "0", "1"])
def test_kill_takes_only_pids_of_processes(testbed: Any, pid: str) -> None:
    assert_refused(testbed("kill", "dc1", "--", pid), 2, f"{pid} is not the pid", "testbed ps dc1")


@needs_root
def test_clean_before_programs_are_removed_refuses_while_a_testbed_is_up(testbed: Any) -> None:
    assert testbed("clean", "--none-up").returncode == 0
    stand("mine", "other")
    assert_refused(testbed("clean", "--none-up"), 2, "mine, other", "make down NAME=mine")
    assert len(json.loads(testbed("list", "--format", "json").stdout)["testbeds"]) == 2
    assert testbed("clean").returncode == 0


@needs_root
def test_make_clean_keeps_everything_while_a_testbed_is_up(testbed: Any, tmp_path: Path) -> None:
    stand("mine")
    folder = tmp_path / "checkout"
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "testbed").write_text(f'#!/bin/sh\nexec {sys.executable} -m testbed "$@"\n')
    (programs / "testbed").chmod(0o755)
    makefile = Path(__file__).parents[3] / "Makefile"
    # This process's own environment: the run root of this test, and the package wherever it is.
    environment = {**os.environ, "PYTHONPATH": str(makefile.parent)}
    argv = ["make", "-C", str(folder), "-f", str(makefile), "clean"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "make down NAME=mine" in done.stderr
    assert programs.is_dir()


@pytest.mark.parametrize("others", [(), ("other",)])
def test_every_next_step_parses_and_names_its_testbed(testbed: Any, others: tuple[str, ...]) -> None:
    stand("mine", *others)
    printed = testbed("next-steps", "--name", "mine")
    assert printed.returncode == 0, printed.stderr
    # A column of commands, two spaces, a column of words.
    commands = [line.split("  ")[0].split() for line in printed.stdout.splitlines() if "testbed " in line]
    commands = [words[1:] for words in commands if words[0] == "testbed"]
    assert {words[0] for words in commands} >= {"status", "dashboard", "exec", "link", "run", "report", "down"}
    for words in commands:
        parameters = parsed(words)
        if others and words[0] != "report":
            assert "mine" in parameters.values(), words


def parsed(words: list[str]) -> dict[str, Any]:
    """The parameters of the verb that is meant; parsing raises what the command line would refuse."""
    command: Any = typer.main.get_command(build())
    context = command.make_context("testbed", list(words))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return dict(context.params)


def test_a_name_is_taken_as_word_and_as_option(testbed: Any) -> None:
    for verb in ("status", "down", "clean"):
        assert parsed([verb, "mine"])["name"] == "mine"
        assert parsed([verb, "--name", "mine"])["named"] == "mine"
    assert one_name("mine", None) == one_name(None, "mine") == one_name("mine", "mine") == "mine"
    with pytest.raises(UsageError, match="two testbeds"):
        one_name("mine", "other")


def test_down_may_be_content_with_nothing_to_take_away(testbed: Any) -> None:
    assert testbed("down", "mine").returncode == 2
    done = testbed("down", "mine", "--if-up")
    assert (done.returncode, done.stdout) == (0, "testbed mine is not up\n")
    done = testbed("down", "--if-up")
    assert (done.returncode, done.stdout) == (0, "no testbed is up\n")


def test_list_without_testbeds(testbed: Any) -> None:
    assert json.loads(testbed("list", "--format", "json").stdout) == {"schema": 1, "testbeds": []}
    assert testbed("list").returncode == 0


def test_sigterm_handler_is_only_installed_by_main() -> None:
    # Importing the command line into a program of one's own must not change how it dies.
    before = signal.getsignal(signal.SIGTERM)
    assert isinstance(build(), typer.Typer)
    assert signal.getsignal(signal.SIGTERM) is before


def test_every_verb_that_needs_no_testbed_does_without_the_emulators_packages() -> None:
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'mininet', 'torch', 'fabric', 'paramiko', 'os_ken', 'sklearn'}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from testbed.cli import main\n"
        "main()\n"
    )
    for arguments in (("plan", "pair"), ("list",), ("graph", "pair"), ("validate", "quickstart")):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
