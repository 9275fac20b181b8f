"""Wrong answers of lesson 02: cuts, devices, streams, clocks and messages."""

from __future__ import annotations

from autograder.mutants import Mutant

PARTITION, TIMING = "02.partition-layers", "02.step-seconds"
LAYERWISE, OFFLOADED, REMOTE = "02.layerwise-model", "02.offloaded-model", "02.remote-stage"

_BEST = """    until = [0.0]  # until[n]: what the first n layers cost together
    for cost in costs:
        until.append(until[-1] + cost)
    best = list(until)  # best[n]: the largest part of the best cut of the first n layers
    chosen = []  # chosen[k][n]: where device k + 1 begins in that cut
    for _ in range(1, num_devices):
        options = [
            min((max(best[cut], whole - until[cut]), cut) for cut in range(n + 1))
            for n, whole in enumerate(until)
        ]
        best = [largest for largest, _ in options]
        chosen.append([cut for _, cut in options])
    parts, end = [], len(costs)
    for cuts in reversed(chosen):
        parts.append(range(cuts[end], end))
        end = cuts[end]
    return [range(0, end), *reversed(parts)]
"""

_GREEDY = """    average, parts, start, total = sum(costs) / num_devices, [], 0, 0.0
    for index, cost in enumerate(costs):
        total += cost
        if total >= average and len(parts) < num_devices - 1:
            parts.append(range(start, index + 1))
            start, total = index + 1, 0.0
    parts.append(range(start, len(costs)))
    return parts + [range(len(costs), len(costs))] * (num_devices - len(parts))
"""

_ALL_CUTS = """    from itertools import combinations_with_replacement
    best = None
    for cuts in combinations_with_replacement(range(len(costs) + 1), num_devices - 1):
        ends = [0, *cuts, len(costs)]
        parts = [range(a, b) for a, b in zip(ends, ends[1:])]
        worst = max(sum(costs[i] for i in part) for part in parts)
        if best is None or worst < best[0]:
            best = (worst, parts)
    return best[1]
"""

