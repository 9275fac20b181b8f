"""Copies land by turns in two buffers that are made once; a layer runs under the library's checkpoint."""

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint


def _tensors(layer):
    return [*layer.named_parameters(), *layer.named_buffers()]


def _places(layer):
    """Where each tensor of a layer lies in a slot, on multiples of 16 bytes; then its end."""
    places, end = {}, 0
    for name, tensor in _tensors(layer):
        places[name] = (end, tensor.numel() * tensor.element_size())
        end += -(-places[name][1] // 16) * 16
    return places, end


class _Slot:
    def __init__(self, size, device):
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.holds, self.arrived, self.used = None, None, None


class OffloadedModel(nn.Module):
    def __init__(self, layers, compute_device, resident_layers):
        super().__init__()
        if resident_layers < 0 or resident_layers > len(layers):
            raise ValueError(f"expected 0 to {len(layers)} resident layers, got {resident_layers}")
        self.layers, self.device, self.first = nn.ModuleList(layers), compute_device, resident_layers
        nn.ModuleList(layers[:resident_layers]).to(compute_device)
        for layer in layers[resident_layers:]:
            for _, tensor in _tensors(layer):
                tensor.data = tensor.data.to("cpu").pin_memory()
        largest = max([_places(layer)[1] for layer in layers[resident_layers:]], default=0)
        number = min(2, len(layers) - resident_layers)
        self.slots = [_Slot(largest, compute_device) for _ in range(number)]
        self.copying = torch.cuda.Stream(compute_device)
        self.onward = 1

    def forward(self, x):
        x = x.to(self.device)
        self.onward = 1
        for slot in self.slots:
            slot.holds = None
        for number, layer in enumerate(self.layers[: self.first], 1):
            if number == self.first < len(self.layers):
                self.begin(number)
            x = layer(x)
        for index in range(self.first, len(self.layers)):
            if torch.is_grad_enabled():
                x = checkpoint(self.run, x, index, use_reentrant=False)
            else:
                x = self.run(x, index)
        self.onward = -1
        return x

    def run(self, x, index):
        copies = self.ready(index)
        following = index + self.onward
        if self.first <= following < len(self.layers):
            self.begin(following)
        layer = self.layers[index]
        for name, parameter in layer.named_parameters():
            copies[name] = OnDevice.apply(parameter, copies[name])
        return functional_call(layer, copies, (x,))

    def slot_of(self, index):
        return self.slots[index % 2] if len(self.slots) == 2 else self.slots[0]

    def begin(self, index):
        slot, layer = self.slot_of(index), self.layers[index]
        if slot.holds == index:
            return
        slot.holds = index
        self.copying.wait_stream(torch.cuda.current_stream(self.device))  # what still reads this slot
        with torch.no_grad(), torch.cuda.stream(self.copying):
            for name, tensor in _tensors(layer):
                self.part(slot, layer, name, tensor).copy_(tensor, non_blocking=True)
        slot.arrived = self.copying.record_event()

    def part(self, slot, layer, name, like):
        start, length = _places(layer)[0][name]
        return slot.memory[start : start + length].view(like.dtype).view(like.shape)

    def ready(self, index):
        self.begin(index)
        slot, layer = self.slot_of(index), self.layers[index]
        torch.cuda.current_stream(self.device).wait_event(slot.arrived)
        return {name: self.part(slot, layer, name, t).detach() for name, t in _tensors(layer)}
