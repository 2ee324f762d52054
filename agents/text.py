"""Text for experiments: the docstrings of Python's standard library, told apart by the module they are from.

Real text that every machine with Python has. The sources are read, not imported. A docstring of at least
`LEAST_WORDS` words belongs to the module or package in whose files it stands; one that stands in several modules is
left out, and one that stands in a module many times counts once. A fifth of them, chosen by a hash of their text, is
for testing; so the split is the same on every machine that has the same Python.

A docstring becomes `LENGTH` numbers: its first words in lower case, each by its rank among the words of the training
docstrings (the most frequent first, ties by alphabet), `UNKNOWN` where it is not among the first, `PAD` after the
end.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from topologies.errors import CannotHonourError

# Ten of the modules of which there is most to read, in all versions of Python since 3.11.
MODULES: Final = (
    *("asyncio", "_pydecimal", "email", "importlib", "logging"),
    *("mailbox", "multiprocessing", "turtle", "unittest", "xml"),
)
VOCABULARY: Final = 4096
LENGTH: Final = 48
PAD: Final = 0
UNKNOWN: Final = 1
LEAST_WORDS: Final = 5
LEAST_DOCSTRINGS: Final = 40
_TEST_SHARE: Final = 0.2
_WORD: Final = re.compile(r"[a-z]+")

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Text = tuple[tuple[str, ...], int]
"""The words of a docstring, and the number of its module."""


def words(text: str) -> tuple[str, ...]:
    """Its words in lower case: runs of letters from a to z."""
    return tuple(_WORD.findall(text.lower()))


def docstrings(root: Path | None = None) -> tuple[list[Text], list[Text]]:
    """The docstrings for training and those for testing, each in an order that files and text alone decide.

    Args:
        root: of the library; this Python's own when left out.

    CannotHonourError when a module has not enough of them here.
    """
    found = Path(sysconfig.get_path("stdlib")) if root is None else root
    owners: dict[tuple[str, ...], int | None] = {}
    for number, module in enumerate(MODULES):
        for text in _of_module(found, module):
            if len(text) >= LEAST_WORDS:
                owners[text] = number if owners.get(text, number) == number else None
    counts = Counter(owner for owner in owners.values() if owner is not None)
    for number, module in enumerate(MODULES):
        if counts[number] < LEAST_DOCSTRINGS:
            raise CannotHonourError(
                f"data docstrings: {found} has {counts[number]} docstrings of {module}, not {LEAST_DOCSTRINGS}",
                hint="this Python has been installed without the sources of its library",
            )
    train: list[Text] = []
    test: list[Text] = []
    for text, owner in owners.items():
        if owner is not None:
            (test if _is_for_testing(text) else train).append((text, owner))
    return train, test


def vocabulary(texts: Sequence[Text]) -> dict[str, int]:
    """Each of the most frequent words with its number."""
    counts = Counter(word for text, _ in texts for word in text)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[: VOCABULARY - 2], start=2)}


def encode(texts: Sequence[Text], numbers: dict[str, int]) -> tuple[Numbers, Numbers]:
    """(n, LENGTH) numbers of words and (n,) numbers of modules."""
    x = np.full((len(texts), LENGTH), PAD, np.int64)
    for row, (text, _) in enumerate(texts):
        first = [numbers.get(word, UNKNOWN) for word in text[:LENGTH]]
        x[row, : len(first)] = first
    return x, np.array([owner for _, owner in texts], np.int64)


def load_docstrings() -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """x and y for training, x and y for testing, as `encode` gives them."""
    train, test = docstrings()
    numbers = vocabulary(train)
    return *encode(train, numbers), *encode(test, numbers)


def _of_module(root: Path, module: str) -> Iterator[tuple[str, ...]]:
    package = root / module
    files = sorted(package.rglob("*.py")) if package.is_dir() else [root / f"{module}.py"]
    for file in files:
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node, clean=False)
                if text:
                    yield words(text)


def _is_for_testing(text: tuple[str, ...]) -> bool:
    first = hashlib.sha256(" ".join(text).encode()).digest()[0]
    return first < 256 * _TEST_SHARE
