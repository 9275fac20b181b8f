def program_1(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], group: dist.ProcessGroup, learning_rate: float
) -> None:
    layers = [list(layer.parameters()) for layer in model.modules() if isinstance(layer, nn.Linear)]
    pairs = [layers[first : first + 2] for first in range(0, len(layers), 2)]
    buckets = [[p for layer in pair for p in layer] for pair in pairs]
    averaged = GradientBuckets(buckets[::-1], group)

    def optimizer_step(p):
        return p.sub_(learning_rate * p.grad)

    for x, y in batches:
        for p in model.parameters():
            p.grad = None
        (model(x) - y).square().mean().backward()
        averaged.wait()
        with torch.no_grad():
            for p in model.parameters():
                optimizer_step(p)
    for hook in averaged.hooks:
        hook.remove()
