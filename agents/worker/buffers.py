"""Between torch tensors and the flat numpy arrays that the agents exchange.

A contiguous tensor on the CPU is handed over as it lies in memory, without a copy. Everything else goes
through a contiguous copy, and a result is written back when it has arrived.

Two cases differ. A *transfer* (broadcast, gather, send) forwards elements as they are, so a dtype that numpy
lacks (bfloat16, float8) travels as its bytes. A *reduction* adds, so such a dtype is widened to float32,
summed there, and rounded once at the end; bool becomes 0 and 1 under the logical operation of the same
meaning; complex numbers are pairs of floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

FLOATS: Final = frozenset({torch.float16, torch.float32, torch.float64})
INTEGERS: Final = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
NATIVE: Final = FLOATS | INTEGERS
# Floating types without a numpy dtype: reduced in float32.
WIDENED: Final = frozenset(
    {torch.bfloat16}
    | {getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)}
)
BITWISE: Final = frozenset({"band", "bor", "bxor"})
# On 0 and 1: a sum is true when any is, a product when all are.
LOGICAL: Final = {
    "sum": "max",
    "max": "max",
    "prod": "min",
    "min": "min",
    "band": "band",
    "bor": "bor",
    "bxor": "bxor",
}


@dataclass(frozen=True)
class Buffer:
    """What is handed to the agent for one tensor.

    Attributes:
        array: flat, C-contiguous; the result lands here.
        op: the agents' operation (reductions only): sum, prod, min, max, band, bor or bxor.
        finish: brings the result from `array` into the tensor; None when it is there already.
    """

    array: np.ndarray[Any, np.dtype[Any]]
    op: str = ""
    finish: Callable[[], None] | None = None


def describe(tensors: Sequence[torch.Tensor]) -> str:
    """Dtype and number of elements, for messages: `float32, 2,000,000 elements`."""
    if not tensors:
        return "no tensor"
    elements = sum(t.numel() for t in tensors)
    return f"{str(tensors[0].dtype).removeprefix('torch.')}, {elements:,} elements"


def check(tensors: Sequence[torch.Tensor]) -> None:
    """Refuses what cannot be exchanged: sparse tensors, and tensors outside the machine's main memory."""
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise RuntimeError(
                f"stormbed exchanges dense tensors, not {tensor.layout}: call .to_dense() first"
            )
        if tensor.device.type != "cpu":
            raise RuntimeError(
                f"stormbed exchanges tensors on the cpu, not on {tensor.device}: call .cpu() first"
            )


def _dense(tensor: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """A contiguous flat view of the tensor, and False; or a contiguous flat copy, and True."""
    plain = tensor.detach()
    copied = not plain.is_contiguous() or plain.is_conj() or plain.is_neg()
    if copied:
        plain = plain.resolve_conj().resolve_neg().contiguous()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    return plain.reshape(-1), copied


def _write_back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    target = tensor.detach()
    if target.is_complex() and not flat.is_complex():
        flat = torch.view_as_complex(flat.view(-1, 2))
    target.copy_(flat.view(target.shape))


def _as_elements(flat: torch.Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """The elements of a flat contiguous tensor as numpy sees them; as bytes where it has no such dtype."""
    array: np.ndarray[Any, np.dtype[Any]] = (flat if flat.dtype in NATIVE else flat.view(torch.uint8)).numpy()
    return array


def for_transfer(tensor: torch.Tensor, *, written: bool) -> Buffer:
    """A buffer whose elements travel unchanged.

    Args:
        tensor: any shape, strides and dtype.
        written: whether a result arrives in it (else it is only read).
    """
    flat, copied = _dense(tensor)
    finish = (lambda: _write_back(tensor, flat)) if copied and written else None
    return Buffer(_as_elements(flat), finish=finish)


def for_reduction(tensor: torch.Tensor, op: str, world_size: int, *, written: bool = True) -> Buffer:
    """A buffer that is reduced over all ranks.

    Args:
        tensor: any shape and strides.
        op: sum, avg, prod, min, max, band, bor or bxor. `avg` divides the sum by `world_size`; integers are
            rounded towards zero.
        written: whether the result arrives in it (False at ranks that only contribute to a `reduce`).

    Raises RuntimeError for an operation that has no meaning for the dtype.
    """
    dtype = tensor.dtype
    name = str(dtype).removeprefix("torch.")
    if op in BITWISE and (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError(f"{op} works on integers and bool, not on {name}")
    if dtype.is_complex and op not in ("sum", "avg"):
        raise RuntimeError(f"{op} is not defined for {name}: complex numbers are summed or averaged")

    flat, copied = _dense(tensor)
    if dtype is torch.bool:
        if op not in LOGICAL:
            raise RuntimeError(f"{op} is not defined for bool")
        # A bool tensor holds the bytes 0 and 1, and these operations give no others.
        finish = (lambda: _write_back(tensor, flat)) if copied and written else None
        return Buffer(flat.view(torch.uint8).numpy(), LOGICAL[op], finish)

    working = flat
    if flat.dtype in WIDENED:
        working = flat.to(torch.float32)
    elif flat.dtype not in NATIVE:
        raise RuntimeError(
            f"stormbed cannot reduce {name}: floats, bfloat16, signed integers, uint8, bool, complex"
        )

    def finish_reduction() -> None:
        if op == "avg":
            rounding = None if working.dtype.is_floating_point else "trunc"
            working.div_(world_size, rounding_mode=rounding)
        if copied or working is not flat:
            _write_back(tensor, working.to(flat.dtype))

    in_place = not copied and working is flat and op != "avg"
    return Buffer(
        working.numpy(), "sum" if op == "avg" else op, finish_reduction if written and not in_place else None
    )
