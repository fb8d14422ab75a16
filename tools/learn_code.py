#!/usr/bin/env python3
"""Lines of kernel code on the pages of docs/learn:  tools/learn_code.py [--check]

A page says which: between

  <!-- code: PATH | FIRST | COUNT -->
  <!-- code: end -->

stand COUNT lines of PATH from the only line that contains FIRST, without their common indent, under
a link to the file. This tool writes them; --check writes nothing and fails if a page holds others,
or if a page's FIRST is not in its file once.
"""

import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BLOCK = re.compile(r"<!-- code: (?P<path>[^|\n]+) \| (?P<first>[^\n]+) \| (?P<count>\d+) -->\n"
                   r".*?<!-- code: end -->", re.DOTALL)


class Wrong(Exception):
    """A page asks for lines that a file does not have."""


def excerpt(path, first, count):
    with open(path, encoding="utf-8") as stream:
        lines = stream.read().splitlines()
    found = [n for n, line in enumerate(lines) if first in line]
    if len(found) != 1:
        raise Wrong(f"{path} has {len(found)} lines with \"{first}\", expected one")
    chosen = lines[found[0]:found[0] + count]
    if len(chosen) != count:
        raise Wrong(f"{path} ends before line {found[0] + count}")
    # Directives begin at the left edge, whatever the indent around them.
    code = [line for line in chosen if line.strip() and not line.startswith("#")]
    indent = min(len(line) - len(line.lstrip()) for line in code)
    return "\n".join(line if line.startswith("#") else line[indent:] for line in chosen).rstrip()


def written(match):
    path, first, count = match["path"], match["first"], int(match["count"])
    return (f"<!-- code: {path} | {first} | {count} -->\n"
            f"From [`{os.path.basename(path)}`](../../{path}):\n\n"
            f"```cpp\n{excerpt(path, first, count)}\n```\n<!-- code: end -->")


def main():
    check = "--check" in sys.argv[1:]
    failed = False
    os.chdir(ROOT)
    for page in sorted(glob.glob("docs/learn/*.md")):
        with open(page, encoding="utf-8") as stream:
            text = stream.read()
        try:
            made = BLOCK.sub(written, text)
        except (Wrong, OSError) as wrong:
            print(f"{page}: {wrong}")
            failed = True
            continue
        if page.endswith(".zh-CN.md"):
            made = re.sub(r"^From (\[`[^`]+`\]\([^)]+\)):$", r"摘自 \1:", made, flags=re.MULTILINE)
        if made == text:
            continue
        print(f"{page}: " + ("does not hold what the sources say" if check else "written"))
        failed |= check
        if not check:
            with open(page, "w", encoding="utf-8") as stream:
                stream.write(made)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
