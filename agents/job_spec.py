"""What a runner says about a job and its segments, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agents import wire
from agents.options import AuxiliaryOptions, AwarenessOptions, PolicyOptions
from topologies.errors import UsageError

# A chunk of the widest element type (complex128) still fits a frame.
MAX_CHUNK_ELEMENTS: Final = wire.MAX_PAYLOAD // 16
# Options of a segment that its workers need not know.
NETWORK_OPTIONS: Final = ("awareness", "auxiliary", "policy")

Options = tuple[AwarenessOptions, AuxiliaryOptions, PolicyOptions]


class JobSpec(BaseModel):
    """What a runner gives to open a job. A segment may name its own `awareness`, `auxiliary` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job: str = Field(min_length=1, max_length=128)
    sites: dict[str, int] = Field(min_length=1)
    chunk_elements: int = Field(default=100_000, ge=1, le=MAX_CHUNK_ELEMENTS)
    deadline_s: float = Field(default=600.0, gt=0)
    scheduler: str | dict[str, Any] | None = None
    awareness: AwarenessOptions = AwarenessOptions()
    auxiliary: AuxiliaryOptions = AuxiliaryOptions()
    policy: PolicyOptions = PolicyOptions()

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> JobSpec:
        """UsageError naming the field that is wrong."""
        try:
            return cls.model_validate(plain)
        except ValidationError as error:
            first = error.errors()[0]
            raise UsageError(f"job: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def segment_options(segment: Mapping[str, Any], default: Options) -> Options:
    """The network options of a segment, or those of its job. UsageError naming the one that is wrong."""
    label = segment.get("label")
    elements = segment.get("chunk_elements", 1)
    if not isinstance(elements, int) or not 1 <= elements <= MAX_CHUNK_ELEMENTS:
        raise UsageError(f"segment {label}: chunks of {elements} elements", hint=f"1 to {MAX_CHUNK_ELEMENTS}")
    awareness, auxiliary, policy = default
    try:
        return (
            AwarenessOptions.model_validate(segment.get("awareness", awareness)),
            AuxiliaryOptions.model_validate(segment.get("auxiliary", auxiliary)),
            PolicyOptions.model_validate(segment.get("policy", policy)),
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"segment {label}: {where}: {first['msg']}") from None
