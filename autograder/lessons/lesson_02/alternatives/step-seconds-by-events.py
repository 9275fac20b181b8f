"""Two events for each device, when all of its queues are done, and the longest time between two."""

import torch


class _Clock:
    def __init__(self, device):
        self.device = device
        self.marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def mark(self, number):
        torch.cuda.synchronize(self.device)
        self.marks[number].record(torch.cuda.current_stream(self.device))

    def seconds(self):
        begin, end = self.marks
        end.synchronize()
        return begin.elapsed_time(end) / 1000


def seconds_per_step(step, devices, steps):
    step()
    list(map(torch.cuda.synchronize, devices))
    clocks = [_Clock(device) for device in devices]
    for clock in clocks:
        clock.mark(0)
    for _ in range(steps):
        step()
    for clock in clocks:
        clock.mark(1)
    return max(clock.seconds() for clock in clocks) / steps
