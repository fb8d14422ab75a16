"""The README's picture, drawn from the records: speed over sequence length, ours and the peers'.

tools/bench_tables.py writes it: docs/speed-light.svg and docs/speed-dark.svg, the same figures in
two palettes.
"""

import math

from bench_records import GPU, cell_of, load, ratios_to_cudnn

GPU_PEERS = (("FlashAttention-2", "papers-torch.flash"), ("cuDNN", "papers-torch.cudnn"))
BY_RATIO = {"FlashAttention-3": "fa3", "FlashAttention-4": "fa4"}  # to cuDNN, on another card
WIDTH, HEIGHT = 1010, 300
PANEL_WIDTH, PANEL_HEIGHT = 200, 200
LEFT, TOP, STEP = 52, 56, 328
LABEL_GAP = 13  # pixels between the labels of two lines
OURS = "FlashLab"
SHORT = {f"FlashAttention-{n}": f"FA-{n}" for n in (2, 3, 4)}  # beside the lines
# Colours that stay apart for colour-blind readers, with enough contrast on either ground.
PALETTES = {
    "light": {"ground": "#ffffff", "text": "#1f2328", "quiet": "#59636e", "grid": "#d8dee4",
              OURS: "#0550ae", "FlashAttention-2": "#9a5b00", "cuDNN": "#3f6f21",
              "FlashAttention-3": "#8a3ffc", "FlashAttention-4": "#b4235a"},
    "dark": {"ground": "#0d1117", "text": "#e6edf3", "quiet": "#9198a1", "grid": "#2f353d",
             OURS: "#6cb6ff", "FlashAttention-2": "#f0a747", "cuDNN": "#8ddb8c",
             "FlashAttention-3": "#c8a2ff", "FlashAttention-4": "#ff8fab"},
}


def rate(row, milliseconds):
    """TFLOP/s: 2 B H pairs (D + Dv) forward, (3 D + 2 Dv) backward."""
    pairs = row["seqlen_q"] ** 2 / (1 if row["mask"] == "none" else 2)
    factor = 4 if row["pass"] == "forward" else 10
    flops = factor * row["batch"] * row["heads_q"] * pairs * row["head_dim"]
    return flops / milliseconds * 1e-9


def curves(documents, **wanted):
    """name -> [(seqlen, rate)], ours from the newest document, each peer from its own."""
    newest = max((document for _, document in documents), key=lambda d: d.get("date_utc", ""))
    out = {}
    for peer, document in documents:
        rows = sorted((r for r in document["results"]
                       if all(r[key] == value for key, value in wanted.items())),
                      key=lambda r: r["seqlen_q"])
        if OURS not in out or document is newest:
            out[OURS] = [(r["seqlen_q"], rate(r, r["flashlab_ms"])) for r in rows]
        out[peer] = [(r["seqlen_q"], rate(r, r["torch_ms"])) for r in rows]
        if peer == "cuDNN":
            ratios = ratios_to_cudnn()
            for name, short in BY_RATIO.items():
                out[name] = [(r["seqlen_q"], rate(r, r["torch_ms"] * ratios[cell_of(r)][short]))
                             for r in rows]
    return out


def panels():
    gpu = [(name, load(f"{GPU}-{file}.json")) for name, file in GPU_PEERS]
    name = gpu[0][1]["environment"]["gpu"].replace("NVIDIA ", "")
    made = []
    for which, mask in (("forward", "none"), ("forward", "causal-top-left"),
                        ("backward", "none")):
        causal = mask != "none"
        lines = curves(gpu, dtype="bf16", head_dim=128, mask=mask, **{"pass": which})
        made.append((f"{name}, {which}, " + ("causal" if causal else "full"),
                     lines))
    return made


def round_scale(largest):
    """The top of an axis and its step: about four lines."""
    raw = largest / 4
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= raw)
    return step * math.ceil(largest / step), step


def length(seqlen):
    return f"{seqlen // 1024}k" if seqlen % 1024 == 0 else str(seqlen)


def spread(wanted):
    """Heights of labels, near the wanted ones and LABEL_GAP apart."""
    heights = {}
    for name, y in sorted(wanted.items(), key=lambda item: item[1]):
        above = max(heights.values(), default=-1e9)
        heights[name] = max(y, above + LABEL_GAP)
    return heights


def panel(x, title, lines, colours):
    """One diagram with its left edge at x."""
    lengths = sorted({s for points in lines.values() for s, _ in points})
    top, step = round_scale(max(r for points in lines.values() for _, r in points))
    low, high = math.log2(lengths[0]), math.log2(lengths[-1])
    across = lambda s: x + PANEL_WIDTH * (math.log2(s) - low) / (high - low)
    down = lambda r: TOP + PANEL_HEIGHT * (1 - r / top)
    out = [f'<text x="{x}" y="{TOP - 30}" class="title">{title}</text>',
           f'<text x="{x}" y="{TOP - 14}" class="quiet">TFLOP/s, higher is better</text>']
    for n in range(round(top / step) + 1):
        y = down(n * step)
        out.append(f'<line x1="{x}" y1="{y:.1f}" x2="{x + PANEL_WIDTH}" y2="{y:.1f}" '
                   f'stroke="{colours["grid"]}"/>')
        out.append(f'<text x="{x - 6}" y="{y + 4:.1f}" class="quiet" text-anchor="end">'
                   f'{n * step:g}</text>')
    for s in lengths:
        out.append(f'<text x="{across(s):.1f}" y="{TOP + PANEL_HEIGHT + 18}" class="quiet" '
                   f'text-anchor="middle">{length(s)}</text>')
    labels = spread({name: down(points[-1][1]) for name, points in lines.items()})
    for name, points in lines.items():
        path = " ".join(f"{across(s):.1f},{down(r):.1f}" for s, r in points)
        width = 3 if name == OURS else 1.75
        dashes = ' stroke-dasharray="5 3"' if name in BY_RATIO else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{colours[name]}" '
                   f'stroke-width="{width}"{dashes}/>')
        out += [f'<circle cx="{across(s):.1f}" cy="{down(r):.1f}" r="{width}" '
                f'fill="{colours[name]}"/>' for s, r in points]
        out.append(f'<text x="{x + PANEL_WIDTH + 7}" y="{labels[name] + 4:.1f}" '
                   f'fill="{colours[name]}" class="{"ours" if name == OURS else "peer"}">'
                   f'{SHORT.get(name, name)} {points[-1][1]:.0f}</text>')
    return out


def picture(palette):
    colours = PALETTES[palette]
    font = "font-family:system-ui,-apple-system,'Segoe UI',sans-serif"
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           f'width="{WIDTH}" height="{HEIGHT}" role="img">',
           "<title>Speed over sequence length: FlashLab and its peers</title>",
           f"<style>text{{{font};font-size:12px}}.title{{font-size:13px;font-weight:600;"
           f"fill:{colours['text']}}}.quiet{{fill:{colours['quiet']};font-size:11px}}"
           ".ours{font-weight:600}</style>",
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{colours["ground"]}"/>']
    for n, (title, lines) in enumerate(panels()):
        out += panel(LEFT + n * STEP, title, lines, colours)
    return "\n".join([*out, "</svg>"]) + "\n"


def pictures():
    """By path, what each file holds."""
    return {f"docs/speed-{palette}.svg": picture(palette) for palette in PALETTES}
