#!/usr/bin/env python3
"""Tables of the recorded results:  tools/bench_tables.py [--check]

Writes what stands between the result markers of README.md, README.zh-CN.md and bench/README.md from
bench/results/*.json (shares of the measured roof) and bench/results/peers/*.json (PyTorch beside
us). --check writes nothing and fails if a document does not hold what the files say.
"""

import glob
import json
import math
import os
import sys

GPU = "bench/results/gpu/h200"  # the start of the names of the GPU's files
FRONT = "zen4-2threads"  # the machine of the README's table


def load(path):
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)


def share(row):
    return "" if row is None or row["roof_share"] is None else f"{100 * row['roof_share']:.0f}%"


def find(rows, **wanted):
    return next((r for r in rows if all(r.get(k) == v for k, v in wanted.items())), None)


def machine_line(document):
    e = document["environment"]
    return (f"{e['cpu_model']}, {e['threads_used']} threads, {e['cpu_isa']}, {e['date_utc'][:10]}, "
            f"commit {e['commit'][:12]}: `{e['command'].replace('./', '')}`")


def share_table(name, document):
    """A line per dtype, pass and head dim, a column per length."""
    rows = [r for r in document["results"] if r["status"] == "ok"]
    lengths = sorted({r["seqlen_q"] for r in rows})
    lines = [f"**{name}**: {machine_line(document)}", "",
             "| | " + " | ".join(f"S {s}" for s in lengths) + " |",
             "|---|" + "---:|" * len(lengths)]
    for dtype in sorted({r["dtype"] for r in rows}, reverse=True):
        for which in ("forward", "backward"):
            for dim in sorted({r["head_dim"] for r in rows}):
                cells = []
                for s in lengths:
                    row = find(rows, dtype=dtype, head_dim=dim, seqlen_q=s, **{"pass": which})
                    cells.append("" if row is None
                                 else f"{1e3 * row['tflops']:.0f} GFLOP/s, {share(row)}")
                if any(cells):
                    lines.append(f"| {dtype} {which}, d {dim} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def peer_table(name, document):
    lines = [f"**{name}**: {document['peer']}; {machine_line(document)}", "",
             "| | ours, ms | PyTorch, ms | PyTorch / ours |", "|---|---:|---:|---:|"]
    for r in document["results"]:
        lines.append(f"| {r['dtype']} {r['pass']}, d {r['head_dim']}, S {r['seqlen_q']}, "
                     f"{r['mask']} | {r['flashlab_ms']:.2f} | {r['torch_ms']:.2f} | "
                     f"{r['torch_over_flashlab']:.2f}x |")
    return "\n".join(lines)


def everything():
    parts = []
    for path in sorted(glob.glob("bench/results/*.json")):
        parts.append(share_table(os.path.basename(path)[:-5], load(path)))
    for path in sorted(glob.glob("bench/results/peers/*.json")):
        parts.append(peer_table(os.path.basename(path)[:-5], load(path)))
    for path in sorted(glob.glob(f"{GPU}-*torch.*.json")):
        parts.append(peer_table(os.path.basename(path)[:-5], load(path)))
    return "\n\n".join(parts)


def span(values):
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low}..{high}"


def front():
    """The README's table: ranges over lengths and head dims, full and causal, beside PyTorch."""
    full, causal = (load(f"bench/results/{FRONT}{s}.json") for s in ("", "-causal"))
    peers = load(f"bench/results/peers/{FRONT}-torch.json")
    lines = ["| | GFLOP/s | share of the measured roof | causal | PyTorch's time / ours |",
             "|---|---:|---:|---:|---:|"]
    for dtype in ("fp32", "bf16"):
        for which in ("forward", "backward"):
            def pick(document):
                return [r for r in document["results"]
                        if r["dtype"] == dtype and r["pass"] == which]
            percents = lambda rows: span([round(100 * r["roof_share"]) for r in rows]) + "%"
            ratios = [r["torch_over_flashlab"] for r in pick(peers)]
            lines.append(
                f"| {dtype} {which} | {span([round(1e3 * r['tflops']) for r in pick(full)])} | "
                f"{percents(pick(full))} | {percents(pick(causal))} | "
                f"{min(ratios):.2f}..{max(ratios):.2f}x |")
    heads = full["results"][0]["heads_q"]
    lines += ["", f"Batch 1, {heads} heads, head dim 64 and 128, S 1536 to 8192; "
              f"{machine_line(full)}. {peers['peer']}, same threads, in turns, head dims 64 and "
              "128, full and causal. Every case: [bench/README.md](bench/README.md)."]
    return "\n".join(lines)


