#!/usr/bin/env python3
"""Valid files for the fuzzers to start from:  tools/fuzz_seeds.py FOLDER

The first byte of each seed chooses the reader, as in fuzz/fuzz_files.cpp.
"""

import io
import json
import os
import struct
import sys
import zipfile

SAFETENSORS, NPZ, NPY, INPUTS, EDITED_RESULTS = range(5)


def safetensors(dtype, size, shape):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name in ("q", "k", "v", "do"):
        elements = 1
        for extent in shape:
            elements *= extent
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [offset, offset + elements * size]}
        offset += elements * size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(i % 60 for i in range(offset))


def npy(descr, size, shape, fortran=False, version=(1, 0)):
    text = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode()
    length = "<H" if version == (1, 0) else "<I"
    fixed = 8 + struct.calcsize(length)
    text += b" " * (-(fixed + len(text) + 1) % 64) + b"\n"
    elements = 1
    for extent in shape:
        elements *= extent
    return (b"\x93NUMPY" + bytes(version) + struct.pack(length, len(text)) + text
            + bytes(i % 60 for i in range(elements * size)))


def npz(method, *arguments, **named):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name in ("q", "k", "v"):
            archive.writestr(name + ".npy", npy(*arguments, **named))
    return stream.getvalue()


def seeds():
    for dtype, size in (("F32", 4), ("BF16", 2), ("F16", 2), ("F64", 8)):
        yield f"safetensors-{dtype}", SAFETENSORS, safetensors(dtype, size, [1, 2, 1, 3])
        yield f"inputs-{dtype}", INPUTS, safetensors(dtype, size, [1, 2, 1, 3])
    for name, method in (("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)):
        for reader in (NPZ, INPUTS):
            yield f"npz-{name}-{reader}", reader, npz(method, "<f4", 4, (1, 2, 1, 3))
    yield "npz-fortran", NPZ, npz(zipfile.ZIP_DEFLATED, "<f2", 2, (1, 2, 1, 3), fortran=True)
    yield "npy-1", NPY, npy("<f8", 8, (2, 3))
    yield "npy-2", NPY, npy("<f4", 4, (), version=(2, 0))
    yield "npy-3", NPY, npy("|b1", 1, (5,), version=(3, 0))
    yield "results-edited", EDITED_RESULTS, bytes(8)


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for name, reader, content in seeds():
        with open(os.path.join(folder, name), "wb") as stream:
            stream.write(bytes([reader]) + content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
