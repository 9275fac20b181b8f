"""Ties are noted before anything moves; layers move whole, and forward lends only what is shared."""

import torch
from torch import nn
from torch.func import functional_call


class LayerwiseModel(nn.Module):
    def __init__(self, layers, devices):
        super().__init__()
        if len(layers) != len(devices):
            raise ValueError(f"expected a device for each of {len(layers)} layers, got {len(devices)}")
        self.layers = nn.ModuleList(layers)
        self.devices = [torch.device(device) for device in devices]
        self.lent, home = [], {}
        for number, layer in enumerate(layers):
            names = dict(layer.named_parameters()).items()
            self.lent.append([name for name, p in names if home.setdefault(id(p), number) != number])
        for number in reversed(range(len(layers))):  # the first that has a shared one moves it last
            layers[number].to(self.devices[number])

    def forward(self, x):
        for layer, names, device in zip(self.layers, self.lent, self.devices, strict=True):
            x = x.to(device)
            if names:
                copies = {name: layer.get_parameter(name).to(device) for name in names}
                x = functional_call(layer, copies, (x,))
            else:
                x = layer(x)
        return x
