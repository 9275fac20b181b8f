def step_seconds(
    plan: GridPlan, model: ModelConfig, machines: Machines, batch: int, sequence: int
) -> dict[str, float]:
    t, p, d = plan.tensor, plan.pipeline, plan.data
    m = batch // (d * plan.micro_batch)
    deepest = max(layers_of_stages(model.num_layers, p))
    per_layer = train_step_flops(model, sequence, plan.micro_batch) / (model.num_layers * t * machines.flops)
    compute = deepest * max((1 + plan.recompute / 3) * per_layer, machines.layer_floor)
    reduces = deepest * (4 + 2 * bool(plan.recompute))
    tensor = reduces * 4 * (t - 1) / t * plan.micro_batch * sequence * model.hidden / machines.bandwidth(t, 1)
    whole = (m + p - 1) * (compute + tensor)
    scatter = gather = 2 * (d - 1) * count_parameters(model).total / (d * t * p * machines.bandwidth(d, t))
    backward = 2 * (compute + tensor) / 3
    exposed = {0: max(scatter + gather - backward, 0.0), 1: max(scatter - backward, 0.0) + gather}[plan.zero]
    return {
        "compute": m * compute,
        "tensor": m * tensor,
        "bubble": whole - m * (compute + tensor),
        "data": exposed,
    }
