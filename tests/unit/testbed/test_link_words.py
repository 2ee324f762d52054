"""What `testbed link` says."""

from __future__ import annotations

import pytest

from testbed.cli.link import changes_made


@pytest.mark.parametrize(
    ("steps", "said"), [(0, "0 changes were made"), (1, "1 change was made"), (2, "2 changes were made")]
)
def test_a_single_change_is_one(steps: int, said: str) -> None:
    assert changes_made(steps) == said
