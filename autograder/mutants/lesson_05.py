"""Wrong answers to lesson 05. Ids that start with C name a row of the course's list of known mistakes."""

from __future__ import annotations

from autograder.mutants import Mutant

ONE, CHAIN = "05.checkpoint", "05.checkpoint-sequential"
BYTES, BEST = "05.saved-activation-bytes", "05.best-segment-count"

FORK = "            stack.enter_context(torch.random.fork_rng(devices=self.gpus))\n"
SET_STATE = "            torch.set_rng_state(self.cpu_state)\n"
AUTOCAST = "                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))\n"
DETACH = "tensor.detach().requires_grad_(tensor.requires_grad)"
NO_GRAD = "        with torch.no_grad():\n            return function(*args)\n"
SAVE = "        ctx.save_for_backward(*[args[i] for i in ctx.places])\n"
BACKWARD = "            torch.autograd.backward([r for r, _ in used], [g for _, g in used])\n"
PUT_BACK = "            buffer.data.copy_(value)\n"
APPLY = "    return _RunAgain.apply(function, extra, *args)\n"
SECOND_RUN = "            results = ctx.function(*args)\n"
WHOLE_SEARCH = "    return min(range(1, num_layers + 1), key=lambda segments: (peak(segments), segments))"
LENGTHS = "    return [length + (i < longer) for i in range(segments)]\n"
DIVIDE = "    length, longer = divmod(num_layers, segments)\n"
RUN_SEGMENT = "x = checkpoint(nn.Sequential(*layers[start : start + length]), x)"

OF_CHECKPOINT = [
    Mutant(
        "C1-random-state-not-restored",
        ONE,
        ("random-state",),
        SET_STATE,
        "            pass\n",
        "the second run draws another mask",
    ),
    Mutant(
        "C1-random-stream-disturbed",
        ONE,
        (
            "random-state",
            "state-after-error",
        ),
        FORK,
        "",
        "the stream goes on from the second run",
    ),
    Mutant(
        "state-lost-on-error",
        ONE,
        ("state-after-error",),
        (
            FORK,
            "            yield\n",
        ),
        (
            "            outside = torch.get_rng_state()\n",
            ("            yield\n            torch.set_rng_state(outside)\n"),
        ),
        "the state is put back only when all goes well",
    ),
    Mutant(
        "C3-detach-only",
        ONE,
        ("input-gradients",),
        DETACH,
        "tensor.detach()",
        "the copies ask for no gradient",
    ),
    Mutant(
        "no-detach",
        ONE,
        ("input-gradients",),
        DETACH,
        "tensor",
        "backward runs on into the graph before",
    ),
    Mutant(
        "C7-autocast-not-restored",
        ONE,
        ("autocast",),
        AUTOCAST,
        "                pass\n",
        "the second run is in float32",
    ),
    Mutant(
        "C8-buffers-twice",
        ONE,
        ("buffers-once",),
        PUT_BACK,
        "            pass\n",
        "running averages move twice",
    ),
    Mutant(
        "input-must-ask",
        ONE,
        ("no-input-gradient",),
        "requires_grad=torch.is_grad_enabled()",
        "requires_grad=False",
        "parameters get nothing when the input asks for nothing",
    ),
    Mutant(
        "graph-kept",
        ONE,
        ("saved-bytes",),
        NO_GRAD,
        (
            "        with torch.enable_grad():\n"
            "            ctx.kept = function(*args)\n"
            "        return ctx.kept.detach() if isinstance(ctx.kept, Tensor) else ctx.kept\n"
        ),
        "the first run's graph is kept",
    ),
    Mutant(
        "nothing-forgotten",
        ONE,
        (
            "forward-counts",
            "saved-bytes",
        ),
        APPLY,
        "    return function(*args)\n",
        "a plain call",
    ),
    Mutant(
        "results-kept",
        ONE,
        ("saved-bytes",),
        NO_GRAD,
        (
            "        with torch.no_grad():\n"
            "            ctx.hoard = torch.zeros(40000, dtype=torch.float64)\n"
            "            return function(*args)\n"
        ),
        "something large stays alive",
    ),
    Mutant(
        "runs-twice-in-forward",
        ONE,
        ("forward-counts",),
        NO_GRAD,
        (
            "        with torch.no_grad():\n"
            "            function(*args)\n"
            "            torch.set_rng_state(ctx.surroundings.cpu_state)\n"
            "            return function(*args)\n"
        ),
        "forward runs the function twice",
    ),
    Mutant(
        "runs-once-more-in-backward",
        ONE,
        (
            "forward-counts",
            "on-ranks",
        ),
        SECOND_RUN,
        (
            "            state = torch.get_rng_state()\n"
            "            ctx.function(*args)\n"
            "            torch.set_rng_state(state)\n"
            "            results = ctx.function(*args)\n"
        ),
        "backward runs it twice",
    ),
    Mutant(
        "inputs-only",
        ONE,
        ("parameter-gradients",),
        BACKWARD,
        (
            "            tensors = [a for a in args if isinstance(a, Tensor) and "
            "a.requires_grad]\n"
            "            for a, g in zip(tensors, torch.autograd.grad([r for r, _ in used], "
            "tensors, [g for _, g in used], allow_unused=True)):\n"
            "                a.grad = g\n"
        ),
        "gradients of the arguments alone",
    ),
    Mutant(
        "gradient-of-ones",
        ONE,
        (
            "input-gradients",
            "parameter-gradients",
        ),
        BACKWARD,
        (
            "            torch.autograd.backward([r for r, _ in used], [torch.ones_like(g) for "
            "_, g in used])\n"
        ),
        "the gradient that came in is ignored",
    ),
    Mutant(
        "one-result-only",
        ONE,
        ("several-arguments",),
        "for r, g in zip(results, grads, strict=True)",
        "for r, g in zip(results[:1], grads[:1], strict=True)",
        "only the first result is backpropagated",
    ),
    Mutant(
        "zeros-for-numbers",
        ONE,
        ("several-arguments",),
        "ctx.others = [None if isinstance(a, Tensor) else a for a in args]",
        "ctx.others = [None for a in args]",
        "arguments that are no tensors are lost",
    ),
]

