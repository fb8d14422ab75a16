#!/usr/bin/env python3
"""A wheel, and whether it is what it should be:
  tools/check_wheel.py [--keep] [--all] [--built FOLDER]

Builds the wheel as pip does, from nothing or around the library and the command line of a build
folder, in an environment of its own and without what this machine has of CUDA or PyTorch; looks at
what it links and which glibc it asks for, and tags it with the manylinux platform that this makes
true (pip's own tag, linux_x86_64, says nothing and no index takes it); installs it with NumPy into
a fresh environment and calls it there. Where there is a compiler of GPU kernels the wheel must
carry the common ones compiled: of one architecture here, with --all of every one that a published
wheel has. Exit code 0, 1 when something is wrong, 77 without a network.
"""

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

import nvrtc
import source

SKIP_CODE = 77
# Debian 12's. Elsewhere the compiler's own static libraries may ask for that machine's.
OLDEST_GLIBC = (2, 36)
LINKED = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2",
          "ld-linux-aarch64.so.1"}
LARGEST_BYTES = 32 << 20
LARGEST_KERNELS_BYTES = 40 << 20  # unpacked

SMOKE = """
import numpy as np, flashlab
q, k, v = np.random.default_rng(0).standard_normal((3, 2, 33, 4, 16))
o, lse = flashlab.attention(q, k, v, causal=True, return_lse=True)
s = np.einsum("bqhd,bkhd->bhqk", q, k) / 4
s[..., ~np.tri(33, dtype=bool)] = -np.inf
p = np.exp(s - s.max(-1, keepdims=True))
expected = np.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)
assert abs(o - expected).max() < 1e-12, abs(o - expected).max()
assert len(flashlab.attention_backward(o, q, k, v, o, lse, causal=True)) == 3
assert flashlab.info()["environment"]["flashlab_version"] == flashlab.__version__
"""


class Wrong(Exception):
    """What is wrong with the wheel; its text is for a person."""


def run(*command, **options):
    print("$", *command, flush=True)
    if subprocess.run(command, stdin=subprocess.DEVNULL, check=False, **options).returncode != 0:
        raise Wrong(f"{os.path.basename(command[0])} failed")


def environment(folder):
    run(sys.executable, "-m", "venv", folder)
    return os.path.join(folder, "bin", "python")


def online(python):
    """Whether pip reaches its index, asked for what the build needs anyway."""
    return subprocess.run([python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest",
                           os.path.join(os.path.dirname(python), "probe"), "nanobind"],
                          stdin=subprocess.DEVNULL, check=False).returncode == 0


def glibc_here():
    return tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[-1].split("."))


def check_kernels(archive):
    """The kernels that are compiled ahead, where something could compile them."""
    sizes = [one.file_size for one in archive.infolist() if one.filename.endswith(".kernel")]
    if not sizes and (nvrtc.elsewhere() or nvrtc.private()):
        raise Wrong("it carries no compiled kernels")
    if sum(sizes) > LARGEST_KERNELS_BYTES:
        raise Wrong(f"{sum(sizes)} bytes of kernels; at most {LARGEST_KERNELS_BYTES}")
    print(f"{len(sizes)} kernels, {sum(sizes)} bytes")


