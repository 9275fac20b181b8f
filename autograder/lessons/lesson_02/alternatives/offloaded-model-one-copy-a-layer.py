"""A layer's weights are views of one pinned tensor, fetched in one copy; its buffers stay on the device."""

import itertools
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint


@dataclass
class _Parcel:
    """What of one layer waits on the host: for each dtype, one tensor, and where whose values lie in it."""

    layer: nn.Module
    flat: dict = field(default_factory=dict)
    places: dict = field(default_factory=dict)

    def pack(self):
        by_dtype = {}
        for name, parameter in self.layer.named_parameters():
            by_dtype.setdefault(parameter.dtype, []).append((name, parameter))
        for dtype, named in by_dtype.items():
            whole = torch.cat([p.data.flatten() for _, p in named]).pin_memory()
            ends = itertools.accumulate(p.numel() for _, p in named)
            for (name, parameter), end in zip(named, ends, strict=True):
                self.places[name] = (dtype, slice(end - parameter.numel(), end), parameter.shape)
                parameter.data = whole[self.places[name][1]].view(parameter.shape)
            self.flat[dtype] = whole
        return self

    def unpack(self, copies):
        return {
            name: OnDevice.apply(self.layer.get_parameter(name), copies[dtype][part].view(shape))
            for name, (dtype, part, shape) in self.places.items()
        }


class OffloadedModel(nn.Module):
    def __init__(self, layers, compute_device, resident_layers):
        super().__init__()
        if resident_layers not in range(len(layers) + 1):
            raise ValueError(f"of {len(layers)} layers, {resident_layers} cannot be resident")
        self.layers = nn.ModuleList(layers)
        self.device = torch.device(compute_device)
        self.courier = torch.cuda.Stream(device=self.device)
        self.first = resident_layers
        for layer in layers[:resident_layers]:
            layer.to(self.device)
        self.parcels = {}
        for number in range(resident_layers, len(layers)):
            for buffer in layers[number].buffers():
                buffer.data = buffer.data.to(self.device)
            self.parcels[number] = _Parcel(layers[number]).pack()
        self.sent = {}

    def forward(self, x):
        x = x.to(self.device)
        self.sent.clear()
        for number, layer in enumerate(self.layers):
            if number not in self.parcels:
                self._send(number + 1)
                x = layer(x)
            elif torch.is_grad_enabled():
                seen = [1, -1]  # the next one, in the first run and in the second
                x = checkpoint(lambda x, n=number, s=seen: self._work(x, n, s.pop(0)), x, use_reentrant=False)
            else:
                x = self._work(x, number, 1)
        return x

    def _send(self, number):
        if number in self.parcels and number not in self.sent:
            self.courier.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.courier):
                flat = self.parcels[number].flat
                copies = {dtype: whole.to(self.device, non_blocking=True) for dtype, whole in flat.items()}
                self.sent[number] = copies, self.courier.record_event()

    def _work(self, x, number, step):
        self._send(number)
        copies, arrived = self.sent.pop(number)
        torch.cuda.current_stream(self.device).wait_event(arrived)
        self._send(number + step)
        parcel = self.parcels[number]
        return functional_call(parcel.layer, parcel.unpack(copies), (x,))
