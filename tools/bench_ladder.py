"""The ladder of kernels: its tables on the pages of docs/learn, and the picture of all rungs.

bench/gpu.sh ladder makes the records; tools/bench_tables.py writes what this module makes.
"""

import math

from bench_records import GPU, find, load, recorded_on

RUNGS = ["naive", "fa1", "fa1-vector", "fa1-shuffle", "fa1-mma", "fa2", "fa2-vector",
         "fa2-shuffle", "fa2-mma", "fa2-tma", "fa2-wgmma", "fa3", "fa3-turns", "fa3-frozen"]
BESIDE_THE_RUNGS = ["fa2-deterministic", "sm80", "sm90"]
FORWARD, BACKWARD = "forward", "backward"


def ladder_file(shape):
    """What `compare` recorded of all rungs on a shape: "long" or "wide"."""
    return load(f"{GPU}-ladder-{shape}.json")


def rung(document, name, which, dtype):
    """A rung's result, or None where it does not run."""
    row = find(document["results"], implementation=name, dtype=dtype, **{"pass": which})
    return row if row is not None and row["status"] == "ok" else None


def recorded(document, names):
    """Those of `names` that were there when the record was made."""
    return [name for name in names if find(document["results"], implementation=name) is not None]


def milliseconds(row):
    return "-" if row is None else f"{row['median_ms']:#.3g}".rstrip(".")


def mebibytes(row):
    return "-" if row is None else f"{row['workspace_bytes'] / 2**20:.3g}"


def shape_words(document, chinese):
    one = document["results"][0]
    sizes = f"B {one['batch']}, H {one['heads_q']}, S {one['seqlen_q']}"
    return sizes.replace(", ", ",") if chinese else sizes


def ladder_source(chinese):
    """Where the figures come from, in a line; their commands stand on one page."""
    where = recorded_on(ladder_file("long")["environment"], chinese)
    if chinese:
        return (f"D 64,因果掩码,毫秒,中位数,每次清空 L2;{where};"
                "[命令](README.zh-CN.md#数字的来源)。")
    return (f"D 64, causal; milliseconds, median, L2 flushed; {where}; "
            f"[commands](README.md#where-the-figures-come-from).")


def ladder_commands(chinese):
    """The command of each record of the ladder."""
    colon = ":" if chinese else ": "
    lines = []
    for shape in ("long", "wide", "hopper"):
        document = ladder_file(shape)
        command = document["environment"]["command"].split(" --output")[0]
        where = recorded_on(document["environment"], chinese)
        lines.append(f"- {shape_words(document, chinese)}{colon}`{command}` ({where})")
    return "\n".join(lines)


