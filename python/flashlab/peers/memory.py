"""What a call needs beside its inputs, and what there is."""

import contextlib
import ctypes
import gc

import torch


def available_bytes(device):
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds and does not use is there for the taking.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    return None


class Watch:
    """High-water marks around calls: the allocator's on a GPU; on a CPU, where there is none that
    all share, what the process has in memory."""

    def __init__(self, device):
        self._gpu = device.type == "cuda"

    def settle(self):
        """Bytes in use, everything finished."""
        if not self._gpu:
            _give_back_free_memory()
            return _process_bytes("VmRSS") or 0
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    def around(self, call):
        """(what it gave, the bytes that it took at most, the process's peak): None is unknown."""
        gc.collect()
        before = self.settle()
        if self._gpu:
            torch.cuda.reset_peak_memory_stats()
            result = call()
            torch.cuda.synchronize()
            return result, torch.cuda.max_memory_allocated() - before, None
        known = _reset_process_peak()
        result = call()
        peak = _process_bytes("VmHWM") if known else None
        return result, None if peak is None else max(0, peak - before), peak


def _give_back_free_memory():
    """Else what an earlier call freed would serve the next, which would seem to need nothing."""
    with contextlib.suppress(OSError, AttributeError):  # the C library may be another one
        ctypes.CDLL(None).malloc_trim(0)


def _reset_process_peak():
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as out:
            out.write("5")
        return True
    except OSError:
        return False


def _process_bytes(which):
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            for line in lines:
                if line.startswith(which + ":"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None
