"""Each tensor is moved by itself; in forward every weight that is elsewhere is copied."""


class LayerwiseModel(nn.Module):
    def __init__(self, layers, devices):
        super().__init__()
        if len(layers) != len(devices):
            raise ValueError(f"expected a device for each of {len(layers)} layers, found {len(devices)}")
        self.stages = nn.Sequential(*layers)
        self.devices = [torch.device(d) for d in devices]
        home = {}
        for layer, device in zip(layers, self.devices, strict=True):
            for parameter in layer.parameters():
                if parameter not in home:
                    home[parameter] = device
                    with torch.no_grad():
                        parameter.data = parameter.data.to(device)
                        if parameter.grad is not None:
                            parameter.grad = parameter.grad.to(device)
            for module in layer.modules():
                for name, buffer in list(module._buffers.items()):
                    if buffer is not None:
                        module._buffers[name] = buffer.to(device)

    def forward(self, x):
        for layer, device in zip(self.stages, self.devices, strict=True):
            away = {
                name: parameter.to(device)
                for name, parameter in layer.named_parameters()
                if parameter.device != device
            }
            x = torch.func.functional_call(layer, away, (x.to(device),)) if away else layer(x.to(device))
        return x
