"""The data of experiments, and who trains on what.

Every source gives images of 28x28 in [0, 1] or near it, or texts as rows of numbers of words, and labels 0..9, the
same at every worker.

The order of training is one endless stream of samples: epoch after epoch, each in an order drawn from the
seed. With B samples a worker and N workers, iteration t takes the B*N samples from t*B*N on, and rank r the
r-th B of them. So the joint batch depends on B*N alone, and a single process can recompute it.
"""

from __future__ import annotations

import difflib
import gzip
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from agents.npz import read_arrays
from agents.text import VOCABULARY, load_docstrings
from topologies.errors import CannotHonourError, InvalidFileError, UsageError

SIDE: Final = 28
CLASSES: Final = 10
SHORTEST_TEXT: Final = 5  # what the widest filter of TextCNN reads at once
SOURCES: Final = ("digits", "synthetic", "docstrings")
DIGITS_TEST: Final = 297
SYNTHETIC_TRAIN: Final = 4096
SYNTHETIC_TEST: Final = 512
_SPLIT_SEED: Final = 20170220

Images = np.ndarray[Any, np.dtype[np.float32]]
Labels = np.ndarray[Any, np.dtype[np.int64]]


Texts = np.ndarray[Any, np.dtype[np.int64]]
Kind = Literal["images", "text"]


@dataclass(frozen=True)
class Dataset:
    """Images (n, 1, 28, 28) float32 or texts (n, length) int64, and labels (n,) int64, for training and testing."""

    name: str
    train_x: Images | Texts
    train_y: Labels
    test_x: Images | Texts
    test_y: Labels


