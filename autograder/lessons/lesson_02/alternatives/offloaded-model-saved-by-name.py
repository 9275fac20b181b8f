"""No layer runs twice: in the place of a fetched weight autograd saves its name, and fetches it again."""


class Fetched:
    """The copies of one layer's tensors, in one forward pass or for its backward."""

    def __init__(self, copies, arrived):
        self.copies, self.arrived = copies, arrived


class Pass:
    """One forward pass, which its own backward belongs to."""

    def __init__(self, model):
        self.model = model
        self.saved = {}  # layer -> how often one of its weights was saved
        self.open = {}  # layer -> how many of them backward has not asked for yet
        self.fetched = {}

    def pack(self, index, copies):
        # autograd keeps this function with what it saves, so it may not hold the copies
        found = {(copy.data_ptr(), copy.numel()): name for name, copy in copies.items() if copy.numel()}

        def note(tensor):
            name = found.get((tensor.data_ptr(), tensor.numel()))
            if name is None or tensor.device != self.model.device:
                return tensor
            self.saved[index] = self.saved.get(index, 0) + 1
            return index, name, tensor.size(), tensor.stride()

        return note

    def unpack(self, what):
        if isinstance(what, Tensor):
            return what
        index, name, size, stride = what
        if not self.open.get(index):
            self.open[index] = self.saved[index]
            here = self.fetched.pop(index, None) or self.model.copy_over(index)
            torch.cuda.current_stream(self.model.device).wait_event(here.arrived)
            self.now = here
            before = max((i for i in self.saved if i < index), default=None)
            if before is not None and before not in self.fetched:
                self.fetched[before] = self.model.copy_over(before)
        self.open[index] -= 1
        copy = self.now.copies[name]
        if not self.open[index]:
            self.now = None
        return copy.as_strided(size, stride)


class OffloadedModel(nn.Module):
    def __init__(self, layers, compute_device, resident_layers):
        super().__init__()
        if resident_layers < 0 or resident_layers > len(layers):
            raise ValueError(f"{resident_layers} of {len(layers)} layers cannot be resident")
        self.layers = nn.ModuleList(layers)
        self.resident = resident_layers
        self.device = torch.device(compute_device)
        self.side = torch.cuda.Stream(self.device)
        for index, layer in enumerate(self.layers):
            if index < resident_layers:
                layer.to(self.device)
                continue
            for weight in layer.parameters():
                weight.data = weight.data.cpu().pin_memory()
            for module in layer.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    setattr(module, name, buffer.to(self.device))

    def copy_over(self, index):
        self.side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.side), torch.no_grad():
            weights = self.layers[index].named_parameters()
            copies = {name: weight.to(self.device, non_blocking=True) for name, weight in weights}
            return Fetched(copies, self.side.record_event())

    def forward(self, x):
        x = x.to(self.device)
        this, coming = Pass(self), None
        for index, layer in enumerate(self.layers):
            now, coming = coming, None
            if index >= self.resident and now is None:
                now = self.copy_over(index)
            if now is not None:
                torch.cuda.current_stream(self.device).wait_event(now.arrived)
            if self.resident <= index + 1 < len(self.layers):
                coming = self.copy_over(index + 1)
            if now is None:
                x = layer(x)
                continue
            hooks = torch.autograd.graph.saved_tensors_hooks(this.pack(index, now.copies), this.unpack)
            weights = {n: OnDevice.apply(w, now.copies[n]) for n, w in layer.named_parameters()}
            with hooks:
                x = torch.func.functional_call(layer, weights, (x,))
            del weights, hooks, now
        return x
