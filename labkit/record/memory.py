"""What a training step really holds: weights, gradients, optimizer state, and what backward needs from
forward.

State is read off the tensors themselves. Activations are the storages autograd asks to be kept, seen through
its own saved-tensor hooks: the same on every device, each storage once, without parameters and buffers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labkit.torch_private import part_of_this_rank, storage_key, version_of


@dataclass(frozen=True)
class StepMemory:
    """Bytes a training step held, by what they were.

    activations: kept between forward and backward.  peak: the most that was allocated at once on a GPU since
    the step began, None where the device does not say.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int | None = None

    def as_dict(self) -> dict[str, int]:
        """The four parts, in the order figures stack them."""
        parts = ("weights", "gradients", "optimizer", "activations")
        return {part: getattr(self, part) for part in parts}

    @property
    def total(self) -> int:
        """Bytes of all four parts."""
        return sum(self.as_dict().values())


def tensor_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the storages behind these tensors, each storage once."""
    storages = [part_of_this_rank(t).untyped_storage() for t in tensors if t is not None]
    return sum({storage_key(s): s.nbytes() for s in storages}.values())


class SavedTensors:
    """The storages that autograd was asked to keep for backward while `recording()` was open, as long as it
    keeps them.
    """

    def __init__(self, leave_out: Iterable[Tensor] = ()):
        # holding these keeps their keys from being used again
        self._left_out = {storage_key(s): s for s in (tensor.untyped_storage() for tensor in leave_out)}
        self._kept: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()

    @property
    def num_bytes(self) -> int:
        """Bytes of the storages that are still kept, each once."""
        return sum(storage.nbytes() for storage in self._kept.values())

    def _note(self, tensor: Tensor) -> tuple[Tensor, int]:
        storage = part_of_this_rank(tensor).untyped_storage()
        if storage_key(storage) not in self._left_out:
            self._kept[storage_key(storage)] = storage
        # A result that is kept as it is holds itself, and is never freed.
        return tensor.detach(), version_of(tensor)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note what is saved inside the block. RuntimeError in backward, as torch's own, where one of these
        was changed in place since.
        """
        with torch.autograd.graph.saved_tensors_hooks(self._note, _as_it_was):
            yield


def _as_it_was(saved: tuple[Tensor, int]) -> Tensor:
    """torch compares versions itself only where no hook is."""
    tensor, version = saved
    now = version_of(tensor)
    if now != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"a tensor of shape {tuple(tensor.shape)}, {now - version} times since it was saved"
        )
    return tensor


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Every tensor of an optimizer's state that has a shape; step counters are left out."""
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor) and value.dim() > 0)


def measure_activations(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Bytes autograd keeps after `forward()`, which uses `model` and returns what backward starts from."""
    saved = SavedTensors(leave_out=[*model.parameters(), *model.buffers()])
    with saved.recording():
        result = forward()
    num_bytes = saved.num_bytes
    del result
    return num_bytes


def measure_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]
) -> StepMemory:
    """One forward, backward and optimizer step, and what it held.

    loss: runs the forward and returns the scalar to minimise. Afterwards the model is one step further, with
    its gradients still there.
    """
    device = next(model.parameters()).device
    optimizer.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    saved = SavedTensors(leave_out=[*model.parameters(), *model.buffers()])
    with saved.recording():
        value = loss()
    activations = saved.num_bytes
    value.backward()
    optimizer.step()
    return StepMemory(
        weights=tensor_bytes(model.parameters()),
        gradients=tensor_bytes(p.grad for p in model.parameters()),
        optimizer=tensor_bytes(optimizer_tensors(optimizer)),
        activations=activations,
        peak=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    )
