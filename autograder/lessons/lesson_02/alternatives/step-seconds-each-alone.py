"""Each step is timed alone, and the times are added."""

import statistics
import time

import torch


def seconds_per_step(step, devices, steps):
    times = []
    for number in range(steps + 1):
        [torch.cuda.synchronize(device) for device in devices]
        start = time.perf_counter_ns()
        step()
        [torch.cuda.synchronize(device) for device in devices]
        if number:
            times.append(time.perf_counter_ns() - start)
    return statistics.fmean(times) * 1e-9
