#!/usr/bin/env python3
"""Sees to what the Python package's tests need:  tools/python_environment.py LABEL

The tests build the extension, which wants Python's headers, and nanobind and NumPy: a private
environment, build/python-env, that also sees what this Python has (PyTorch, say). What is missing
comes from PyPI. Without a network the tests of the package are skipped, so the exit code is 0
either way. FLASHLAB_PYTHON names another interpreter that has all of it.
"""

import os
import subprocess
import sys
import sysconfig

import console
import nvrtc

SOURCE = nvrtc.SOURCE
PRIVATE = os.path.join(SOURCE, "build", "python-env")
LOG = os.path.join(SOURCE, "build", "python-env.log")
NEEDED = ("nanobind", "numpy")


def interpreter():
    return os.environ.get("FLASHLAB_PYTHON") or os.path.join(PRIVATE, "bin", "python3")


def complete(python):
    """Whether an interpreter has the modules and its headers."""
    code = "import os, sysconfig; assert os.path.exists(os.path.join(" \
           "sysconfig.get_path('include'), 'Python.h'))"
    code += "".join(f"; import {name}" for name in NEEDED)
    try:
        return subprocess.run([python, "-c", code], capture_output=True, check=False,
                              stdin=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def make(label):
    """The private environment; Debian keeps venv and the headers in packages of their own."""
    os.makedirs(os.path.dirname(PRIVATE), exist_ok=True)
    create = [sys.executable, "-m", "venv", "--clear", "--system-site-packages", PRIVATE]
    headers = os.path.join(sysconfig.get_path("include"), "Python.h")
    with open(LOG, "w", errors="replace") as log:
        made = os.path.exists(headers) and nvrtc.quiet(log, *create)
        if not made and nvrtc.quiet(log, "tools/packages.sh", label, "extension"):
            made = nvrtc.quiet(log, *create)
        if made and not complete(interpreter()):
            made = nvrtc.quiet(log, interpreter(), "-m", "pip", "install", "--quiet",
                               "--disable-pip-version-check", *NEEDED)
        return made and complete(interpreter())


def main():
    label = sys.argv[1] if len(sys.argv) > 1 else ""
    step = console.Step(label, "python")
    if complete(interpreter()):
        step.finish("what the Python package's tests need", "already there")
    elif os.environ.get("FLASHLAB_PYTHON"):
        step.finish(f"FLASHLAB_PYTHON lacks {', '.join(NEEDED)} or Python.h", "skipped")
    elif make(label):
        step.finish("what the Python package's tests need, from PyPI")
    else:
        # A half-made environment would look like one that serves.
        link = os.path.join(PRIVATE, "bin", "python3")
        if os.path.lexists(link):
            os.remove(link)
        step.finish("no nanobind, NumPy or Python.h (build/python-env.log)", "skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
