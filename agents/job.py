"""What coordinator and agents say to each other about a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# How much a fault says about the cause: the coordinator reports the most telling one.
CAUSE: Final = 0
CONSEQUENCE: Final = 1
WAITS_FOR_RELEASE: Final = 2


@dataclass(frozen=True)
class JobDescription:
    """A job as the coordinator opens it.

    name         the runner's name for it
    wire         unique among all jobs ever; what frames carry
    members      topology index of each of the job's sites; the protocol numbers sites by their place here
    site_names   their names
    workers      workers at each
    deadline_s   the longest that a collective may take
    """

    name: str
    wire: str
    members: tuple[int, ...]
    site_names: tuple[str, ...]
    workers: tuple[int, ...]
    deadline_s: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire; the inverse of `from_dict`."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> JobDescription:
        return cls(
            str(plain["name"]),
            str(plain["wire"]),
            tuple(plain["members"]),
            tuple(plain["site_names"]),
            tuple(plain["workers"]),
            float(plain["deadline_s"]),
        )