def looks_right(wheel, folder):
    """Links, glibc, size, content. The newest glibc that it asks for."""
    if os.path.getsize(wheel) > LARGEST_BYTES:
        raise Wrong(f"{os.path.getsize(wheel)} bytes; at most {LARGEST_BYTES}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(folder)
        check_kernels(archive)
    for wanted in ("flashlab/py.typed", "flashlab/__init__.py", "flashlab/bin/flashlab",
                   "flashlab/torch/__init__.py"):
        if wanted not in names:
            raise Wrong(f"{wanted} is not in it")
    for name in names:
        if name.endswith((".h", ".a", ".cmake", ".pyc")):
            raise Wrong(f"{name} does not belong into it")
    newest = (0, 0)
    programs = glob.glob(os.path.join(folder, "flashlab", "_core*.so"))
    programs.append(os.path.join(folder, "flashlab", "bin", "flashlab"))
    for program in programs:
        text = subprocess.run(["readelf", "-dVW", program], capture_output=True, text=True,
                              check=True).stdout
        linked = set(re.findall(r"\(NEEDED\).*\[(.+)\]", text))
        if linked - LINKED:
            raise Wrong(f"{os.path.basename(program)} links {sorted(linked - LINKED)}")
        glibc = max((tuple(map(int, version.split("."))) for version in
                     re.findall(r"GLIBC_(\d+\.\d+)", text)), default=(0, 0))
        if glibc > max(OLDEST_GLIBC, glibc_here()):
            raise Wrong(f"{os.path.basename(program)} asks for glibc {glibc[0]}.{glibc[1]}")
        newest = max(newest, glibc)
        print(f"{os.path.basename(program)}: {os.path.getsize(program)} bytes, links "
              f"{', '.join(sorted(linked))}, as manylinux_{glibc[0]}_{glibc[1]} may")
    return newest


def tag(python, wheel, glibc):
    """The wheel under the name that says where it runs: manylinux of the glibc it asks for."""
    platform = f"manylinux_{glibc[0]}_{glibc[1]}_{os.uname().machine}"
    run(python, "-m", "pip", "install", "--quiet", "wheel")
    run(python, "-m", "wheel", "tags", "--remove", "--platform-tag", platform, wheel)
    tagged = glob.glob(os.path.join(os.path.dirname(wheel), f"*{platform}.whl"))
    if not tagged:
        raise Wrong(f"no wheel is tagged {platform}")
    return tagged[0]


def check(folder, everything, built):
    python = environment(os.path.join(folder, "env"))
    if not online(python):
        print("skipped: pip reaches no package index")
        return SKIP_CODE
    wheels = os.path.join(folder, "wheels")
    start = time.monotonic()
    settings = [f"build-dir={os.path.join(folder, 'build')}"]
    if not everything:
        settings.append("cmake.define.FLASHLAB_KERNEL_ARCHITECTURES=sm_80")  # the fewest
    if built:
        settings.append(f"cmake.define.FLASHLAB_BUILT={os.path.abspath(built)}")
        # Half of the kernels that a wheel carries were compiled by tools/check_kernels.py.
        if os.path.isdir(os.path.join(built, "kernels")):
            shutil.copytree(os.path.join(built, "kernels"),
                            os.path.join(folder, "build", "shipped", "kernels"))
    run(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", wheels,
        *[word for one in settings for word in ("--config-settings", one)], source.ROOT,
        env={**os.environ, **nvrtc.environment()})
    took = time.monotonic() - start
    wheel = glob.glob(os.path.join(wheels, "flashlab-*.whl"))[0]
    wheel = tag(python, wheel, looks_right(wheel, os.path.join(folder, "content")))
    run(python, "-m", "pip", "install", "--quiet", wheel, "numpy")
    run(python, "-c", SMOKE, cwd=folder)
    run(python, "-m", "flashlab", "--version", cwd=folder)
    run(os.path.join(os.path.dirname(python), "flashlab"), "--version", cwd=folder)
    print(f"{os.path.basename(wheel)}: {os.path.getsize(wheel)} bytes, built in {took:.0f} s")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--keep", action="store_true", help="leave the folder, and say where it is")
    parser.add_argument("--all", action="store_true", help="kernels of every architecture")
    parser.add_argument("--built", metavar="FOLDER", help="a build folder with libflashlab.a and "
                        "the command line, which are then not compiled again")
    asked = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="flashlab-wheel-")
    try:
        return check(folder, asked.all, asked.built)
    except Wrong as wrong:
        print(f"wrong: {wrong}", file=sys.stderr)
        return 1
    finally:
        if asked.keep:
            print(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