def tflops(row):
    """Of one row of a peers file: 2 B H pairs (D + Dv) forward, (3 D + 2 Dv) backward."""
    pairs = row["seqlen_q"] ** 2 / (1 if row["mask"] == "none" else 2)
    factor = 4 if row["pass"] == "forward" else 10
    flops = factor * row["batch"] * row["heads_q"] * pairs * row["head_dim"]
    return flops / row["flashlab_ms"] * 1e-9


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def gpu_front():
    """Production kernels of a GPU beside PyTorch's backends: TFLOP/s, geometric means of ratios."""
    documents = {name: load(f"{GPU}-{name}.json")
                 for name in ("papers-torch.flash", "papers-torch.cudnn", "fp32-torch.efficient",
                              "fp32-torch.math")}
    lines = ["| | TFLOP/s | FlashAttention-2 | cuDNN | memory-efficient | math |",
             "|---|---:|---:|---:|---:|---:|"]
    for dtype in ("bf16", "fp32"):
        for which in ("forward", "backward"):
            cells, rates = [], []
            for document in documents.values():
                rows = [r for r in document["results"]
                        if r["dtype"] == dtype and r["pass"] == which]
                rates += [round(tflops(r)) for r in rows]
                cells.append(
                    f"{geometric_mean([r['torch_over_flashlab'] for r in rows]):.2f}x"
                    if rows else "")
            lines.append(f"| {dtype} {which} | {span(rates)} | " + " | ".join(cells) + " |")
    e = documents["papers-torch.flash"]["environment"]
    command = documents["papers-torch.flash"]["command"].split(" --json")[0]
    lines += ["", "A rival's time over ours, geometric mean. bf16: the papers' grid (16k tokens, "
              "hidden size 2048, head dims 64 to 256, S 512 to 16k, full and causal); fp32 `ieee`: "
              "batch 8, one head, head dims 16 to 128, S 1k to 16k, causal. "
              f"{documents['papers-torch.flash']['peer'].split(' torch.')[0]}, {e['gpu']}, driver "
              f"{e['driver']}, {e['gpu_clock_mhz']:.0f} MHz, {e['date_utc'][:10]}, commit "
              f"{e['commit'][:12]}: `{command}`, and `--grid fp32`. "
              "Kernels for Hopper's own instructions are to come."]
    return "\n".join(lines)


def ladder():
    """The rungs on one shape."""
    document = load(f"{GPU}-ladder.json")
    rows, e = document["results"], document["environment"]
    lines = ["| implementation | forward, ms | backward, ms | peak memory, MiB |",
             "|---|---:|---:|---:|"]
    names = list(dict.fromkeys(r["implementation"] for r in rows))
    order = ["naive", "fa1", "fa1-vector", "fa1-shuffle", "fa1-mma", "fa2", "fa2-vector",
             "fa2-shuffle", "fa2-mma", "fa2-deterministic", "sm80"]
    for name in sorted(names, key=lambda n: order.index(n) if n in order else len(order)):
        times = []
        for which in ("forward", "backward"):
            row = find(rows, implementation=name, **{"pass": which})
            times.append(f"{row['median_ms']:.3f}" if row and row["status"] == "ok" else "")
        peak = max(r["peak_bytes"] or 0 for r in rows if r["implementation"] == name)
        lines.append(f"| {name} | {times[0]} | {times[1]} | {peak / 2**20:.1f} |")
    one = rows[0]
    lines += ["", f"{one['dtype']}, batch {one['batch']}, {one['heads_q']} heads of "
              f"{one['head_dim']}, S {one['seqlen_q']}, {one['mask']}; {e['gpu']}, "
              f"{e['date_utc'][:10]}, commit {e['commit'][:12]}: `{e['command']}`. Naive is faster "
              "than the first rungs and takes more memory."]
    return "\n".join(lines)


def with_tables(text, tables):
    """`text` with what stands between each tag's markers replaced; a tag may be absent."""
    for tag, table in tables.items():
        begin, end = f"<!-- {tag}: begin -->", f"<!-- {tag}: end -->"
        if begin in text:
            before, rest = text.split(begin, 1)
            text = f"{before}{begin}\n{table}\n{end}{rest.split(end, 1)[1]}"
    return text


def main():
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    check = "--check" in sys.argv[1:]
    stale = []
    readme = {"results": front(), "gpu": gpu_front(), "ladder": ladder()}
    for path, tables in (("README.md", readme), ("README.zh-CN.md", readme),
                         ("docs/learn/README.md", readme), ("docs/learn/README.zh-CN.md", readme),
                         ("bench/README.md", {"results": everything()})):
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
        made = with_tables(text, tables)
        if made == text:
            continue
        stale.append(path)
        if not check:
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(made)
    for path in stale:
        print(f"{path}: " + ("does not hold what bench/results says" if check else "written"))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