OF_CHAIN = [
    Mutant(
        "remainder-dropped",
        CHAIN,
        (
            "forward-values",
            "even-segments",
        ),
        LENGTHS,
        "    return [length for i in range(segments)]\n",
        "n // k layers each, the rest is left out",
    ),
    Mutant(
        "remainder-in-the-last",
        CHAIN,
        ("even-segments",),
        LENGTHS,
        "    return [length + (i == segments - 1) * longer for i in range(segments)]\n",
        "the last segment takes all that is left",
    ),
    Mutant(
        "longest-rounded-up",
        CHAIN,
        ("even-segments",),
        DIVIDE,
        "    length, longer = -(-num_layers // segments), 0\n",
        "rounding up makes fewer segments",
    ),
    Mutant(
        "every-layer",
        CHAIN,
        (
            "even-segments",
            "saved-bytes",
        ),
        DIVIDE,
        "    length, longer, segments = 1, 0, num_layers\n",
        "one checkpoint a layer, whatever was asked",
    ),
    Mutant(
        "no-checkpoint",
        CHAIN,
        (
            "forward-counts",
            "saved-bytes",
        ),
        RUN_SEGMENT,
        "x = nn.Sequential(*layers[start : start + length])(x)",
        "nothing is checkpointed",
    ),
    Mutant(
        "last-not-checkpointed",
        CHAIN,
        (
            "forward-counts",
            "saved-bytes",
        ),
        RUN_SEGMENT,
        (
            "part = nn.Sequential(*layers[start : start + length])\n"
            "        x = checkpoint(part, x) if start + length < len(layers) else part(x)"
        ),
        "the last segment is run plainly",
    ),
    Mutant(
        "layers-kept",
        CHAIN,
        ("saved-bytes",),
        "    start = 0\n",
        (
            "    start = 0\n"
            "    kept = []\n"
            "    layers[0].kept = kept\n"
            "    for layer in layers:\n"
            "        with torch.no_grad():\n"
            "            kept.append(layer.up(x))\n"
        ),
        "results of layers are kept in a list",
    ),
    Mutant(
        "no-refusal",
        CHAIN,
        ("wrong-segments",),
        "    if not 1 <= segments <= num_layers:\n",
        ("    segments = min(max(segments, 1), num_layers)\n    if False:\n"),
        "the number of segments is bent into shape",
    ),
    Mutant(
        "assertion",
        CHAIN,
        ("wrong-segments",),
        "raise ValueError(",
        "raise AssertionError(",
        "another exception",
    ),
]

OF_FORMULAS = [
    Mutant(
        "peak-sums-all",
        BYTES,
        ("peak",),
        "max(before * boundary_bytes + length",
        "max(len(lengths) * boundary_bytes + length",
        "all boundaries wait, also behind the segment",
    ),
    Mutant(
        "peak-of-longest",
        BYTES,
        ("peak",),
        ("max(before * boundary_bytes + length * layer_bytes for before, length in enumerate(lengths))"),
        "(len(lengths) - 1) * boundary_bytes + max(lengths) * layer_bytes",
        "the longest segment, as if it were the last",
    ),
    Mutant(
        "boundary-counted-twice",
        BYTES,
        ("peak",),
        "max(before * boundary_bytes",
        "max((before + 1) * boundary_bytes",
        "the segment's own input counted again",
    ),
    Mutant(
        "only-boundaries",
        BYTES,
        ("peak",),
        " + length * layer_bytes for",
        " + 0 * length for",
        "what is kept between forward and backward, not the peak",
    ),
    Mutant(
        "nothing-for-no-segments",
        BYTES,
        ("no-segments",),
        ("    if not lengths:\n", "        raise ValueError("),
        ("    if not lengths:\n        return 0\n    if False:\n", "        raise ValueError("),
        "an empty chain holds nothing",
    ),
    Mutant(
        "C9-square-root",
        BEST,
        ("least-peak",),
        WHOLE_SEARCH,
        "    return max(1, round(num_layers**0.5))",
        "sqrt(n), whatever a layer keeps",
    ),
    Mutant(
        "C9-smooth-minimum",
        BEST,
        ("least-peak",),
        WHOLE_SEARCH,
        ("    return min(num_layers, max(1, round((num_layers * layer_bytes / boundary_bytes) ** 0.5)))"),
        "the smooth minimum, rounded",
    ),
    Mutant(
        "largest-of-equals",
        BEST,
        ("least-peak",),
        "(peak(segments), segments)",
        "(peak(segments), -segments)",
        "the largest of equally good numbers",
    ),
]

MUTANTS = [*OF_CHECKPOINT, *OF_CHAIN, *OF_FORMULAS]
