"""Checkpoint says that backward runs a layer again, by the context it enters; buffers are copied too."""

import contextlib
from dataclasses import dataclass


@dataclass
class _Arrival:
    """A layer's tensors on the device, and the event after which they may be read."""

    copies: dict[str, Tensor]
    event: Any


class OffloadedModel(nn.Module):
    def __init__(self, layers, compute_device, resident_layers):
        super().__init__()
        layers = list(layers)
        if resident_layers not in range(len(layers) + 1):
            raise ValueError(f"resident_layers is {resident_layers}, of {len(layers)} layers")
        self.device, self.resident = torch.device(compute_device), resident_layers
        for layer in layers[:resident_layers]:
            layer.to(self.device)
        for layer in layers[resident_layers:]:
            for tensor in (*layer.parameters(), *layer.buffers()):
                tensor.data = tensor.data.to("cpu").pin_memory()
        self.layers = nn.Sequential(*layers)
        self.copying = torch.cuda.Stream(self.device)
        self.arriving: dict[int, _Arrival] = {}
        self.step = 1

    @contextlib.contextmanager
    def _backwards(self):
        before, self.step = self.step, -1
        try:
            yield
        finally:
            self.step = before

    def _fetch(self, index):
        offloaded = self.resident <= index < len(self.layers)
        if not offloaded or index in self.arriving:
            return
        layer = self.layers[index]
        self.copying.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.copying), torch.no_grad():
            named = [*layer.named_parameters(), *layer.named_buffers()]
            copies = {name: t.detach().to(self.device, non_blocking=True) for name, t in named}
            self.arriving[index] = _Arrival(copies, self.copying.record_event())

    def _run(self, x, index):
        self._fetch(index)
        here = self.arriving.pop(index)
        torch.cuda.current_stream(self.device).wait_event(here.event)
        self._fetch(index + self.step)
        layer = self.layers[index]
        for name, parameter in layer.named_parameters():
            here.copies[name] = OnDevice.apply(parameter, here.copies[name])
        return functional_call(layer, here.copies, (x,))

    def forward(self, x):
        x = x.to(self.device)
        self.arriving.clear()
        for index, layer in enumerate(self.layers):
            if index < self.resident:
                if index + 1 == self.resident:
                    self._fetch(index + 1)
                x = layer(x)
            elif torch.is_grad_enabled():
                contexts = lambda: (contextlib.nullcontext(), self._backwards())  # noqa: E731
                x = checkpoint(self._run, x, index, use_reentrant=False, context_fn=contexts)
            else:
                x = self._run(x, index)
        return x
