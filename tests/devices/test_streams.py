"""Streams, late copies and time on stand-in devices."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
import torch

from labkit import devices


@pytest.fixture
def gpus():
    with devices.stand_in(2, bytes_each=2**20) as opened:
        yield opened


def test_a_copy_on_another_stream_has_not_arrived_until_waited_for(gpus):
    source = torch.ones(4).pin_memory()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = source.to("cuda:0", non_blocking=True)
    assert torch.isnan(x + 1).all()
    torch.cuda.current_stream().wait_stream(side)
    assert (x + 1).tolist() == [2.0] * 4
    assert gpus.transfers[0].stream == 1
    assert gpus.transfers[0].non_blocking


def test_waiting_for_an_event_is_enough_and_only_for_what_came_before_it(gpus):
    source = torch.ones(4).pin_memory()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        early = source.to("cuda:0", non_blocking=True)
        arrived = side.record_event()
        late = source.to("cuda:0", non_blocking=True)
    torch.cuda.current_stream().wait_event(arrived)
    assert not torch.isnan(early * 1).any()
    assert torch.isnan(late * 1).all()
    torch.cuda.synchronize()
    assert not torch.isnan(late * 1).any()


def test_a_copy_is_not_there_because_another_one_was_asked_for_after_it(gpus):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.ones(4).pin_memory().to("cuda:0", non_blocking=True)
        torch.ones(4).pin_memory().to("cuda:0", non_blocking=True)
    assert torch.isnan(x * 1).all()
    torch.cuda.current_stream().wait_stream(side)
    assert (x * 1).tolist() == [1.0] * 4


def test_a_stream_that_waits_for_what_waited_for_it_is_none_for_others(gpus):
    """As when the current device is not the one that is copied to."""
    side, elsewhere = torch.cuda.Stream("cuda:1"), torch.cuda.current_stream("cuda:0")
    with torch.cuda.stream(side):
        x = torch.ones(4).pin_memory().to("cuda:1", non_blocking=True)
    elsewhere.wait_stream(side)
    side.wait_stream(elsewhere)
    assert torch.isnan(x * 1).all()
    torch.cuda.current_stream("cuda:1").wait_stream(side)
    assert (x * 1).tolist() == [1.0] * 4


@pytest.mark.parametrize("by_event", [True, False])
def test_a_wait_on_another_devices_stream_is_none_for_this_one(gpus, by_event):
    side, first, second = (torch.cuda.Stream("cuda:1"), *map(torch.cuda.current_stream, ("cuda:0", "cuda:1")))

    def wait(waiting, awaited):
        waiting.wait_event(awaited.record_event()) if by_event else waiting.wait_stream(awaited)

    with torch.cuda.stream(side):
        x = torch.ones(4).pin_memory().to("cuda:1", non_blocking=True)
    wait(first, side)
    assert torch.isnan(x * 1).all()
    _ = torch.ones(4, device="cuda:0") * 1  # work of the stream that waited, which nobody reads
    assert torch.isnan(x * 1).all()
    wait(second, first)  # and so for the copy, which came before
    assert (x * 1).tolist() == [1.0] * 4


def test_a_copy_on_the_same_stream_comes_in_order(gpus):
    x = torch.ones(4).pin_memory().to("cuda:0", non_blocking=True)
    assert (x * 2).tolist() == [2.0] * 4


def test_a_copy_to_the_host_is_there_after_synchronizing(gpus):
    x = torch.ones(4, device="cuda:0")
    y = x.to("cpu", non_blocking=True)
    x.zero_()
    assert torch.isnan(y).all()
    torch.cuda.synchronize()
    assert y.tolist() == [1.0] * 4  # as it was when the copy was asked for


def _after_a_poll(main, side):
    while not side.query():
        pass


def _after_an_event_is_polled(main, side):
    event = side.record_event()
    while not event.query():
        pass


def _after_what_waits_is_waited_for(main, side):
    main.wait_stream(side)
    main.synchronize()


def _after_a_value_behind_it(main, side):
    main.wait_event(side.record_event())
    torch.ones((), device="cuda:0").item()


def _after_an_event_behind_it(main, side):
    main.wait_stream(side)
    main.record_event().synchronize()


def _after_another_device_that_waits(main, side):
    torch.cuda.current_stream("cuda:1").wait_stream(side)
    torch.cuda.synchronize("cuda:1")


ARRIVALS = [
    _after_a_poll,
    _after_an_event_is_polled,
    _after_what_waits_is_waited_for,
    _after_a_value_behind_it,
    _after_an_event_behind_it,
    _after_another_device_that_waits,
]


@pytest.mark.parametrize("wait", ARRIVALS, ids=lambda wait: wait.__name__)
def test_every_wait_of_the_host_that_covers_a_copy_to_it_is_enough(gpus, wait):
    """What a stream has waited for is done when that stream's own work is."""
    x, side, main = torch.ones(4, device="cuda:0"), torch.cuda.Stream(), torch.cuda.current_stream()
    with torch.cuda.stream(side):
        y = x.to("cpu", non_blocking=True)
    main.wait_stream(torch.cuda.Stream())  # not for this one
    assert torch.isnan(y).all()
    wait(main, side)
    assert y.tolist() == [1.0] * 4


