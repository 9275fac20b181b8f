"""A seat for each place in the row lends its layer, while it runs, copies of what lives elsewhere."""

import contextlib

import torch
from torch import nn


class _Seat(nn.Module):
    def __init__(self, layer, device):
        super().__init__()
        self.layer, self.device = layer, torch.device(device)

    def settle(self, homes):
        for owner in self.layer.modules():
            for parameter in owner._parameters.values():
                if parameter is not None and homes.setdefault(parameter, self.device) == self.device:
                    parameter.data = parameter.data.to(self.device)
            for name, buffer in owner._buffers.items():
                if buffer is not None:
                    owner._buffers[name] = buffer.to(self.device)
        return self

    @contextlib.contextmanager
    def _lent(self):
        own = [(owner._parameters, dict(owner._parameters)) for owner in self.layer.modules()]
        try:
            for there, tensors in own:
                there.update({n: p.to(self.device) for n, p in tensors.items() if p is not None})
            yield
        finally:
            for there, tensors in own:
                there.update(tensors)

    def forward(self, x):
        with self._lent():
            return self.layer(x.to(self.device))


class LayerwiseModel(nn.Sequential):
    def __init__(self, layers, devices):
        if len(layers) != len(devices):
            raise ValueError(f"{len(layers)} layers cannot be put on {len(devices)} devices one to one")
        homes = {}
        super().__init__(
            *(_Seat(layer, device).settle(homes) for layer, device in zip(layers, devices, strict=True))
        )
