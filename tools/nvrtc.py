#!/usr/bin/env python3
"""Sees to NVRTC, NVIDIA's run-time compiler, for the checks that compile kernels:
  tools/nvrtc.py LABEL

Where the library would not find one by itself it is installed from PyPI into build/nvrtc, a private
environment. Without a network the checks that need it are skipped (with CI=true they fail), so the
exit code is 0 either way.
"""

import ctypes
import glob
import os
import subprocess
import sys

import console

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PRIVATE = os.path.join(SOURCE, "build", "nvrtc")
LOG = os.path.join(SOURCE, "build", "nvrtc.log")
PACKAGE = "nvidia-cuda-nvrtc>=13,<14"


def newest(*patterns):
    matches = [match for pattern in patterns for match in glob.glob(pattern)]
    return max(matches, default=None)


def private():
    """The library in the private environment, or None."""
    return newest(PRIVATE + "/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.1[0-9]")


def loads(name):
    try:
        return bool(ctypes.CDLL(name))
    except OSError:
        return False


def elsewhere():
    """Whether the library finds one without help: the places of Nvrtc::search_paths()."""
    if os.environ.get("FLASHLAB_NVRTC"):
        return True
    if any(loads(f"libnvrtc.so.{major}") for major in (13, 12)):
        return True
    patterns = ["/usr/local/cuda*/lib64/libnvrtc.so.1[2-9]"]
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if os.environ.get(variable):
            patterns.append(os.environ[variable] +
                            "/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.1[2-9]")
    return newest(*patterns) is not None


def environment():
    """What to add to the environment of a program that compiles kernels."""
    path = None if elsewhere() else private()
    return {"FLASHLAB_NVRTC": path} if path else {}


def quiet(log, *command):
    log.write("$ " + " ".join(command) + "\n")
    log.flush()
    return subprocess.run(command, cwd=SOURCE, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                          check=False).returncode == 0


def install(label):
    """Into the private environment; Debian keeps what makes one in a package of its own."""
    os.makedirs(os.path.dirname(PRIVATE), exist_ok=True)
    with open(LOG, "w", errors="replace") as log:
        made = quiet(log, sys.executable, "-m", "venv", "--clear", PRIVATE)
        if not made and quiet(log, "tools/packages.sh", label, "python"):
            made = quiet(log, sys.executable, "-m", "venv", "--clear", PRIVATE)
        return made and quiet(log, os.path.join(PRIVATE, "bin", "pip"), "install", "--no-deps",
                              "--disable-pip-version-check", "--quiet", PACKAGE)


def main():
    label = sys.argv[1] if len(sys.argv) > 1 else ""
    step = console.Step(label, "nvrtc")
    if elsewhere() or private():
        step.finish("the compiler of GPU kernels", "already there")
        return 0
    if install(label) and private():
        step.finish("the compiler of GPU kernels, from PyPI")
        return 0
    step.finish("not found, and PyPI gave none (build/nvrtc.log)", "skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
