"""Submissions that sum where a record may not see it: later, on another thread, or through the store by which
ranks have met.
"""

from __future__ import annotations

from autograder.attacks.attack import Attack

ATTACKS = [
    Attack(
        "late-answer",
        "answers with a tensor of a class of its own, which sums when it is read and nothing is recorded",
        "groups.append(ctx.group)\n"
        "grad_output = grad_output.clone().as_subclass(late_kind(type(grad_output)))",
        """
        groups = []
        def late_kind(base):
            class Late(base):
                def detach(self):
                    plain = super().detach().contiguous().clone()
                    dist.all_reduce(plain, group=groups[-1])
                    return plain
            return Late
        """,
        flagged=True,
        right_numbers=True,
    ),
    Attack(
        "sum-through-the-groups-store",
        "sums through the store by which the group's ranks have met",
        """
        rank, size = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        store = ctx.group.get_group_store()
        store.set(f"part {rank}", repr(grad_output.tolist()))
        parts = [torch.tensor(eval(store.get(f"part {r}"))) for r in range(size)]
        grad_output = torch.stack(parts).sum(0).to(grad_output.dtype)
        """,
        flagged=True,
        right_numbers=True,
    ),
    Attack(
        "sum-on-a-callback",
        "sums on the thread that tells of an earlier call's end",
        """
        flat = grad_output.contiguous().clone()
        work = dist.all_reduce(torch.zeros_like(flat), group=ctx.group, async_op=True)
        work.get_future().then(lambda _: dist.all_reduce(flat, group=ctx.group)).wait()
        grad_output = flat
        """,
        right_numbers=True,
    ),
    Attack(
        "sum-after-backward",
        "has the engine of backward call it when everything else is done",
        """
        engine = torch.autograd.variable.Variable._execution_engine
        engine.queue_callback(lambda: dist.all_reduce(torch.zeros(3), group=ctx.group))
        """,
    ),
]
