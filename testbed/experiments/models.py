"""How many parameters an experiment's model has, and in which order their gradients come, without torch. Pure.

The simulated world and the bounds need only these numbers. That they are those that torch comes to is a test.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise

FEATURES = 28 * 28
CLASSES = 10
TEXT_MODEL = "textcnn"
SMALLEST_MLP = 1_000
LARGEST_MLP = 1_000_000_000
MLP = re.compile(r"mlp-(\d+(?:\.\d+)?)([kmb]?)", re.ASCII)
TENSOR = re.compile(r"tensor-([1-9]\d*[km]?(?:\+[1-9]\d*[km]?)*)", re.ASCII)

_FIXED = {"2nn": 199_210, "cnn": 1_663_370, TEXT_MODEL: 313_418}
_TEXT_SPANS = (3, 4, 5)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


def is_model(name: str) -> bool:
    """Whether an experiment may name this model."""
    if match := MLP.fullmatch(name):
        return SMALLEST_MLP <= _mlp_size(match) <= LARGEST_MLP
    return name in _FIXED or is_tensor(name)


def is_tensor(name: str) -> bool:
    """Whether the workers of this model need no torch: they add integers and check the sums."""
    return TENSOR.fullmatch(name) is not None


def tensor_sizes(name: str) -> tuple[int, ...]:
    """The sizes in elements of the tensors of a `tensor-` model, one all-reduce each; empty for others."""
    match = TENSOR.fullmatch(name)
    if match is None:
        return ()
    return tuple(int(size.rstrip("km")) * _UNITS[size.lstrip("0123456789")] for size in match[1].split("+"))


def parameter_count(name: str) -> int:
    """The number of a model's parameters, which is what every worker hands over each iteration.

    Raises:
        ValueError: there is no such model.
    """
    if name in _FIXED:
        return _FIXED[name]
    if sizes := tensor_sizes(name):
        return sum(sizes)
    match = MLP.fullmatch(name)
    if match is None:
        raise ValueError(f"there is no model {name!r}")
    first, second = _mlp_widths(_mlp_size(match))
    return (FEATURES + 1) * first + (first + 1) * second + (second + 1) * CLASSES


def gradient_sizes(name: str) -> tuple[int, ...]:
    """Elements of the parameters of a model that has layers, in the order in which the backward pass gives their
    gradients: from the last layer to the first, of linear layers the bias before the weights.

    Raises:
        ValueError: there is no such model, or it is tensors without layers.
    """
    if name == "cnn":
        convolutions = (32 * 64 * 25, 64, 32 * 25, 32)
        return (*_linear(512, CLASSES), *_linear(64 * (28 // 4) ** 2, 512), *convolutions)
    if name == TEXT_MODEL:
        spans = (size for span in reversed(_TEXT_SPANS) for size in (64 * 64 * span, 64))
        return (*_linear(64 * len(_TEXT_SPANS), CLASSES), *spans, 4096 * 64)
    widths = mlp_layers(name)
    if not widths:
        raise ValueError(f"{name!r} is no model with layers")
    return tuple(size for ends in reversed(tuple(pairwise(widths))) for size in _linear(*ends))


def _linear(inputs: int, outputs: int) -> tuple[int, int]:
    return outputs, inputs * outputs


def mlp_layers(name: str) -> tuple[int, ...]:
    """The widths of a perceptron's layers, inputs and classes included; empty for other models."""
    if name == "2nn":
        return FEATURES, 200, 200, CLASSES
    match = MLP.fullmatch(name)
    return () if match is None else (FEATURES, *_mlp_widths(_mlp_size(match)), CLASSES)


def _mlp_size(match: re.Match[str]) -> int:
    return round(float(match[1]) * _UNITS[match[2]])


def _mlp_widths(size: int) -> tuple[int, int]:
    """Two hidden widths whose parameters come nearest to the size: the first as if both were equal."""
    linear = FEATURES + 1 + 1 + CLASSES
    first = max(1, int((math.sqrt(linear**2 + 4 * (size - CLASSES)) - linear) / 2))
    second = max(1, round((size - CLASSES - (FEATURES + 1) * first) / (first + 1 + CLASSES)))
    return first, second
