"""Wrong use of a testbed, refused before anything is made; and which one is meant where several stand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from testbed import doctor
from testbed.cli import build
from testbed.cli.link import between
from testbed.cli.select import one_name
from testbed.emulation.rundir import RunDir, SiteInfo, TestbedInfo, write_info
from testbed.emulation.waiting import start_ticks
from topologies.errors import UsageError
from topologies.load import load_topology

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: this claim is UNVERIFIED here")


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
    take = 'ip link set lo up && ip addr add 10.199.0.1/16 dev lo && ip addr add 10.198.0.1/16 dev lo && exec "$@"'
    done = testbed("up", "pair", before=["unshare", "--net", "--", "sh", "-c", take, "sh"])
    assert_refused(done, 4, "10.199.0.0/16", "in use")
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
    assert_refused(testbed("run", "quickstart", "--out", str(runs)), 4, "has no fabric", "make setup")
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
