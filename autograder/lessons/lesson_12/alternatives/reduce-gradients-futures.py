"""Started last parameter first, and divided by what follows each future; new gradients are put in."""

from itertools import chain, repeat


def reduce_gradients(
    shared: Sequence[nn.Parameter],
    experts: Sequence[nn.Parameter],
    everyone: dist.ProcessGroup,
    replicas: dist.ProcessGroup,
) -> None:
    ranks = dist.get_world_size(everyone)
    pending = []
    for parameter, group in chain(
        zip(reversed(shared), repeat(everyone)), zip(reversed(experts), repeat(replicas))
    ):
        message = parameter.detach().mul(0) if parameter.grad is None else parameter.grad.detach().clone()
        handle = dist.all_reduce(message, group=group, async_op=True)
        pending.append((parameter, handle.get_future().then(lambda done: done.value()[0] / ranks)))
    for parameter, future in pending:
        parameter.grad = future.wait()
