"""The packaged command line: `python -m flashlab`, and its instruments as Python data."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Dict, List

from flashlab import _nvrtc

_EXECUTABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "flashlab")
_USAGE, _SLOWER, _WRONG = 2, 3, 4  # exit codes of the command line


class CheckFailed(RuntimeError):
    """`check` found a wrong result; `results` holds what it returns otherwise."""

    def __init__(self, message: str, results: Dict[str, Any]) -> None:
        super().__init__(message)
        self.results = results


def executable() -> str:
    """The packaged program. Errors: RuntimeError, when this copy of the package has none."""
    if not os.access(_EXECUTABLE, os.X_OK):
        raise RuntimeError(f"executable: got no program at {_EXECUTABLE}, expected the one of the "
                           "wheel; install the package by pip")
    return _EXECUTABLE


def environment() -> Dict[str, str]:
    """The environment of the program: ours, and the compiler of GPU kernels that pip installed."""
    path = _nvrtc.found()
    return {**os.environ, **({"FLASHLAB_NVRTC": path} if path else {})}


def _flags(options: Dict[str, Any]) -> List[str]:
    """head_dim=[64, 128], causal=True, pass_="both" -> --head-dim 64,128 --causal --pass both."""
    flags = []
    for name, value in options.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            flags.append(flag)
            continue
        if isinstance(value, (list, tuple)):
            value = ",".join(str(item) for item in value)
        # One word, because a flag whose value may be left out takes it only so.
        flags.append(f"{flag}={value}")
    return flags


def _run(command: str, options: Dict[str, Any]) -> Dict[str, Any]:
    done = subprocess.run([executable(), command, *_flags(options), "--json", "-"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, env=environment(), text=True, check=False)
    message = done.stderr.strip().removeprefix("flashlab: ")
    if done.returncode == _USAGE:
        raise ValueError(message)
    if done.returncode not in (0, _SLOWER, _WRONG):
        how = f"exit code {done.returncode}" if done.returncode > 0 else \
            f"signal {-done.returncode}"
        raise RuntimeError(message or f"flashlab {command} ended with {how}")
    try:
        results = json.loads(done.stdout)
    except ValueError as error:
        raise RuntimeError(f"flashlab {command} printed no JSON: {message}") from error
    if done.returncode == _WRONG:
        raise CheckFailed(message or "check found a wrong result", results)
    return results


def info(**options: Any) -> Dict[str, Any]:
    """What this machine has, what is missing, what would spoil a measurement.

    options     flags of `flashlab info`: device="cuda:0", roof=True, threads=1, …
    Returns     the object of the schema flashlab.info/1: "environment" has processor, memory,
                GPU, versions; "warnings" what would make timings unreliable
    Errors      ValueError (a flag, or a device that is not here), RuntimeError
    """
    return _run("info", options)


def check(**options: Any) -> Dict[str, Any]:
    """Compares every implementation here with plain fp64 loops; about a minute.

    options     flags of `flashlab check`: quick=True, device="cuda", dtype="bf16", case="gqa", …
    Returns     the object of the schema flashlab.check/1: "passed", "failed", "unsupported" count
                cases, "reports" has each
    Errors      CheckFailed (a wrong result; a RuntimeError), ValueError (a flag, or a device that
                is not here), RuntimeError
    """
    return _run("check", options)


def bench(**options: Any) -> Dict[str, Any]:
    """Times one implementation on one problem or many.

    options     flags of `flashlab bench`, lists for lists, a trailing underscore where Python has
                the word: seqlen=[1024, 4096], head_dim=64, causal=True, dtype="bf16",
                pass_="both", preset="gpt2-small", …
    Returns     the object of the schema flashlab.bench/1: "results" has one entry per problem and
                pass: median and spread in ms, FLOP/s, share of the measured roof, memory
    Errors      ValueError (a flag, or a device that is not here), RuntimeError (a problem that
                cannot run)
    """
    return _run("bench", options)
