"""The protocol of docs/measuring.md: warm-ups, samples, contestants in turns."""

import gc
import math
import time

import torch

FLUSH_AT_LEAST = 256 << 20
MAX_CALLS = 1_000_000
MIN_REPEATS = 3


class WallClock:
    """A CPU: a call is over when it returns. Short calls are repeated inside a sample."""

    words = "warm caches"
    min_sample_ms = 1.0
    # Threads of the one before spin for a moment before they sleep, on the cores of this one.
    settle_s = 0.003

    def __init__(self, _device):
        self._calls = {}

    def warm_up(self, contestant, call, warmup, budget_ms, stop):
        begin = time.perf_counter()
        for _ in range(max(warmup, 1)):
            once = self._time(contestant, call, 1)
            if stop() or 0 < budget_ms < (time.perf_counter() - begin) * 1e3:
                break
        calls = 1
        while once < self.min_sample_ms and calls < MAX_CALLS and not stop():
            # A little more than the rate suggests, at most tenfold: first calls are the slow ones.
            wanted = 1.1 * calls * self.min_sample_ms / max(once, 1e-6)
            calls = min(int(min(max(wanted, calls + 1), calls * 10)), MAX_CALLS)
            once = self._time(contestant, call, calls)
        self._calls[contestant] = calls

    def sample(self, contestant, call):
        time.sleep(self.settle_s)
        return self._time(contestant, call, self._calls[contestant]) / self._calls[contestant]

    @staticmethod
    def _time(contestant, call, count):
        with contestant.setting():
            begin = time.perf_counter()
            for _ in range(count):
                call()
            return (time.perf_counter() - begin) * 1e3


class GpuClock:
    """CUDA events around one call, the L2 flushed before it.

    The flush also covers the time that the host needs to enqueue the call: where Python is slower
    than one flush, several are written. A sample that was not covered all the same, or in which
    PyTorch had to ask the driver for memory, is taken again.
    """

    MAX_FLUSHES = 32
    MAX_ATTEMPTS = 8

    def __init__(self, device):
        l2 = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
        self._bytes = max(2 * l2, FLUSH_AT_LEAST)
        self._buffer = None
        self._flush_ms = 0.0
        self._flushes = {}
        self.words = ("CUDA events around each sample, L2 flushed before it by writing "
                      f"{self._bytes >> 20} MiB")

    def _flush(self, times):
        for _ in range(times):
            self._buffer.zero_()

    @staticmethod
    def _events_ms(work):
        """(milliseconds on the GPU, whether it waited for the host)."""
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        waited = first.query()  # the start is over before the end was enqueued
        last.synchronize()
        return first.elapsed_time(last), waited

    def warm_up(self, contestant, call, warmup, budget_ms, stop):
        if self._buffer is None:
            self._buffer = torch.empty(self._bytes, dtype=torch.uint8, device="cuda")
            self._flush(1)
            self._flush_ms = min(self._events_ms(lambda: self._flush(1))[0] for _ in range(5))
        host_ms = math.inf
        begin = time.perf_counter()
        with contestant.setting():
            for _ in range(max(warmup, 3)):
                torch.cuda.synchronize()
                start = time.perf_counter()
                call()
                host_ms = min(host_ms, (time.perf_counter() - start) * 1e3)
                if stop() or 0 < budget_ms < (time.perf_counter() - begin) * 1e3:
                    break
            torch.cuda.synchronize()
        wanted = math.ceil(1.5 * host_ms / max(self._flush_ms, 1e-3))
        self._flushes[contestant] = min(max(wanted, 1), self.MAX_FLUSHES)

    def sample(self, contestant, call):
        with contestant.setting():
            for _ in range(self.MAX_ATTEMPTS):
                allocations = _driver_allocations()
                self._flush(self._flushes[contestant])
                ms, waited = self._events_ms(call)
                if waited and self._flushes[contestant] < self.MAX_FLUSHES:
                    self._flushes[contestant] = min(2 * self._flushes[contestant], self.MAX_FLUSHES)
                elif _driver_allocations() == allocations:
                    break
            return ms


def _driver_allocations():
    return torch.cuda.memory_stats().get("num_device_alloc", 0)


def interleave(clock, calls, settings, stop, progress, failed):
    """{contestant: [ms]} of `calls` {contestant: call}, which take turns.

    One whose call raises is told to `failed(contestant, error)` and drops out. `stop()` ends it
    after the current sample; `progress(rounds, of)` is told before each.
    """
    begin = time.perf_counter()
    limit_ms = settings["max_total_ms"]
    samples = {}

    def attempt(contestant, work):
        try:
            return work()
        except Exception as error:  # pylint: disable=broad-except
            samples.pop(contestant, None)
            failed(contestant, error)
            return None

    for contestant, call in calls.items():
        if stop():
            break
        progress(0, settings["repeats"])
        samples[contestant] = []
        attempt(contestant, lambda r=contestant, c=call: clock.warm_up(
            r, c, settings["warmup"], limit_ms / (3 * len(calls)), stop))
    gc.collect()
    gc.disable()  # a collection inside a sample would be its time
    try:
        for number in range(settings["repeats"]):
            order = list(samples)
            turn = number % max(len(order), 1)
            for done, contestant in enumerate(order[turn:] + order[:turn]):
                if stop():
                    return samples
                progress(number + done / len(order), settings["repeats"])
                ms = attempt(contestant, lambda r=contestant: clock.sample(r, calls[r]))
                if ms is not None:
                    samples[contestant].append(ms)
            elapsed = (time.perf_counter() - begin) * 1e3
            if 0 < limit_ms <= elapsed and number + 1 >= MIN_REPEATS:
                break
    finally:
        gc.enable()
    return samples
