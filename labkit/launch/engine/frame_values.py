"""The variables of a frame as short texts, for who looks for the cause of an error."""

from __future__ import annotations

import reprlib
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

_MOST = 40  # variables of a frame
_LONGEST = 200  # characters of a value
_FEW = 8  # elements of a tensor that are shown
_CODE = (ModuleType, FunctionType, BuiltinFunctionType, type)  # what nobody looks for


class _Short(reprlib.Repr):
    """Short also for tensors, and for what cannot say what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = _LONGEST

    def repr_instance(self, x: Any, level: int) -> str:
        """See `reprlib.Repr.repr_instance`."""
        try:
            text = _tensor(x) if isinstance(x, torch.Tensor) else " ".join(repr(x).split())
        except Exception as error:
            return f"(a {type(x).__name__} whose text cannot be had: {type(error).__name__})"
        return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"

    repr_Tensor = repr_Parameter = repr_instance


def _tensor(x: torch.Tensor) -> str:
    shape = f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)} on {x.device}"
    few = f" {x.detach().tolist()}" if x.numel() <= _FEW and x.device.type == "cpu" else ""
    return f"tensor {shape}{few}"


def frame_values(frame: FrameType) -> list[tuple[str, str]]:
    """Names and values of what the frame's code uses: of a cell, the global names among these."""
    short, code = _Short(), frame.f_code
    names = code.co_names if code.co_name == "<module>" else tuple(frame.f_locals)
    variables = [(name, frame.f_locals[name]) for name in names if name in frame.f_locals]
    told = [(name, value) for name, value in variables if not isinstance(value, _CODE)]
    return [(name, short.repr(value)) for name, value in told[:_MOST] if not name.startswith("__")]
