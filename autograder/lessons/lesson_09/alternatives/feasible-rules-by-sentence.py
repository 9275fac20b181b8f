def feasible(plan: GridPlan, model: ModelConfig, machines: Machines, batch: int, sequence: int) -> list[str]:
    """All rules as (holds, sentence); memory is one more rule that is asked last."""
    gpus, rows = plan.data * plan.tensor * plan.pipeline, plan.data * plan.micro_batch
    grid = f"({plan.data} replicas, {plan.pipeline} stages, {plan.tensor} ranks wide)"
    rules = {
        f"The grid {grid} takes {gpus:,} GPUs and the cluster has {machines.num_gpus:,}.": gpus
        == machines.num_gpus,
        f"{machines.gpus_per_node} GPUs of a node are no multiple of {plan.tensor}.": machines.gpus_per_node
        % plan.tensor
        == 0,
        f"Query heads: {model.num_heads} do not divide by {plan.tensor}.": model.num_heads % plan.tensor == 0,
        f"Key-value heads: {model.num_kv_heads} do not divide by {plan.tensor}.": model.num_kv_heads
        % plan.tensor
        == 0,
        f"MLP: {model.ffn} features do not divide by {plan.tensor}.": model.ffn % plan.tensor == 0,
        f"With {plan.pipeline} stages of {model.num_layers} layers one has none.": plan.pipeline
        <= model.num_layers,
        f"The batch, {batch}, must be a multiple of dp times micro-batch, {rows}.": batch % rows == 0,
    }
    broken = [sentence for sentence, holds in rules.items() if not holds]
    return broken or list(_too_large(plan, model, machines, batch // rows, sequence))


def _too_large(
    plan: GridPlan, model: ModelConfig, machines: Machines, num_micro_batches: int, sequence: int
) -> Iterator[str]:
    training = TrainingPlan(
        model,
        sequence,
        plan.micro_batch,
        num_micro_batches=num_micro_batches,
        tensor_parallel=plan.tensor,
        pipeline_parallel=plan.pipeline,
        data_parallel=plan.data,
        zero_stage=plan.zero,
        recompute="full" if plan.recompute else "none",
        attention="fused",
    )
    stage, memory = worst_stage(training)
    spare = machines.memory - memory.total
    if spare < machines.memory / 10:
        gib = 1 << 30
        yield (
            f"Stage {stage} wants {memory.total / gib:.1f} GiB of {machines.memory / gib:.1f} GiB; with "
            f"a tenth free {machines.memory * 9 / 10 / gib:.1f} GiB are left to use."
        )
