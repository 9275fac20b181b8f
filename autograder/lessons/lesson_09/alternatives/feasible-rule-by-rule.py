def feasible(plan, model, machines, batch, sequence):
    found = [reason for broken, reason in rules(plan, model, machines, batch) if broken]
    if found:
        return found
    training = TrainingPlan(
        model,
        sequence,
        micro_batch=plan.micro_batch,
        recompute=("none", "full")[plan.recompute],
        data_parallel=plan.data,
        tensor_parallel=plan.tensor,
        pipeline_parallel=plan.pipeline,
        zero_stage=plan.zero,
        num_micro_batches=batch // plan.data // plan.micro_batch,
    )
    _, most = worst_stage(training)
    free = machines.memory - most.total
    if free >= 0.1 * machines.memory:
        return []
    return [f"may use {machines.memory * 0.9 / 2**30:.1f} GiB, needs {most.total / 2**30:.1f} GiB"]


def rules(plan, model, machines, batch):
    t, at_once = plan.tensor, plan.data * plan.micro_batch
    ranks = plan.data * plan.tensor * plan.pipeline
    yield ranks != machines.nodes * machines.gpus_per_node, f"{machines.num_gpus} GPUs for {ranks} ranks"
    yield machines.gpus_per_node % t != 0, f"a node has {machines.gpus_per_node} GPUs, t is {t}"
    yield model.num_heads % t != 0, f"t is {t}, and there are {model.num_heads} heads"
    yield model.num_kv_heads % t != 0, f"t is {t}, and there are {model.num_kv_heads} key-value heads"
    yield model.ffn % t != 0, f"t is {t}, and the MLP has {model.ffn} columns"
    yield model.num_layers < plan.pipeline, f"{model.num_layers} layers for {plan.pipeline} stages"
    yield batch % at_once != 0, f"{at_once} sequences at once, {batch} in a batch"
