from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from agents import text
from agents.data import Batches, load_dataset
from agents.worker.models import build_model
from topologies.errors import CannotHonourError, InvalidFileError, UsageError

torch.set_num_threads(1)


def library(folder, share="one word is not here at all"):
    """A library of ten small modules: 60 docstrings each, one of them in all modules."""
    for module in text.MODULES:
        lines = [f'"""{share}"""']
        for number in range(60):
            name = f"{module.strip('_')} word{'abcdefghij'[number % 10]} thing{'klmnop'[number // 10]}"
            lines.append(f'def f{number}():\n    """Here is {name} of the module."""')
        lines.append('def again():\n    """Here is ' + name + ' of the module."""')
        lines.append('def short():\n    """Four words and end"""'.replace("and end", "end"))
        if module == "xml":
            (folder / module).mkdir()
            (folder / module / "broken.py").write_text("def broken(:")
            (folder / module / "good.py").write_text("\n".join(lines))
        else:
            (folder / f"{module}.py").write_text("\n".join(lines))
    return folder


def test_docstrings_are_read_once_and_belong_to_one_module(tmp_path):
    train, test = text.docstrings(library(tmp_path))
    assert len(train) + len(test) == 600, "neither what all modules share, nor repetitions, nor short ones"
    assert 60 < len(test) < 180
    for words, owner in train + test:
        assert words[2] == text.MODULES[owner].strip("_").lower()
    assert not set(train) & set(test)
    assert (train, test) == text.docstrings(tmp_path), "the same every time"


def test_words_become_their_rank_in_what_is_trained_on():
    train = [(("b", "a", "b"), 0), (("a", "c", "b"), 1)]
    numbers = text.vocabulary(train)
    assert numbers == {"b": 2, "a": 3, "c": 4}
    x, y = text.encode([(("c", "never", "a"), 7), (("a",) * 99, 1)], numbers)
    assert x.shape == (2, text.LENGTH) and x.dtype == np.int64
    assert x[0, :4].tolist() == [4, text.UNKNOWN, 3, text.PAD] and set(x[1]) == {3}
    assert y.tolist() == [7, 1]


def test_a_library_without_sources_is_named(tmp_path):
    (library(tmp_path) / "turtle.py").unlink()
    with pytest.raises(CannotHonourError, match=r"has 0 docstrings of turtle, not 40 \(this Python"):
        text.docstrings(tmp_path)


def test_textcnn_tells_the_modules_of_docstrings_apart_far_better_than_chance():
    data = load_dataset("docstrings", kind="text")
    assert data.train_x.shape[1:] == (text.LENGTH,) and data.train_x.max() < text.VOCABULARY
    chance = np.bincount(data.test_y).max() / len(data.test_y)
    assert chance < 0.25 and len(data.test_y) > 200
    model = build_model("textcnn", 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    batches = Batches(data, 64, 1, 1)
    for iteration in range(30):
        x, y = batches.of(iteration)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()
    with torch.no_grad():
        right = model(torch.from_numpy(data.test_x)).argmax(1).numpy() == data.test_y
    assert right.mean() > 0.5, "0.6 to 0.7 on the libraries of Python 3.11"


def test_text_from_a_file(tmp_path):
    path = tmp_path / "own.npz"
    arrays = {"x_train": np.ones((4, 9), np.int32), "y_train": np.arange(4)}
    arrays |= {"x_test": np.ones((2, 9), np.int32), "y_test": np.arange(2)}
    np.savez(path, **arrays)
    data = load_dataset(str(path), kind="text")
    assert data.train_x.dtype == np.int64 and data.train_x.shape == (4, 9)
    for change, message in [
        ({"x_train": np.ones((4, 3), np.int32)}, r"x_train has the shape \(4, 3\) \(n texts of at least 5 words"),
        ({"x_test": np.full((2, 9), 4096)}, "x_test must hold whole numbers from 0 to 4095"),
        ({"x_test": np.ones((2, 9))}, "x_test must hold whole numbers"),
        ({"y_train": np.arange(3)}, "4 text in x_train, 3 labels in y_train"),
    ]:
        np.savez(path, **(arrays | change))
        with pytest.raises(InvalidFileError, match=message):
            load_dataset(str(path), kind="text")


def test_models_and_data_must_fit():
    with pytest.raises(UsageError, match=r"data digits are images, and the model reads text \(data: docstrings"):
        load_dataset("digits", kind="text")
    with pytest.raises(UsageError, match=r"data docstrings are text, and the model reads images \(data: digits"):
        load_dataset("docstrings")
