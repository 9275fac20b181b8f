def layer_compute(plan, model, machines, sequence):
    forward = train_step_flops(model, sequence, plan.micro_batch) / 3 / model.num_layers
    forwards = 4 if plan.recompute else 3
    return max(machines.layer_floor, forwards * forward / (plan.tensor * machines.flops))


def layer_traffic(plan, model, machines, sequence):
    if plan.tensor == 1:
        return 0.0
    activation = 2 * plan.micro_batch * sequence * model.hidden
    all_reduce = 2 * (plan.tensor - 1) * activation / plan.tensor / machines.bandwidth(plan.tensor, 1)
    return all_reduce * (4 + 2 * plan.recompute)


def step_seconds(plan, model, machines, batch, sequence):
    layers = -(-model.num_layers // plan.pipeline)
    compute = layers * layer_compute(plan, model, machines, sequence)
    tensor = layers * layer_traffic(plan, model, machines, sequence)
    m = batch // plan.data // plan.micro_batch
    data = 0.0
    if plan.data > 1:
        own = 2 * count_parameters(model).total / plan.tensor / plan.pipeline
        ring = own * (plan.data - 1) / plan.data / machines.bandwidth(plan.data, plan.tensor)
        can_hide = 2 * ring if plan.zero == 0 else ring
        data = 2 * ring - min(can_hide, (compute + tensor) * 2 / 3)
    return {
        "compute": compute * m,
        "tensor": tensor * m,
        "bubble": (plan.pipeline - 1) * (compute + tensor),
        "data": data,
    }