def load_dataset(source: str, seed: int = 0, kind: Kind = "images") -> Dataset:
    """Loads by name or path.

    Args:
        source: `digits` (the 1,797 handwritten digits of scikit-learn, 8x8, enlarged to 28x28; 1,500 to
            train, 297 to test), `synthetic` (random images, labelled by a random linear rule), `docstrings`
            (text, see `agents.text`), or the path of an .npz file with the arrays x_train, y_train, x_test,
            y_test (as Keras's mnist.npz has them; of text, x are rows of numbers of words).
        seed: of synthetic data.
        kind: what the model reads.

    Raises UsageError for an unknown name, InvalidFileError for a file that does not fit.
    """
    if source in SOURCES and (source == "docstrings") != (kind == "text"):
        held = "text" if source == "docstrings" else "images"
        fitting = "docstrings" if kind == "text" else "digits"
        raise UsageError(f"data {source} are {held}, and the model reads {kind}", hint=f"data: {fitting}")
    if source == "digits":
        return _digits()
    if source == "synthetic":
        return _synthetic(seed)
    if source == "docstrings":
        return Dataset("docstrings", *load_docstrings())
    if source.endswith(".npz"):
        return _from_file(Path(source), kind)
    near = difflib.get_close_matches(source, SOURCES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "give the path of an .npz file, or one of these"
    raise UsageError(f"there is no data {source!r}: {', '.join(SOURCES)}", hint=hint)


class Batches:
    """The endless stream of samples of a data set, cut into batches.

    Args:
        dataset: what to draw from.
        batch: samples a worker takes an iteration.
        world_size: number of workers.
        seed: of the order.
    """

    def __init__(self, dataset: Dataset, batch: int, world_size: int, seed: int) -> None:
        if batch < 1 or world_size < 1:
            raise UsageError(f"batch {batch} for {world_size} workers: both are at least 1")
        self.dataset = dataset
        self.batch = batch
        self.world_size = world_size
        self.seed = seed
        self._orders: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = {}

    def indices(
        self, iteration: int, rank: int | None = None, split: Sequence[int] | None = None
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Which training samples an iteration takes: a rank's, or with None those of all ranks in order.

        `split` says how many of the joint batch each rank takes; without it all take as many.
        """
        joint = self.batch * self.world_size
        sizes = [self.batch] * self.world_size if split is None else list(split)
        if len(sizes) != self.world_size or sum(sizes) != joint:
            raise UsageError(f"a batch of {joint} cannot be split into {sizes}")
        before, own = (0, joint) if rank is None else (sum(sizes[:rank]), sizes[rank])
        positions = np.arange(iteration * joint + before, iteration * joint + before + own)
        size = len(self.dataset.train_y)
        epochs, offsets = np.divmod(positions, size)
        chosen = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs):
            mask = epochs == epoch
            chosen[mask] = self._order(int(epoch))[offsets[mask]]
        return chosen

    def of(
        self, iteration: int, rank: int | None = None, split: Sequence[int] | None = None
    ) -> tuple[Images | Texts, Labels]:
        """Images or texts and labels of one rank's batch, or of the joint batch."""
        chosen = self.indices(iteration, rank, split)
        return self.dataset.train_x[chosen], self.dataset.train_y[chosen]

    def _order(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        if epoch not in self._orders:
            for old in [e for e in self._orders if e < epoch - 1]:
                del self._orders[old]
            generator = np.random.default_rng([self.seed, epoch])
            self._orders[epoch] = generator.permutation(len(self.dataset.train_y))
        return self._orders[epoch]


def enlarge(images: Images, side: int = SIDE) -> Images:
    """Square images (n, s, s) enlarged to (n, side, side): bilinear, corners on corners."""
    small = images.shape[-1]
    positions = np.linspace(0, small - 1, side)
    low = np.minimum(positions.astype(np.int64), small - 2)
    weights = np.zeros((side, small), np.float32)
    weights[np.arange(side), low] = 1 - (positions - low)
    weights[np.arange(side), low + 1] = positions - low
    return np.einsum("ij,njk,lk->nil", weights, images, weights, optimize=True).astype(np.float32)


def require_data(name: str) -> None:
    """Whether the package that a data set comes from is here. Cheap: nothing is loaded.

    Raises:
        CannotHonourError: it is not; naming the package.
    """
    if name == "digits":
        _sklearn_folder()


def _sklearn_folder() -> Path:
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise CannotHonourError("data digits: there is no scikit-learn", hint="pip install scikit-learn")
    return Path(spec.submodule_search_locations[0])


def _digits() -> Dataset:
    table = _digits_table()
    images = enlarge((table[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32))[:, None]
    labels = table[:, -1].astype(np.int64)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
    test, train = order[:DIGITS_TEST], order[DIGITS_TEST:]
    return Dataset("digits", images[train], labels[train], images[test], labels[test])


def _digits_table() -> np.ndarray[Any, np.dtype[np.float64]]:
    """1,797 rows of 64 grey values from 0 to 16 and the digit."""
    path = _sklearn_folder() / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        # The file that load_digits reads. Importing scikit-learn takes over a second of CPU in every worker.
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def _synthetic(seed: int) -> Dataset:
    generator = np.random.default_rng(seed)
    count = SYNTHETIC_TRAIN + SYNTHETIC_TEST
    images = generator.standard_normal((count, 1, SIDE, SIDE), dtype=np.float32)
    rule = generator.standard_normal((SIDE * SIDE, CLASSES), dtype=np.float32)
    labels = (images.reshape(count, -1) @ rule).argmax(1).astype(np.int64)
    cut = SYNTHETIC_TRAIN
    return Dataset("synthetic", images[:cut], labels[:cut], images[cut:], labels[cut:])


def _from_file(path: Path, kind: Kind) -> Dataset:
    arrays = read_arrays(path)
    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
    if missing:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise InvalidFileError(f"{path}: no array {missing[0]}; it holds {found}")
    read = _texts if kind == "text" else _images
    train_x, train_y = read(path, "x_train", arrays), _labels(path, "y_train", arrays)
    test_x, test_y = read(path, "x_test", arrays), _labels(path, "y_test", arrays)
    for x, y, part in ((train_x, train_y, "train"), (test_x, test_y, "test")):
        if len(x) != len(y) or not len(x):
            raise InvalidFileError(f"{path}: {len(x)} {kind} in x_{part}, {len(y)} labels in y_{part}")
    return Dataset(path.name, train_x, train_y, test_x, test_y)


def _images(path: Path, key: str, arrays: dict[str, Any]) -> Images:
    given = arrays[key]
    if given.ndim < 2 or given[0].size != SIDE * SIDE:
        raise InvalidFileError(
            f"{path}: {key} has the shape {given.shape}", hint=f"n images of {SIDE}x{SIDE}"
        )
    if given.dtype.kind not in "uif":
        raise InvalidFileError(f"{path}: {key} holds {given.dtype}", hint="numbers")
    scale = np.float32(255 if given.dtype == np.uint8 else 1)
    return np.ascontiguousarray(given.reshape(len(given), 1, SIDE, SIDE).astype(np.float32) / scale)


def _texts(path: Path, key: str, arrays: dict[str, Any]) -> Texts:
    given = arrays[key]
    if given.ndim != 2 or given.shape[1] < SHORTEST_TEXT:
        raise InvalidFileError(
            f"{path}: {key} has the shape {given.shape}", hint=f"n texts of at least {SHORTEST_TEXT} words"
        )
    if given.dtype.kind not in "ui" or (given.size and not 0 <= given.min() <= given.max() < VOCABULARY):
        raise InvalidFileError(
            f"{path}: {key} must hold whole numbers from 0 to {VOCABULARY - 1}",
            hint="0 after the end of a text, 1 for words that are not among the most frequent",
        )
    return np.ascontiguousarray(given.astype(np.int64))


def _labels(path: Path, key: str, arrays: dict[str, Any]) -> Labels:
    given = arrays[key].reshape(-1)
    if given.dtype.kind not in "ui" or (given.size and not 0 <= given.min() <= given.max() < CLASSES):
        raise InvalidFileError(f"{path}: {key} must hold whole numbers from 0 to {CLASSES - 1}")
    return given.astype(np.int64)
