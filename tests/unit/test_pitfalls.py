"""The table of known pitfalls: each names a test that exists; and what no code here may do."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "pitfalls.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| (\d+) \|.*\| `([^`]+)` \|$", TABLE, flags=re.MULTILINE))
PACKAGES = ("topologies", "controller", "agents", "testbed", "benchmarks")


@cache
def functions_of(path: Path) -> frozenset[str]:
    """The names of a file's test functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_pitfall_has_its_row() -> None:
    assert sorted(map(int, ROWS)) == list(range(1, 49))
    assert len(re.findall(r"^\| \d+ \|", TABLE, flags=re.MULTILINE)) == 48


@pytest.mark.parametrize("number", ROWS)
def test_the_test_of_a_pitfall_exists(number: str) -> None:
    file, _, name = ROWS[number].partition("::")
    path = ROOT / "tests" / file
    assert path.exists(), f"pitfall {number}: there is no {path}"
    assert name.startswith("test_") and name in functions_of(path), f"pitfall {number}: {file} has no {name}"


def code() -> list[tuple[Path, ast.AST]]:
    """Every node of every module, without comments."""
    return [
        (path, node)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "node_modules" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]


CODE = code()


def words_of_commands() -> list[tuple[Path, str]]:
    """Every word of a command: single words, as commands are lists of them, and words of lines for a batch."""
    found = []
    for path, node in CODE:
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            for element in node.elts:
                if isinstance(element, ast.Constant) and isinstance(element.value, str):
                    found += [(path, word) for word in element.value.split()]
    return found


def test_nothing_is_ended_or_deleted_by_a_pattern() -> None:
    broad = {"killall", "pkill", "killall5", "del-br", "emer-reset"}
    assert not [(path.name, word) for path, word in words_of_commands() if word in broad]
    assert any(word == "nsenter" for _, word in words_of_commands()), "commands are found at all"
    for path, node in CODE:
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("os.system", "os.popen", "os.killpg(0"), f"{path}: {called}"
            shell = [keyword for keyword in node.keywords if keyword.arg == "shell"]
            assert not shell, f"{path}, line {node.lineno}: commands are lists of words"


def test_no_code_relies_on_what_is_known_to_mislead() -> None:
    names = {
        *(node.attr for _, node in CODE if isinstance(node, ast.Attribute)),
        *(node.id for _, node in CODE if isinstance(node, ast.Name)),
        *(alias.name for _, node in CODE if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names),
    }
    misleading = {
        "stplib": "spanning-tree libraries",
        "OFPGroupMod": "select groups",
        "curr_speed": "what switches say of a port's speed",
        "max_speed": "what switches say of a port's speed",
    }
    assert not names & misleading.keys()
    assert "OFPFlowMod" in names, "names are found at all"


def test_every_text_file_names_its_encoding() -> None:
    """A machine's own may be ASCII, and names, labels and results are not."""
    unnamed = [f"{path.relative_to(ROOT)}:{node.lineno}" for path, node in CODE if _opens_text(node)]
    assert unnamed == []


OPEN_NO_TEXT = ("os", "gzip", "opener", "sites", "job", "connection")


def _opens_text(node: ast.AST) -> bool:
    """Whether it is a call that opens a file as text, in whichever encoding the machine prefers."""
    if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
        return False
    match node.func:
        case ast.Attribute(attr="read_text"):
            return not node.args
        case ast.Attribute(attr="write_text"):
            return True
        case ast.Attribute(attr="NamedTemporaryFile"):  # binary unless it says otherwise
            return any("b" not in mode for mode in _modes(node))
        case ast.Attribute(value=ast.Name(id=receiver)) if receiver in OPEN_NO_TEXT:
            return False
        case ast.Attribute(attr="open" | "fdopen") | ast.Name(id="open"):
            return not any("b" in mode for mode in _modes(node))
    return False


def _modes(call: ast.Call) -> list[str]:
    """What a call says of how a file is opened."""
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    texts = [argument.value for argument in given if isinstance(argument, ast.Constant)]
    return [text for text in texts if isinstance(text, str) and set(text) <= set("rwaxbt+")]