@pytest.mark.parametrize("non_blocking", [True, False])
@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_to_the_host_and_back_is_in_the_order_of_its_streams(gpus, waits, non_blocking):
    """As tensors do that are put on the host in forward and fetched in backward: the host looks at none."""
    out, back, main = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()
    x = torch.ones(4, device="cuda:0")
    with torch.cuda.stream(out):
        on_host = x.to("cpu", non_blocking=True)
    if waits:
        back.wait_stream(out)
    with torch.cuda.stream(back):
        y = on_host.to("cuda:0", non_blocking=non_blocking)
    main.wait_stream(back)
    assert torch.isnan(y * 1).any() != waits


def test_activations_kept_in_pinned_memory_come_back_for_backward(gpus):
    x = torch.full((4,), 2.0, device="cuda:0", requires_grad=True)
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        (x**3).sum().backward()
    assert x.grad.tolist() == [12.0] * 4


def test_streams_that_wait_for_one_another_again_and_again(gpus):
    """A copy to a device that neither of them works on stays one copy."""
    side = torch.cuda.Stream("cuda:1")
    with torch.cuda.stream(side):
        x = torch.ones(4).pin_memory().to("cuda:1", non_blocking=True)
    one, other = torch.cuda.Stream("cuda:0"), torch.cuda.Stream("cuda:0")
    one.wait_stream(side)
    for _ in range(60):
        other.wait_stream(one)
        one.wait_stream(other)
    assert torch.isnan(x * 1).all()
    torch.cuda.current_stream("cuda:1").wait_stream(other)
    assert (x * 1).tolist() == [1.0] * 4


def test_to_ask_until_it_is_done_is_to_wait_and_to_ask_now_and_then_is_not(gpus):
    devices.busy(0.02, "cuda:0")
    done = torch.cuda.current_stream("cuda:0").record_event()
    while not done.query():
        torch.ones(1, device="cuda:1") * 1  # goes on
    assert gpus.host_waits == 0
    devices.busy(0.02, "cuda:0")
    while not torch.cuda.current_stream("cuda:0").query():
        pass
    assert gpus.host_waits == 1


def test_to_ask_one_event_after_another_is_not_to_wait(gpus):
    """As whoever looks for a buffer that is free again does: some are, some are not yet."""
    later, done = torch.cuda.Event(), torch.cuda.Event()
    done.record()
    devices.busy(0.2, "cuda:0")
    later.record()
    assert not later.query()
    assert done.query()
    assert gpus.host_waits == 0


def test_without_pinned_memory_a_copy_is_not_late(gpus):
    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.ones(4).to("cuda:0", non_blocking=True)
    assert (x * 1).tolist() == [1.0] * 4


def test_into_a_buffer_kept_for_it(gpus):
    buffer = torch.zeros(4, device="cuda:0")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        buffer.copy_(torch.ones(4).pin_memory(), non_blocking=True)
    assert torch.isnan(buffer * 1).all()
    side.synchronize()
    assert (buffer * 1).tolist() == [1.0] * 4


def test_late_copies_do_not_disturb_backward(gpus):
    weight = torch.ones(3).pin_memory()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        copied = weight.to("cuda:0", non_blocking=True).requires_grad_()
    torch.cuda.current_stream().wait_stream(side)
    (copied**2).sum().backward()
    assert copied.grad.tolist() == [2.0, 2.0, 2.0]


def test_late_copies_can_be_left_out():
    with devices.stand_in(1, bytes_each=2**20, late_copies=False):
        source = torch.ones(4).pin_memory()
        with torch.cuda.stream(torch.cuda.Stream()):
            x = source.to("cuda:0", non_blocking=True)
        assert (x + 1).tolist() == [2.0] * 4


def test_work_is_queued_and_the_host_goes_on(gpus):
    start = time.perf_counter()
    devices.busy(60, "cuda:0", "one", "forward")  # which nobody waits for
    devices.busy(60, "cuda:0", "two", "forward")
    devices.busy(0.1, "cuda:1", "three", "forward")
    assert gpus.host_waits == 0
    torch.cuda.synchronize(1)
    assert 0.1 <= time.perf_counter() - start < 60
    one, two, three = gpus.timeline
    assert two.start == one.end
    assert three.start < one.end


