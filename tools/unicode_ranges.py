#!/usr/bin/env python3
"""Writes src/train/data/unicode_ranges.inc to standard output:  tools/unicode_ranges.py

Byte-pair encodings cut text by the Unicode classes of letters and numbers before they merge
anything. The ranges come from Python's unicodedata.
"""

import sys
import unicodedata

PER_LINE = 5


def ranges(kind):
    out = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] != kind:
            continue
        if out and out[-1][1] == code - 1:
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


def main():
    print(f"// Written by tools/unicode_ranges.py from Unicode {unicodedata.unidata_version}.\n")
    for name, kind in (("kLetters", "L"), ("kNumbers", "N")):
        print(f"constexpr Range {name}[] = {{")
        items = [f"{{{first:#x}, {last:#x}}}" for first, last in ranges(kind)]
        for i in range(0, len(items), PER_LINE):
            print("    " + ", ".join(items[i:i + PER_LINE]) + ",")
        print("};\n" if kind == "L" else "};")


if __name__ == "__main__":
    main()
