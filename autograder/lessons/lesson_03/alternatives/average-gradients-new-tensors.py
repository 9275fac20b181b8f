"""All are under way together, from the last parameter on, and each gradient becomes a new tensor."""


def average_gradients(module, group):
    trained = [p for p in module.parameters() if p.requires_grad][::-1]
    sums = []
    for p in trained:
        own = torch.zeros(p.shape, dtype=p.dtype, device=p.device)
        if p.grad is not None:
            own += p.grad
        sums.append((own, dist.all_reduce(own, group=group, async_op=True)))
    while sums:
        total, work = sums.pop()
        work.wait()
        trained.pop().grad = total / dist.get_world_size(group)