MUTANTS = [
    Mutant(
        "L3",
        PARTITION,
        ("every-layer-once", "smallest-maximum"),
        _BEST,
        "    size = len(costs) // num_devices\n"
        "    return [range(k * size, (k + 1) * size) for k in range(num_devices)]\n",
        "L//p layers a device, the remainder dropped",
    ),
    Mutant(
        "L3b",
        PARTITION,
        ("smallest-maximum",),
        _BEST,
        "    ends = [len(costs) * k // num_devices for k in range(num_devices + 1)]\n"
        "    return [range(a, b) for a, b in zip(ends, ends[1:])]\n",
        "as many layers a device, whatever they cost",
    ),
    Mutant(
        "greedy", PARTITION, ("smallest-maximum",), _BEST, _GREEDY, "filled up to the average, one by one"
    ),
    Mutant("all-cuts", PARTITION, ("many-layers",), _BEST, _ALL_CUTS, "every combination of cuts is tried"),
    Mutant(
        "never-empty",
        PARTITION,
        ("few-layers",),
        "for cut in range(n + 1))",
        "for cut in range(min(1, n), max(n, 1)))",
        "no device may stay empty",
    ),
    Mutant(
        "unchecked-devices",
        PARTITION,
        ("wrong-arguments",),
        "if num_devices < 1:",
        "if False:",
        "any number of devices is accepted",
    ),
    Mutant(
        "unchecked-costs",
        PARTITION,
        ("wrong-arguments",),
        "if any(cost < 0 for cost in costs):",
        "if False:",
        "negative costs are accepted",
    ),
    Mutant(
        "L7",
        TIMING,
        ("device-time",),
        "    for device in devices:\n        torch.cuda.synchronize(device)\n    return",
        "    return",
        "the clock is read without waiting for the devices",
    ),
    Mutant(
        "last-device-only",
        TIMING,
        ("device-time",),
        "    for device in devices:\n        torch.cuda.synchronize(device)\n    return",
        "    torch.cuda.synchronize(devices[-1])\n    return",
        "only the last device is waited for",
    ),
    Mutant(
        "F9",
        TIMING,
        ("first-step",),
        "BEGIN SOLUTION\n    step()\n",
        "BEGIN SOLUTION\n",
        "warm-up step timed",
    ),
    Mutant(
        "old-queue",
        TIMING,
        ("earlier-work",),
        "    for device in devices:\n        torch.cuda.synchronize(device)\n    start",
        "    start",
        "the clock starts while older work is queued",
    ),
    Mutant(
        "total-time",
        TIMING,
        ("device-time",),
        "(time.perf_counter() - start) / steps",
        "time.perf_counter() - start",
        "the time of all steps together",
    ),
    Mutant(
        "rounded-on-the-way",
        LAYERWISE,
        ("forward-values",),
        "            x = x.to(device)\n",
        "            x = x.float().to(device).to(x.dtype)\n",
        "activations cross in single precision",
    ),
    Mutant(
        "rounded-inside",
        OFFLOADED,
        ("forward-values",),
        "return functional_call(layer, copies, (x,))",
        "return functional_call(layer, copies, (x.float().to(x.dtype),))",
        "offloaded layers are fed single precision",
    ),
    Mutant(
        "L1",
        LAYERWISE,
        ("gradients",),
        "            x = x.to(device)\n",
        "            x = x.detach().to(device)\n",
        "activations moved with .detach()",
    ),
    Mutant(
        "L1b",
        LAYERWISE,
        ("gradients",),
        "            x = x.to(device)\n",
        "            x = x.to(device) if x.device in (device, torch.device('cpu')) else x.data.to(device)\n",
        "activations moved with .data between devices",
    ),
    Mutant(
        "L1c",
        LAYERWISE,
        ("boundary-crossings",),
        "            x = x.to(device)\n",
        "            x = x.to(device) if x.device == device else x.cpu().to(device)\n",
        "activations go through the host",
    ),
    Mutant(
        "home-each-time",
        LAYERWISE,
        ("boundary-crossings",),
        "            x = x.to(device)\n",
        "            x = x.to(self.devices[0]).to(device)\n",
        "activations go back to the first device after every layer",
    ),
    Mutant(
        "output-home",
        LAYERWISE,
        ("boundary-crossings",),
        "        return x\n",
        "        return x.to(self.devices[0])\n",
        "the output is sent back to the first device",
    ),
    Mutant(
        "L2",
        LAYERWISE,
        ("earlier-optimizer",),
        "self.layers = nn.ModuleList(layers)",
        "self.layers = nn.ModuleList(copy.deepcopy(list(layers)))",
        "copies of the layers: an optimizer made before has the old parameters",
    ),
    Mutant(
        "hidden-layers",
        LAYERWISE,
        ("trained-weights",),
        "self.layers = nn.ModuleList(layers)",
        "self.layers = list(layers)",
        "layers in a plain list: no parameters to train",
    ),
    Mutant(
        "one-device",
        LAYERWISE,
        ("placement",),
        "self.devices = [torch.device(device) for device in devices]",
        "self.devices = [torch.device(devices[0]) for device in devices]",
        "everything on the first device",
    ),
    Mutant(
        "second-copy",
        LAYERWISE,
        ("placement",),
        "        self.borrowed: list",
        "        weights = list(self.layers.parameters())\n"
        "        self.kept = [p.detach().to(d) for d in set(self.devices) for p in weights]\n"
        "        self.borrowed: list",
        "every device keeps a copy of the whole model",
    ),
    Mutant(
        "buffers-stay",
        LAYERWISE,
        ("buffers-move",),
        "[*layer.named_parameters(), *layer.named_buffers()]",
        "layer.named_parameters()",
        "only parameters are moved",
    ),
    Mutant(
        "frozen-buffers",
        LAYERWISE,
        ("buffers-move",),
        "            copies = {name",
        "            copies = {name: b.clone() for name, b in layer.named_buffers()} | {name",
        "layers run with copies of their buffers, and what is written into them is lost",
    ),
    Mutant(
        "ties-move",
        LAYERWISE,
        ("tied-parameters",),
        "if settled.get(id(p), device) != device]",
        "if False]",
        "a shared parameter is moved to the later layer's device",
    ),
    Mutant(
        "ties-detached",
        LAYERWISE,
        ("tied-parameters",),
        "layer.get_parameter(name).to(device)",
        "layer.get_parameter(name).detach().to(device)",
        "the copy of a shared parameter brings no gradient home",
    ),
    Mutant(
        "unchecked-lengths",
        LAYERWISE,
        ("wrong-arguments",),
        (
            "        if len(layers) != len(devices):\n",
            "zip(self.layers, self.devices, strict=True)",
            "zip(self.layers, self.devices, self.borrowed, strict=True)",
        ),
        (
            "        if False:\n",
            "zip(self.layers, self.devices)",
            "zip(self.layers, self.devices, self.borrowed)",
        ),
        "zip stops at the shorter list",
    ),
    Mutant(
        "L6",
        OFFLOADED,
        ("waits-for-copies",),
        "        torch.cuda.current_stream(self.device).wait_event(arrived)\n",
        "",
        "a layer runs before its weights have arrived",
    ),
    Mutant(
        "L6b",
        OFFLOADED,
        ("waits-for-copies",),
        (
            "copies[name] = OnDevice.apply(parameter, copies[name])",
            "    def _fetch(self",
        ),
        (
            "copies[name] = HomeLater.apply(parameter, copies[name])",
            "    class HomeLater(torch.autograd.Function):\n"
            "        @staticmethod\n"
            "        def forward(ctx, parameter, copied):\n"
            "            ctx.home = parameter.device\n"
            "            return copied.view_as(copied)\n"
            "        @staticmethod\n"
            "        def backward(ctx, grad):\n"
            "            return grad.to(ctx.home, non_blocking=True), None\n\n"
            "    globals()['HomeLater'] = HomeLater\n\n"
            "    def _fetch(self",
        ),
        "gradients are read before their copy to the host has ended",
    ),
    Mutant(
        "L6c",
        OFFLOADED,
        ("waits-for-copies",),
        (
            "            self.on_the_way[index] = (copies, self.side.record_event())",
            "        with torch.cuda.stream(self.side):",
        ),
        (
            "            self.on_the_way[index] = (copies, early)",
            "        early = self.side.record_event()\n        with torch.cuda.stream(self.side):",
        ),
        "the event is recorded before the copies are queued",
    ),
    Mutant(
        "no-prefetch",
        OFFLOADED,
        ("prefetch",),
        "        self._fetch(index + self.ahead)\n",
        "",
        "each layer fetches its own weights when it starts",
    ),
    Mutant(
        "backward-prefetch",
        OFFLOADED,
        ("prefetch",),
        "x, self.ahead = x.to(self.device), 1",
        "x, self.ahead = x.to(self.device), -1",
        "forward prefetches the layer before",
    ),
    Mutant(
        "same-stream",
        OFFLOADED,
        ("prefetch",),
        "self.side = torch.cuda.Stream(self.device)",
        "self.side = torch.cuda.current_stream(self.device)",
        "copies and layers in the same queue",
    ),
    Mutant(
        "blocking-copies",
        OFFLOADED,
        ("prefetch",),
        "t.detach().to(self.device, non_blocking=True)",
        "t.detach().to(self.device)",
        "the host waits for every copy",
    ),
    Mutant(
        "never-dropped",
        OFFLOADED,
        ("peak-memory",),
        "self.on_the_way.pop(index)",
        "self.on_the_way[index]",
        "copies are never dropped",
    ),
    Mutant(
        "kept-for-backward",
        OFFLOADED,
        ("peak-memory",),
        "            elif torch.is_grad_enabled():",
        "            elif False:",
        "autograd keeps every layer's weights for backward",
    ),
    Mutant(
        "all-at-once",
        OFFLOADED,
        ("peak-memory",),
        "        self._fetch(index + self.ahead)\n",
        "        for later in range(len(self.layers)):\n"
        "            if later != index:\n"
        "                self._fetch(later)\n",
        "everything is fetched at the first layer",
    ),
    Mutant(
        "nothing-resident",
        OFFLOADED,
        ("peak-memory",),
        (
            "torch.device(compute_device), resident_layers\n",
            "resident = index < resident_layers",
        ),
        (
            "torch.device(compute_device), 0\n",
            "resident = False",
        ),
        "no layer is resident, whatever was asked for",
    ),
    Mutant(
        "all-resident",
        OFFLOADED,
        ("peak-memory", "weights-fetched"),
        "torch.device(compute_device), resident_layers\n",
        "torch.device(compute_device), len(layers)\n",
        "every layer is resident",
    ),
    Mutant(
        "on-the-cpu",
        OFFLOADED,
        ("weights-fetched",),
        "                x = self._run(x, index)\n",
        "                x = layer(x.cpu()).to(self.device)\n",
        "in inference, offloaded layers run on the CPU",
    ),
    Mutant(
        "no-gradient-home",
        OFFLOADED,
        ("gradients",),
        "OnDevice.apply(parameter, copies[name])",
        "copies[name].requires_grad_()",
        "the copy has the gradient, the parameter never hears of it",
    ),
    Mutant(
        "stale-copies",
        OFFLOADED,
        ("trained-weights",),
        "self.on_the_way.pop(index)",
        "self.on_the_way[index] = self.on_the_way[index]",
        "copies of the first step are used in the second",
    ),
    Mutant(
        "buffers-at-home",
        OFFLOADED,
        ("buffers",),
        "        tensors = [*layer.named_parameters(), *layer.named_buffers()]\n",
        "        tensors = [*layer.named_parameters()]\n",
        "buffers are not fetched",
    ),
    Mutant(
        "needs-one-resident",
        OFFLOADED,
        ("all-or-none",),
        "        x, self.ahead = x.to(self.device), 1\n",
        "        last = self.layers[range(self.resident_layers)[-1]]\n"
        "        x, self.ahead = x.to(next(last.parameters()).device), 1\n",
        "the device is taken from the last resident layer",
    ),
    Mutant(
        "unchecked-resident",
        OFFLOADED,
        ("wrong-arguments",),
        "if not 0 <= resident_layers <= len(layers):",
        "if False:",
        "any number of resident layers is accepted",
    ),
    Mutant(
        "unchecked-negative",
        OFFLOADED,
        ("wrong-arguments",),
        "if not 0 <= resident_layers <= len(layers):",
        "if resident_layers > len(layers):",
        "a negative number of resident layers is accepted",
    ),
    Mutant(
        "P8",
        REMOTE,
        ("gradients",),
        "ReceiveActivation.apply(torch.zeros((), requires_grad=True), self.rank - 1, self.group)",
        "receive_tensor(self.rank - 1, self.group)",
        "what is received does not require a gradient",
    ),
    Mutant(
        "cut-in-front",
        REMOTE,
        ("gradients",),
        "SendActivation.apply(y, self.rank + 1, self.group)",
        "SendActivation.apply(y.detach().requires_grad_(), self.rank + 1, self.group)",
        "the gradient that comes back goes nowhere",
    ),
    Mutant(
        "zero-gradient",
        REMOTE,
        ("gradients",),
        "        send_tensor(grad, ctx.peer, ctx.group)",
        "        send_tensor(torch.zeros_like(grad), ctx.peer, ctx.group)",
        "gradients that are all zero are sent back",
    ),
    Mutant(
        "skips-its-layers",
        REMOTE,
        ("forward-values",),
        "        if self.rank < self.world_size - 1:\n            y = SendActivation.apply(y,",
        "        if self.rank < self.world_size - 1:\n            y = SendActivation.apply(y * 1.01,",
        "what is sent is not what was computed",
    ),
    Mutant(
        "sent-to-all",
        REMOTE,
        ("messages",),
        "            y = SendActivation.apply(y, self.rank + 1, self.group)\n",
        "            y = SendActivation.apply(y, self.rank + 1, self.group)\n"
        "        dist.barrier(self.group)\n",
        "all ranks wait for each other in every forward",
    ),
    Mutant(
        "sent-twice",
        REMOTE,
        ("messages",),
        (
            "        send_tensor(x, peer, group)\n",
            "        return receive_tensor(peer, group)\n",
        ),
        (
            "        send_tensor(x, peer, group)\n        send_tensor(x, peer, group)\n",
            "        receive_tensor(peer, group)\n        return receive_tensor(peer, group)\n",
        ),
        "every activation is sent twice",
    ),
    Mutant(
        "shape-remembered",
        REMOTE,
        ("shapes-may-change",),
        (
            "        self.module, self.group = module, group\n",
            "        y = self.module(x)\n",
        ),
        (
            "        self.module, self.group, self.rows = module, group, None\n",
            "        self.rows = self.rows or x.shape[0]\n        y = self.module(x[: self.rows])\n",
        ),
        "the first batch's size is taken for all batches",
    ),
    Mutant(
        "accumulated",
        REMOTE,
        ("trained-weights",),
        "        y = self.module(x)\n",
        "        self.calls = getattr(self, 'calls', 0) + 1\n"
        "        y = self.module(x) * (1 if self.calls < 3 else 1.5)\n",
        "something of earlier steps leaks into later ones",
    ),
    Mutant(
        "global-ranks",
        REMOTE,
        ("subgroup",),
        "dist.get_rank(group), dist.get_world_size(group)",
        "dist.get_rank(), dist.get_world_size()",
        "global ranks where ranks of the group are meant",
    ),
    Mutant(
        "waits-without-grad",
        REMOTE,
        ("without-gradients",),
        (
            "            y = SendActivation.apply(y, self.rank + 1, self.group)\n",
            "self.rank - 1, self.group)\n        y = self.module(x)\n",
        ),
        (
            "            y = SendActivation.apply(y, self.rank + 1, self.group)\n"
            "            if not torch.is_grad_enabled():\n"
            "                receive_tensor(self.rank + 1, self.group)\n",
            "self.rank - 1, self.group)\n"
            "            if not torch.is_grad_enabled():\n"
            "                send_tensor(x, self.rank - 1, self.group)\n"
            "        y = self.module(x)\n",
        ),
        "something is sent back although no gradient is asked for",
    ),
]