def test_a_transfer_orders_the_work_of_two_devices(gpus):
    layer = devices.FixedTime(0.03, name="stage")
    x = layer(torch.ones(2, device="cuda:0", requires_grad=True))
    layer(x.to("cuda:1")).sum().backward()
    torch.cuda.synchronize()
    kinds = [(b.device, b.kind) for b in gpus.timeline]
    assert kinds == [(0, "forward"), (1, "forward"), (1, "backward"), (0, "backward")]
    assert all(later.start >= earlier.end for earlier, later in pairwise(gpus.timeline))


def test_reading_a_value_waits_for_the_device(gpus):
    x = torch.ones((), device="cuda:0")
    start = time.perf_counter()
    devices.busy(0.05, "cuda:0")
    assert x.item() == 1.0
    assert time.perf_counter() - start >= 0.05


READS = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "a condition": lambda x: bool(x.sum() > 1),
    "tolist": lambda x: x.tolist(),
    "tolist of one": lambda x: x[0].tolist(),
    "print": str,
    "a format": lambda x: f"{x[0]:.3f}",
    "a mask": lambda x: x[x > 0],
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "unique": lambda x: x.unique(),
    "nonzero": lambda x: x.nonzero(),
    "allclose": lambda x: torch.allclose(x, x),
    "cpu": lambda x: x.cpu(),
}


@pytest.mark.parametrize("reads", READS.values(), ids=READS)
def test_the_host_waits_once_for_what_it_reads(gpus, reads):
    """As CUDA makes it wait for a value, or for a size that depends on values."""
    x = torch.ones(3, device="cuda:0")
    before = gpus.host_waits
    reads(x)
    assert gpus.host_waits - before == 1


def test_the_host_does_not_wait_for_what_stays_on_the_device_or_is_its_own(gpus):
    x, own = torch.ones(3, device="cuda:0"), torch.ones(3)
    before = gpus.host_waits
    (x.where(x > 0, 0.0), x[torch.tensor([0, 2], device="cuda:0")], torch.stack([x, x]).sum(), x[0].clone())
    (str(own), own.tolist(), own[own > 0], own.unique())
    assert gpus.host_waits == before


def test_events_measure_time(gpus):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before = time.monotonic()
    start.record()
    devices.busy(0.04, "cuda:0")
    end.record()
    end.synchronize()
    assert 40 <= start.elapsed_time(end) <= 1000 * (time.monotonic() - before)


def test_a_link_of_stated_speed_takes_its_time():
    with devices.stand_in(1, bytes_each=2**20, host_link=1e4) as gpus:
        slow, side = torch.cuda.Stream(), torch.cuda.Stream()
        start = time.perf_counter()
        for stream, numbers in ((slow, 150_000), (side, 100)):  # the first takes a minute, and nobody waits
            source = torch.ones(numbers).pin_memory()
            with torch.cuda.stream(stream):
                source.to("cuda:0", non_blocking=True)
        assert gpus.host_waits == 0
        side.synchronize()
        assert 0.04 <= time.perf_counter() - start < 60
        assert [(b.stream, b.kind) for b in gpus.timeline] == [(1, "communication"), (2, "communication")]
        assert [b.end - b.start for b in gpus.timeline] == pytest.approx([60, 0.04])


def test_streams_and_events_are_of_the_classes_that_programs_ask_for(gpus):
    class Named(torch.cuda.Stream):
        pass

    streams = [
        torch.cuda.Stream(),
        torch.cuda.Stream("cuda:1", priority=-1),
        torch.cuda.current_stream(),
        Named(),
    ]
    events = [torch.cuda.Event(enable_timing=True), torch.cuda.current_stream().record_event()]
    assert all(isinstance(stream, torch.cuda.Stream | None) for stream in streams)
    assert all(isinstance(event, torch.cuda.Event) for event in events)
    assert not isinstance(events[0], torch.cuda.Stream)
    assert streams[2] == torch.cuda.default_stream()
    assert streams[1].device_index == 1


def test_beside_torchs_own_names_there_are_only_marked_ones():
    """What an answer uses on a stand-in must be there on a GPU, and what leads to the timeline be known."""
    of_torch = {"Stream": [*dir(torch.cuda.Stream), "device", "device_index"], "Event": dir(torch.cuda.Event)}
    with devices.stand_in(1, bytes_each=2**20) as gpus:
        moved = torch.ones(1, requires_grad=True).to("cuda")
        found = {"Stream": dir(torch.cuda.Stream()), "Event": dir(torch.cuda.Event(enable_timing=True))}
        open_ways = [value for value in vars(moved.grad_fn.__class__) if value == "machine"]
    for name, names in found.items():
        public = {each for each in names if not each.startswith("_")} - set(of_torch[name])
        assert not public, f"{name} has {public}"
    assert not open_ways
    assert gpus.timeline == []
