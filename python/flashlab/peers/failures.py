"""Exceptions as results: what kind, and one line that says why."""

import re

import torch

from flashlab.peers.problem import OutOfMemory, Unsupported, accounts, mib
from flashlab.peers.memory import available_bytes

LONGEST = 400
# What PyTorch says when the backend that was asked for does not take the problem.
NO_BACKEND = ("No available kernel", "No viable backend")


def one_line(text):
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[:LONGEST - 3] + "..."


def backend_reasons(warned):
    """Why SDPA refused a backend: it says so in warnings."""
    reasons = []
    for warning in warned:
        text = re.sub(r"\(Triggered internally.*", "", str(warning.message), flags=re.DOTALL)
        text = one_line(text).rstrip(".")
        # Headings, and what is about the other backends.
        if not text or text.endswith("because:") or "runtime disabled" in text:
            continue
        if text not in reasons:
            reasons.append(text)
    return "; ".join(reasons)


def classify(error, problem, backward, device, warned=()):
    """(status, message) of an exception that a contestant raised."""
    text = str(error).split("\n  target: ", 1)[0]  # a compiler's dump of the whole graph
    text = one_line(text) or type(error).__name__
    if isinstance(error, Unsupported):
        return "unsupported", text
    if _is_memory(error, text):
        if not isinstance(error, OutOfMemory):
            text = text.split(" GPU ")[0].rstrip(". ")  # torch's own accounts
        free = available_bytes(device)
        there = "" if free is None else f"; {mib(free)} are free without it"
        return "oom", f"{text}{there}; {accounts(problem, backward)}"
    if any(words in text for words in NO_BACKEND):
        return "unsupported", backend_reasons(warned) or text
    if isinstance(error, NotImplementedError) or _refused_by_compiler(error, text):
        return "unsupported", text
    return "error", f"{type(error).__name__}: {text}"


def _is_memory(error, text):
    kinds = (OutOfMemory, MemoryError, torch.cuda.OutOfMemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in text or \
        "out of memory" in text.lower()


def _refused_by_compiler(error, text):
    """torch.compile wraps what FlexAttention raises for shapes that it does not take."""
    inner = getattr(error, "inner_exception", None)
    return isinstance(inner, NotImplementedError) or "NotImplementedError" in text or \
        "NYI:" in text


def device_lost(device):
    """Whether nothing further can run on the GPU, as after an illegal address."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
        return False
    except Exception:  # pylint: disable=broad-except
        return True
