"""Where pip put the compiler of GPU kernels, for processes that would not find it by themselves.

FlashLab looks for NVRTC in FLASHLAB_NVRTC, among the loaded libraries, on the loader's path, in
/usr/local/cuda*, and below VIRTUAL_ENV and CONDA_PREFIX. A Python that was started without its
environment being activated has none of these variables, but knows its own folders.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys
from typing import List, Optional

_MAJORS = (13, 12)
_loaded: List[ctypes.CDLL] = []


def _load(name: str) -> bool:
    try:
        _loaded.append(ctypes.CDLL(name))
    except OSError:
        return False
    return True


def _candidates() -> List[str]:
    """NVRTC below this Python's folders, newest first."""
    return [path for major in _MAJORS for folder in sys.path
            for path in sorted(glob.glob(os.path.join(
                glob.escape(folder), "nvidia", "*", "lib", f"libnvrtc.so.{major}")), reverse=True)]


def found() -> Optional[str]:
    """The file to name in FLASHLAB_NVRTC for another process; None where it needs no help."""
    if os.environ.get("FLASHLAB_NVRTC"):
        return None
    if any(_load(f"libnvrtc.so.{major}") for major in _MAJORS):
        return None
    return next(iter(_candidates()), None)


def load() -> None:
    """Loads NVRTC into this process where the library would not find it; says nothing if there is
    none: kernels may stand in the cache, and the library's own message is better."""
    path = found()
    if path is not None:
        _load(path)
