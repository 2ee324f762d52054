"""What a runner says about a job and its segments, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from agents import wire
from agents.options import AuxiliaryOptions, AwarenessOptions, PolicyOptions
from topologies.errors import UsageError
from topologies.validation import validated

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
        name = plain.get("job") if isinstance(plain, Mapping) else None
        return validated(cls, plain, f"job {name[:128]}" if isinstance(name, str) and name else "job")


def segment_options(segment: Mapping[str, Any], default: Options) -> Options:
    """The network options of a segment, or those of its job. UsageError naming the one that is wrong."""
    label = segment.get("label")
    elements = segment.get("chunk_elements", 1)
    if not isinstance(elements, int) or not 1 <= elements <= MAX_CHUNK_ELEMENTS:
        raise UsageError(f"segment {label}: chunks of {elements} elements", hint=f"1 to {MAX_CHUNK_ELEMENTS}")
    what = f"segment {label}"
    awareness, auxiliary, policy = default
    return (
        validated(AwarenessOptions, segment.get("awareness", awareness), what, ("awareness",)),
        validated(AuxiliaryOptions, segment.get("auxiliary", auxiliary), what, ("auxiliary",)),
        validated(PolicyOptions, segment.get("policy", policy), what, ("policy",)),
    )
