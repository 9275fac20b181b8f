def step_seconds(
    plan: GridPlan, model: ModelConfig, machines: Machines, batch: int, sequence: int
) -> dict[str, float]:
    """The pipeline's m + p - 1 turns are drawn up first; the bubble is what is not work in them."""
    turns_of_work = batch // (plan.data * plan.micro_batch)
    turns = turns_of_work + plan.pipeline - 1
    deepest = -(-model.num_layers // plan.pipeline)
    passes = 4 if plan.recompute else 3  # forward, twice backward, and forward again
    products = train_step_flops(model, sequence, plan.micro_batch) * passes / 3
    of_a_layer = products / (model.num_layers * plan.tensor * machines.flops)
    if of_a_layer < machines.layer_floor:
        of_a_layer = machines.layer_floor
    sent = 0.0
    if plan.tensor > 1:
        numbers = plan.micro_batch * sequence * model.hidden
        ring = 2 * 2 * numbers * (1 - 1 / plan.tensor)
        sent = (4 + 2 * plan.recompute) * ring / machines.bandwidth(plan.tensor, 1)
    turn = deepest * (of_a_layer + sent)
    left = [0.0, 0.0]
    if plan.data > 1:
        weights = 2 * count_parameters(model).total / (plan.tensor * plan.pipeline)
        half = weights * (1 - 1 / plan.data) / machines.bandwidth(plan.data, plan.tensor)
        left = [half, half]
        hides = turn * 2 / 3
        for number in range(2 - plan.zero):
            hidden = min(left[number], hides)
            left[number] -= hidden
            hides -= hidden
    return {
        "data": sum(left),
        "bubble": (turns - turns_of_work) * turn,
        "compute": turns_of_work * deepest * of_a_layer,
        "tensor": turns_of_work * deepest * sent,
    }
