#!/usr/bin/env python3
"""Writes docs/architecture-dark.svg, the picture of docs/architecture-light.svg in dark colours:
  tools/architecture_picture.py

The light one is drawn by hand; tools/check_docs.py compares both.
"""

import os

DOCS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs")
LIGHT, DARK = (os.path.join(DOCS, f"architecture-{name}.svg") for name in ("light", "dark"))
# Background, text, rooms, stages, what is outside, lines: GitHub's colours of both themes.
COLOURS = {"#ffffff": "#0d1117", "#1f2328": "#e6edf3", "#ddf4ff": "#121d2f", "#0969da": "#4493f8",
           "#bc4c00": "#db6d28", "#f6f8fa": "#161b22", "#57606a": "#9198a1", "#d0d7de": "#3d444d"}


def dark_of(light):
    """The picture's text with every colour replaced. Raises KeyError for one that has no pair."""
    parts = light.split('#')
    out = parts[0]
    for part in parts[1:]:
        colour = "#" + part[:6]
        is_colour = len(part) > 5 and all(c in "0123456789abcdef" for c in part[:6])
        out += COLOURS[colour] + part[6:] if is_colour else "#" + part
    return out


def main():
    with open(LIGHT, encoding="utf-8") as light, open(DARK, "w", encoding="utf-8") as dark:
        dark.write(dark_of(light.read()))


if __name__ == "__main__":
    main()
