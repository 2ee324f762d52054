"""Stormbed's testbed: brings a topology to life, trains across it, and measures it.

    from testbed import Testbed

    with Testbed.up("pair", name="try") as testbed:
        print(testbed.sites["dc1"].run(["hostname"]).stdout)

Importing this package imports neither mininet nor torch nor fabric; `Testbed` is loaded when it is first
used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.api import Testbed

__all__ = ["Testbed"]


def __getattr__(name: str) -> Any:
    if name == "Testbed":
        from testbed.api import Testbed

        return Testbed
    raise AttributeError(f"module 'testbed' has no attribute {name!r}")
