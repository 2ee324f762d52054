"""The documents: links lead somewhere, commands can be typed, and quoted messages are said."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from testbed.cli import build

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
PACKAGES = ("topologies", "controller", "agents", "testbed")


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as they are made of them."""
    found = set()
    for line in prose(path):
        if heading := re.match(r"#+ (.+)", line):
            plain = re.sub(r"[^\w\- ]", "", heading[1].lower())
            found.add(plain.strip().replace(" ", "-"))
    return found


def prose(path: Path) -> list[str]:
    """The lines of a document that are no code."""
    lines, fenced = [], False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            lines.append(line)
    return lines


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", "\n".join(prose(path))):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = path if not file else (path.parent / file).resolve()
        assert there.exists(), f"{path.name} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{path.name} links to {target}"


def test_every_document_can_be_reached_from_the_readme() -> None:
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for target in re.findall(r"\]\(([^)#\s]+\.md)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                todo.append((path.parent / target).resolve())
    assert set(DOCUMENTS) <= seen


def commands(path: Path) -> list[str]:
    """Every command line of `testbed` in a document: in code blocks, and as words of a text."""
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"^(?: {4}|\$ |)((?:sudo )?testbed [a-z][^\n]*)$", text, flags=re.MULTILINE)
    found += re.findall(r"`(testbed [a-z][^`\n]*)`", text)
    return [re.split(r"\s{2,}#|\s#\s", line)[0].strip() for line in found]


def parses(root: Any, words: list[str]) -> str | None:
    """What is wrong with a command line; None where all its verbs and options exist.

    Values are not looked at: `RUN` and `...` stand for what the reader has.
    """
    command = root
    while words and hasattr(command, "commands"):
        verb = words.pop(0)
        if verb not in command.commands:
            return f"no verb {verb}"
        command = command.commands[verb]
    options = {name: param for param in command.params for name in param.opts + param.secondary_opts}
    while words:
        word = words.pop(0)
        if word == "--":
            break
        if not word.startswith("-") and not command.context_settings.get("allow_interspersed_args", True):
            break  # from here on they are another program's
        if word.startswith("-") and not re.fullmatch(r"-?\d.*", word):
            name = word.partition("=")[0]
            if name in ("--help", "-h"):
                continue
            if name not in options:
                return f"no option {name}"
            if "=" not in word and not getattr(options[name], "is_flag", False) and words:
                words.pop(0)
    return None


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_commands_can_be_typed(path: Path) -> None:
    if path.stem == "cli":
        return  # made from the command itself
    root = typer.main.get_command(build())
    wrong = []
    for line in commands(path):
        for part in re.split(r"[;|]|&&", line):
            words = part.strip().split() if "'" in part or '"' in part else shlex.split(part)
            if words and words[0] == "sudo":
                words.pop(0)
            if len(words) > 1 and words[0] == "testbed" and re.fullmatch(r"[a-z][a-z-]*", words[1]):
                problem = parses(root, words[1:])
                if problem:
                    wrong.append(f"{part.strip()}: {problem}")
    assert wrong == []


def test_the_commands_are_found_at_all() -> None:
    found = [line for path in DOCUMENTS for line in commands(path)]
    assert len(found) > 60 and "testbed run quickstart" in found
    root = typer.main.get_command(build())
    assert parses(root, ["rn", "quickstart"]) == "no verb rn"
    assert parses(root, ["run", "quickstart", "--wrld", "simulated"]) == "no option --wrld"
    assert parses(root, ["link", "set", "a", "b", "--rate", "20mbit"]) is None


def test_quoted_messages_are_said() -> None:
    """A message that the code no longer says would be looked for in vain."""
    source = "\n".join(
        path.read_text(encoding="utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    )
    headings = [
        line for line in (ROOT / "docs" / "troubleshooting.md").read_text().splitlines() if line[:4] == "### "
    ]
    quoted = [words for heading in headings for words in re.findall(r"`([^`]+)`", heading)]
    assert len(quoted) > 10
    missing = [words for words in quoted if words not in source and not words.startswith("testbed ")]
    assert missing == []


def test_the_programs_of_the_documents_can_be_compiled() -> None:
    programs = [
        program for path in DOCUMENTS for program in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    ]
    assert len(programs) > 3
    for program in programs:
        compile(program, "document", "exec")


def test_the_launcher_names_its_script_from_anywhere() -> None:
    """At a site a command starts in another folder, where a relative path leads nowhere."""
    text = (ROOT / "docs" / "training.md").read_text()
    (program,) = re.findall(r"```python\n(# launch\.py.*?)```", text, re.DOTALL)
    assert "os.path.abspath(sys.argv[2])" in program
