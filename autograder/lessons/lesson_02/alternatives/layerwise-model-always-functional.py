"""Every layer runs with tensors looked up where they live, brought to its device if need be."""

import torch
from torch import nn
from torch.func import functional_call


class LayerwiseModel(nn.Module):
    def __init__(self, layers, devices):
        super().__init__()
        if len(devices) != len(layers):
            raise ValueError(f"{len(layers)} layers and {len(devices)} devices")
        self.stack, self.places = nn.ModuleList(layers), list(map(torch.device, devices))
        moved = set()
        for layer, place in zip(layers, self.places, strict=True):
            for tensor in (*layer.parameters(), *layer.buffers()):
                if tensor not in moved:
                    tensor.data = tensor.data.to(place)
                    moved.add(tensor)

    def forward(self, x):
        for layer, place in zip(self.stack, self.places, strict=True):
            borrowed = {n: p.to(place) for n, p in layer.named_parameters() if p.device != place}
            x = functional_call(layer, borrowed, x.to(place))
        return x
