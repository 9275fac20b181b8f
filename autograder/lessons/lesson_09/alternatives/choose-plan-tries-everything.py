def choose_plan(model, machines, batch, sequence):
    best, least = None, math.inf
    for tensor in range(1, machines.gpus_per_node + 1):
        for pipeline in range(1, model.num_layers + 1):
            if machines.num_gpus % (tensor * pipeline) or machines.gpus_per_node % tensor:
                continue
            data = machines.num_gpus // (tensor * pipeline)
            for micro_batch in range(1, batch // data + 1):
                if batch % (data * micro_batch):
                    continue
                for zero in (0, 1):
                    for recompute in (False, True):
                        plan = GridPlan(data, tensor, pipeline, micro_batch, zero, recompute)
                        seconds = sum(step_seconds(plan, model, machines, batch, sequence).values())
                        if seconds < least and not feasible(plan, model, machines, batch, sequence):
                            best, least = plan, seconds
    if best is None:
        raise ValueError("nothing runs")
    return best
