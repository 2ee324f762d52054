from __future__ import annotations

import numpy as np
import pytest

from agents.data import Batches, enlarge, load_dataset
from topologies.errors import InvalidFileError, UsageError


def test_digits_are_those_of_scikit_learn_enlarged():
    from sklearn.datasets import load_digits

    data = load_dataset("digits")
    assert data.train_x.shape == (1500, 1, 28, 28) and data.test_x.shape == (297, 1, 28, 28)
    assert data.train_x.dtype == np.float32 and data.train_y.dtype == np.int64
    assert data.train_x.min() == 0 and data.train_x.max() == 1
    bunch = load_digits()
    # Corners lie on corners, so there the enlarged images must show the grey values of the small ones.
    corners = {
        (int(label), *np.round(16 * image[0, [0, 0, 27, 27], [0, 27, 0, 27]]).astype(int))
        for image, label in zip(
            np.concatenate([data.train_x, data.test_x]),
            np.concatenate([data.train_y, data.test_y]),
            strict=True,
        )
    }
    small = {
        (int(label), *image[[0, 0, 7, 7], [0, 7, 0, 7]].astype(int))
        for image, label in zip(bunch.images, bunch.target, strict=True)
    }
    assert corners == small
    assert np.bincount(data.test_y, minlength=10).min() > 15
    assert sorted(np.bincount(data.train_y) + np.bincount(data.test_y)) == sorted(np.bincount(bunch.target))


def test_enlarging_is_linear_between_pixels():
    ramp = np.tile(np.arange(8, dtype=np.float32), (1, 8, 1))
    large = enlarge(ramp)
    assert np.allclose(large[0], np.tile(np.linspace(0, 7, 28), (28, 1)), atol=1e-5)
    assert np.allclose(enlarge(np.ascontiguousarray(ramp.transpose(0, 2, 1))), large.transpose(0, 2, 1))


def test_synthetic_data_is_the_seed_s_and_can_be_learnt():
    first, again, other = (
        load_dataset("synthetic", 1),
        load_dataset("synthetic", 1),
        load_dataset("synthetic", 2),
    )
    assert np.array_equal(first.train_x, again.train_x) and np.array_equal(first.test_y, again.test_y)
    assert not np.array_equal(first.train_x, other.train_x)
    assert set(first.train_y) == set(range(10))
    flat = first.train_x.reshape(len(first.train_y), -1)
    rule = np.linalg.lstsq(flat, np.eye(10, dtype=np.float32)[first.train_y], rcond=None)[0]
    guesses = (first.test_x.reshape(len(first.test_y), -1) @ rule).argmax(1)
    assert (guesses == first.test_y).mean() > 0.5


def test_the_joint_batch_is_the_batches_of_all_ranks_in_order():
    data = load_dataset("digits")
    batches = [Batches(data, 16, 9, seed=3) for _ in range(2)]
    for iteration in (0, 9, 10, 11, 500):  # 1500 samples: an epoch ends within the eleventh joint batch
        parts = [batches[0].indices(iteration, rank) for rank in range(9)]
        assert np.array_equal(np.concatenate(parts), batches[1].indices(iteration))
    # The same stream for half the workers with twice the batch.
    assert np.array_equal(Batches(data, 48, 3, seed=3).indices(7), batches[0].indices(7))
    assert not np.array_equal(Batches(data, 16, 9, seed=4).indices(0), batches[0].indices(0))
    images, labels = batches[0].of(2, 5)
    assert np.array_equal(images, data.train_x[batches[0].indices(2, 5)]) and len(labels) == 16


def test_every_sample_comes_once_an_epoch():
    data = load_dataset("digits")
    batches = Batches(data, 50, 3, seed=0)
    for epoch in range(2):
        seen = np.concatenate([batches.indices(10 * epoch + i) for i in range(10)])
        assert np.array_equal(np.sort(seen), np.arange(1500))
    assert not np.array_equal(batches.indices(0), batches.indices(10))


def test_a_batch_may_be_larger_than_the_data():
    batches = Batches(load_dataset("digits"), 1000, 4, seed=0)
    assert np.bincount(batches.indices(0)).tolist().count(3) == 1000


def arrays(**changes):
    given = {
        "x_train": np.full((6, 28, 28), 255, np.uint8),
        "y_train": np.arange(6, dtype=np.uint8),
        "x_test": np.zeros((2, 784), np.float64),
        "y_test": np.array([0, 9]),
    }
    given.update(changes)
    return {key: value for key, value in given.items() if value is not None}


def test_a_file_of_one_s_own(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays())
    data = load_dataset(str(path))
    assert data.train_x.shape == (6, 1, 28, 28) and data.train_x.max() == 1  # bytes are scaled
    assert data.test_x.shape == (2, 1, 28, 28) and data.test_y.tolist() == [0, 9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "no array y_test; it holds x_test, x_train, y_train"),
        ({"x_train": np.zeros((6, 8, 8))}, r"x_train has the shape \(6, 8, 8\) \(n images of 28x28\)"),
        ({"y_train": np.arange(5)}, "6 images in x_train, 5 labels in y_train"),
        ({"y_train": np.full(6, 10)}, "y_train must hold whole numbers from 0 to 9"),
        ({"x_test": np.array(["a" * 9] * 784 * 2).reshape(2, 784)}, "x_test holds <U9"),
    ],
)
def test_a_file_that_does_not_fit(tmp_path, changes, message):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays(**changes))
    with pytest.raises(InvalidFileError, match=message):
        load_dataset(str(path))


def test_what_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"no data 'digit': digits, synthetic, docstrings \(did you mean digits\?\)"):
        load_dataset("digit")
    with pytest.raises(InvalidFileError, match="there is no file"):
        load_dataset(str(tmp_path / "none.npz"))
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(InvalidFileError, match=r"not an \.npz file"):
        load_dataset(str(tmp_path / "bad.npz"))
    np.savez(tmp_path / "pickled.npz", x_train=np.array([object()]))
    with pytest.raises(InvalidFileError, match=r"not an \.npz file of plain arrays"):
        load_dataset(str(tmp_path / "pickled.npz"))


def test_a_split_divides_the_same_joint_batch():
    batches = Batches(load_dataset("synthetic", 1), 8, 3, 5)
    joint = batches.indices(7)
    parts = [batches.indices(7, rank, (3, 20, 1)) for rank in range(3)]
    assert [len(part) for part in parts] == [3, 20, 1]
    assert np.array_equal(np.concatenate(parts), joint)
    for wrong in [(3, 20), (3, 20, 2)]:
        with pytest.raises(UsageError, match="a batch of 24 cannot be split into"):
            batches.indices(0, 0, wrong)
