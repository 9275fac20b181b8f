def feasible(plan: GridPlan, model: ModelConfig, machines: Machines, batch: int, sequence: int) -> list[str]:
    from labkit.theory.memory import training_memory

    t, reasons = plan.tensor, []
    divide = [
        ("node", machines.gpus_per_node),
        ("heads", model.num_heads),
        ("key-value heads", model.num_kv_heads),
        ("MLP", model.ffn),
    ]
    reasons += [f"{what}: {size} is not divided by {t}" for what, size in divide if size % t]
    if machines.num_gpus != plan.num_gpus:
        reasons.append(f"GPUs: {plan.num_gpus} asked for, {machines.num_gpus} there")
    if model.num_layers < plan.pipeline:
        reasons.append(f"layers: {model.num_layers} on {plan.pipeline} stages")
    remainder = batch % (plan.data * plan.micro_batch)
    if remainder:
        reasons.append(f"batch: {batch} over {plan.data * plan.micro_batch}")
    if reasons:
        return reasons
    full = TrainingPlan(
        model,
        sequence,
        plan.micro_batch,
        recompute="full" if plan.recompute else "none",
        data_parallel=plan.data,
        zero_stage=plan.zero,
        tensor_parallel=t,
        pipeline_parallel=plan.pipeline,
        num_micro_batches=batch // (plan.data * plan.micro_batch),
    )
    needed = max(training_memory(full, stage).total for stage in range(plan.pipeline))
    if needed <= machines.memory * 9 / 10:
        return reasons
    return [f"memory: {needed / 1024**3:.1f} GiB of {0.9 * machines.memory / 1024**3:.1f} GiB"]