def ladder_table(names, which, chinese):
    """Rungs on both shapes, in fp32 and bf16."""
    documents = [ladder_file(shape) for shape in ("long", "wide")]
    heads = [f"{shape_words(d, chinese)}: {t}" for d in documents for t in ("fp32", "bf16")]
    title = {FORWARD: ("forward", "前向"), BACKWARD: ("backward", "反向")}[which][chinese]
    lines = [f"| {title} | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for name in recorded(documents[0], names):
        cells = [milliseconds(rung(d, name, which, t)) for d in documents
                 for t in ("fp32", "bf16")]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", ladder_source(chinese)])


def slower_steps(document, dtype):
    """Rungs from fa1 on that are not faster than the one before."""
    rows = [rung(document, name, FORWARD, dtype) for name in RUNGS[1:]]
    rows = [row for row in rows if row is not None]
    return [b["implementation"] for a, b in zip(rows, rows[1:])
            if b["median_ms"] >= a["median_ms"]]


def ladder_verdict(document, chinese):
    """Whether the ladder climbs, and what of naive, in words."""
    slower = sorted({name for t in ("fp32", "bf16") for name in slower_steps(document, t)})
    behind = {}  # what naive is faster than in one of the types: its workspace
    for name in [*RUNGS[1:], *BESIDE_THE_RUNGS]:
        for dtype in ("fp32", "bf16"):
            row = rung(document, name, FORWARD, dtype)
            if row and row["median_ms"] > rung(document, "naive", FORWARD, dtype)["median_ms"]:
                behind[name] = max(row["workspace_bytes"], behind.get(name, 0))
    memory = mebibytes(rung(document, "naive", FORWARD, "fp32"))
    most = f"{max(behind.values(), default=0) / 2**20:.3g}"
    names = ", ".join(f"`{name}`" for name in behind)
    if chinese:
        climb = ("从 `fa1` 起每一级都比前一级快" if not slower
                 else "除 " + "、".join(slower) + " 外,从 `fa1` 起每一级都比前一级快")
        if not behind:
            return climb + "。"
        return (f"{climb}。`naive` 比 {names.replace(', ', '、')} 快,但要 {memory} MiB 的工作区"
                f"(fp32),而它们最多 {most} MiB。")
    climb = ("From `fa1` on each rung is faster than the one before" if not slower
             else "From `fa1` on each rung but " + ", ".join(slower)
             + " is faster than the one before")
    if not behind:
        return climb + "."
    return (f"{climb}. `naive` is faster than {names}, and takes {memory} MiB of workspace (fp32) "
            f"where they take at most {most} MiB.")


def whole(chinese):
    """The whole ladder on its stated shape, both passes, and the memory."""
    document = ladder_file("long")
    columns = (["前向 fp32,ms", "bf16", "反向 fp32", "bf16", "前向工作区,MiB", "反向工作区"]
               if chinese else ["forward fp32, ms", "bf16", "backward fp32", "bf16",
                                "workspace forward, MiB", "backward"])
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for name in recorded(document, [*RUNGS, *BESIDE_THE_RUNGS]):
        rows = [rung(document, name, which, t) for which in (FORWARD, BACKWARD)
                for t in ("fp32", "bf16")]
        memory = [mebibytes(rows[0] or rows[1]), mebibytes(rows[2] or rows[3])]
        lines.append(f"| `{name}` | " + " | ".join([*map(milliseconds, rows), *memory]) + " |")
    words = shape_words(document, chinese)
    comma = "," if chinese else ", "
    stated = f"{words}{comma}{ladder_source(chinese)}"
    return "\n".join([*lines, "", f"{stated} {ladder_verdict(document, chinese)}"])


def fa1_table(chinese):
    """The first rung beside naive: time and memory."""
    document = ladder_file("long")
    title = ["前向,ms", "fp32", "bf16", "工作区,MiB"] if chinese else [
        "forward, ms", "fp32", "bf16", "workspace, MiB"]
    lines = ["| " + " | ".join(title) + " |", "|---|---:|---:|---:|"]
    for name in ("naive", "fa1"):
        rows = [rung(document, name, FORWARD, t) for t in ("fp32", "bf16")]
        lines.append(f"| `{name}` | " + " | ".join([*map(milliseconds, rows), mebibytes(rows[0])])
                     + " |")
    words = shape_words(document, chinese)
    comma = "," if chinese else ", "
    return "\n".join([*lines, "", f"{words}{comma}{ladder_source(chinese)}"])


def hopper_table(names, chinese):
    """Rungs for Hopper with enough heads to fill the GPU: the rate, and what an idea brought."""
    document = ladder_file("hopper")
    dims = (64, 128)
    gain = "对前一级" if chinese else "over the one before"
    title = "前向" if chinese else "forward"
    lines = [f"| {title} | " + " | ".join(f"d {d}, TFLOP/s | {gain}" for d in dims) + " |",
             "|---|" + "---:|---:|" * len(dims)]
    for place, name in enumerate(names):
        cells = []
        for dim in dims:
            row, before = (find(document["results"], implementation=of, head_dim=dim,
                                **{"pass": FORWARD}) for of in (name, names[place - 1]))
            cells += [f"{row['tflops']:.0f}",
                      f"{row['tflops'] / before['tflops']:.2f}x" if place else ""]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    where = recorded_on(document["environment"], chinese)
    words = shape_words(document, chinese)
    stated = (f"{words},bf16,因果掩码,中位数,每次清空 L2;{where};[命令](README.zh-CN.md#数字的来源)。"
              if chinese else f"{words}, bf16, causal; median, L2 flushed; {where}; "
              "[commands](README.md#where-the-figures-come-from).")
    return "\n".join([*lines, "", stated])


PAGES = ("README", "fa1", "vector-loads", "warp-shuffles", "tensor-cores", "fa2", "fa2-backward",
         "copy-engine", "warpgroup-products", "warp-specialisation", "frozen-maximum")


def tables(chinese):
    """By tag, what the pages of docs/learn hold."""
    forward = {"vector": ["fa1", "fa1-vector", "fa2", "fa2-vector"],
               "shuffle": ["fa1-vector", "fa1-shuffle", "fa2-vector", "fa2-shuffle"],
               "mma": ["fa1-shuffle", "fa1-mma", "fa2-shuffle", "fa2-mma"], "all": RUNGS}
    hopper = {"tma": ["fa2-mma", "fa2-tma"], "wgmma": ["fa2-tma", "fa2-wgmma"],
              "turns": ["fa2-wgmma", "fa3", "fa3-turns"],
              "frozen": ["fa3-turns", "fa3-frozen", "sm90"]}
    out = {f"ladder {tag}": ladder_table(names, FORWARD, chinese)
           for tag, names in forward.items()}
    out |= {f"ladder {tag}": hopper_table(names, chinese) for tag, names in hopper.items()}
    out["ladder backward"] = ladder_table(
        ["naive", "fa2", "fa2-deterministic", "fa2-mma", "sm80", "sm90"], BACKWARD, chinese)
    out["ladder fa1"] = fa1_table(chinese)
    out["ladder"] = whole(chinese)
    out["ladder commands"] = ladder_commands(chinese)
    return out


BAR_LEFT, BAR_WIDTH, BAR_PITCH, BAR_TOP = 150, 560, 30, 74
BAR_STYLE = """text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
.name { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; }
.title { font-size: 15px; font-weight: 600; }
.quiet { fill: #59636e; font-size: 12px; }
.paper { fill: #ffffff; }
.grid { stroke: #d8dee4; }
.forward { fill: #0550ae; }
.backward { fill: #bc4c00; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .quiet { fill: #9198a1; }
  .paper { fill: #0d1117; }
  .grid { stroke: #2f353d; }
  .forward { fill: #6cb6ff; }
  .backward { fill: #f0a747; }
}"""


def bar(y, height, kind, row, across):
    """One bar with its figure at the end; nothing where the rung has no such pass."""
    if row is None:
        return []
    end = across(row["median_ms"])
    return [f'<rect class="{kind}" x="{BAR_LEFT}" y="{y}" width="{end - BAR_LEFT:.1f}" '
            f'height="{height}"/>',
            f'<text class="quiet" x="{end + 6:.1f}" y="{y + height - 1}">'
            f'{milliseconds(row)} ms</text>']


def picture():
    """The whole ladder on one head, a bar a rung, on a logarithmic scale of milliseconds."""
    document = ladder_file("long")
    names = [*RUNGS, "sm80", "sm90"]
    low, high = 0.01, 100.0
    across = lambda ms: (BAR_LEFT + BAR_WIDTH * math.log(ms / low) / math.log(high / low))
    bottom = BAR_TOP + BAR_PITCH * len(names)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {bottom + 40}" width="860" '
           f'height="{bottom + 40}" role="img">',
           "<title>The ladder: milliseconds of every rung, forward and backward</title>",
           f"<style>\n{BAR_STYLE}\n</style>",
           f'<rect class="paper" width="860" height="{bottom + 40}"/>',
           '<text class="title" x="14" y="24">The ladder, one head of 4096 tokens</text>',
           f'<text class="quiet" x="14" y="44">bf16, d 64, causal; logarithmic scale, shorter is '
           f'faster; {", ".join(recorded_on(document["environment"], False).split(", ")[:3])}'
           '</text>',
           '<rect class="forward" x="640" y="14" width="12" height="12"/>'
           '<text x="658" y="25">forward</text>'
           '<rect class="backward" x="730" y="14" width="12" height="12"/>'
           '<text x="748" y="25">backward</text>']
    for ms in (0.01, 0.1, 1, 10, 100):
        x = across(ms)
        out += [f'<line class="grid" x1="{x:.1f}" y1="{BAR_TOP - 8}" x2="{x:.1f}" y2="{bottom}"/>',
                f'<text class="quiet" x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">'
                f'{ms:g} ms</text>']
    for place, name in enumerate(names):
        y = BAR_TOP + BAR_PITCH * place
        out.append(f'<text class="name" x="{BAR_LEFT - 8}" y="{y + 13}" text-anchor="end">'
                   f'{name}</text>')
        out += bar(y + 1, 12, "forward", rung(document, name, FORWARD, "bf16"), across)
        out += bar(y + 14, 11, "backward", rung(document, name, BACKWARD, "bf16"), across)
    return "\n".join([*out, "</svg>"]) + "\n"


def pictures():
    """By path, what each file holds."""
    return {"docs/learn/figures/ladder.svg": picture()}
