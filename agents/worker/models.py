"""The models of experiments, named by a short word. All tell 10 classes apart, of images of 28x28 or of text.

| Name | What it is | Parameters |
|---|---|---|
| `2nn` | FedAvg 2NN (McMahan et al. 2017): two hidden layers of 200 | 199,210 |
| `cnn` | FedAvg CNN: 5x5 convolutions to 32 and 64, each with 2x2 max pooling; 512 units | 1,663,370 |
| `textcnn` | TextCNN (Kim 2014): 4,096 words in 64 dimensions; 64 filters each of 3, 4 and 5 words | 313,418 |
| `mlp-SIZE` | two hidden layers: `mlp-2m`, `mlp-500k`, `mlp-1234567` | within 1 % of SIZE |
"""

from __future__ import annotations

import difflib
import math
import re
from typing import Final

import torch
from torch import nn

from agents.data import Kind
from agents.text import PAD, VOCABULARY
from topologies.errors import UsageError

SIDE: Final = 28
FEATURES: Final = SIDE * SIDE
CLASSES: Final = 10
SMALLEST_MLP: Final = 1_000
LARGEST_MLP: Final = 1_000_000_000
NAMES: Final = ("2nn", "cnn", "textcnn", "mlp-2m", "mlp-SIZE")
TEXT_MODEL: Final = "textcnn"
_MLP: Final = re.compile(r"mlp-(\d+(?:\.\d+)?)([kmb]?)")
_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


def build_model(name: str, seed: int) -> nn.Module:
    """A model with weights drawn from the seed: the same at every worker, whatever was drawn before.

    Args:
        name: `2nn`, `cnn`, `textcnn` or `mlp-SIZE`.
        seed: of torch's default initialisation.

    Returns a module from (n, 1, 28, 28), or from (n, length) numbers of words, to logits (n, 10). Raises
    UsageError for a name that does not exist.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "2nn":
            return _perceptron(200, 200)
        if name == "cnn":
            return _cnn()
        if name == TEXT_MODEL:
            return TextCNN()
        return _perceptron(*mlp_widths(mlp_size(name)))


def reads(name: str) -> Kind:
    """What a model is trained on."""
    return "text" if name == TEXT_MODEL else "images"


class TextCNN(nn.Module):
    """Y. Kim, "Convolutional neural networks for sentence classification", EMNLP 2014; without its dropout, so that
    a single process comes to the same parameters.
    """

    def __init__(self, dimensions: int = 64, filters: int = 64, spans: tuple[int, ...] = (3, 4, 5)) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, dimensions, padding_idx=PAD)
        self.convolutions = nn.ModuleList(nn.Conv1d(dimensions, filters, span) for span in spans)
        self.classes = nn.Linear(filters * len(spans), CLASSES)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Logits (n, 10) of texts (n, length of at least 5)."""
        embedded = self.embedding(numbers).transpose(1, 2)
        most = [torch.relu(convolution(embedded)).amax(2) for convolution in self.convolutions]
        logits: torch.Tensor = self.classes(torch.cat(most, 1))
        return logits


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def mlp_size(name: str) -> int:
    """How many parameters `mlp-SIZE` asks for. Raises UsageError when it is no such name, or out of range."""
    matched = _MLP.fullmatch(name)
    if matched is None:
        near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else ""
        raise UsageError(f"there is no model {name!r}: {', '.join(NAMES)}", hint=hint)
    size = round(float(matched[1]) * _UNITS[matched[2]])
    if not SMALLEST_MLP <= size <= LARGEST_MLP:
        raise UsageError(
            f"model {name}: {size:,} parameters", hint=f"between {SMALLEST_MLP:,} and {LARGEST_MLP:,}"
        )
    return size


def mlp_widths(size: int) -> tuple[int, int]:
    """The two hidden widths (a, b) whose 785a + (a+1)b + (b+1)10 parameters come nearest to the size.

    a is the largest width at which a and b could be equal without more parameters than asked for; b is then
    the nearest fit, so the error is at most (a + 11) / 2 parameters. Own rule.
    """
    # Equal widths: w*w + 796w + 10 = size.
    linear = FEATURES + 1 + 1 + CLASSES
    first = max(1, int((math.sqrt(linear**2 + 4 * (size - CLASSES)) - linear) / 2))
    second = max(1, round((size - CLASSES - (FEATURES + 1) * first) / (first + 1 + CLASSES)))
    return first, second


def _perceptron(first: int, second: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(FEATURES, first),
        nn.ReLU(),
        nn.Linear(first, second),
        nn.ReLU(),
        nn.Linear(second, CLASSES),
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (SIDE // 4) ** 2, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )
