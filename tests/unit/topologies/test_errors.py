import pickle

import pytest

from topologies import errors
from topologies.errors import DeadlineError, StormbedError, nearest


def test_a_message_ends_with_its_hint() -> None:
    assert str(StormbedError("no switch s1")) == "no switch s1"
    assert str(StormbedError("no switch s1", hint="run up first")) == "no switch s1 (run up first)"


def test_exit_codes_are_those_of_the_manual() -> None:
    codes = {
        "StormbedError": 1,
        "DeadlineError": 1,
        "UsageError": 2,
        "InvalidFileError": 2,
        "FidelityError": 3,
        "CannotHonourError": 4,
        "RunFailedError": 5,
        "CleanupError": 6,
    }
    assert {name: getattr(errors, name).exit_code for name in codes} == codes
    assert all(issubclass(getattr(errors, name), StormbedError) for name in codes)


@pytest.mark.parametrize(
    "error", [StormbedError("a", hint="b"), DeadlineError("the switches", 2.5, hint="b")]
)
def test_errors_cross_process_boundaries(error: StormbedError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) and type(copy) is type(error)


def test_a_deadline_says_what_it_waited_for() -> None:
    assert str(DeadlineError("switch s3", 10)) == "waited 10 s for switch s3 in vain"


def test_nearest() -> None:
    assert nearest("rat", ["rate", "delay"]) == "did you mean rate?"
    assert nearest("xyz", ["rate", "delay"]) == "known: rate, delay"
    assert nearest("xyz", [f"k{i}" for i in range(20)]).endswith(", ...")
