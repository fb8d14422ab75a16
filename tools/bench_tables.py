#!/usr/bin/env python3
"""Tables of the recorded results:  tools/bench_tables.py [--check]

Writes what stands between the result markers of README.md, README.zh-CN.md, bench/README.md,
docs/ranks.md and docs/learn from bench/results: *.json (shares of the measured roof), peers/*.json
(PyTorch beside us), gpu/*.json (GPUs beside their peers; the ladder); and the README's picture
(bench_picture.py).
--check writes nothing and fails if a document does not hold what the files say.
"""

import glob
import math
import os
import sys

import bench_ladder
import bench_picture
import bench_ranks
import bench_sequences
from bench_records import GPU, cell_of, find, load, ratios_to_cudnn

FRONT = "zen5-2threads"  # the machine of the README's table


def share(row):
    return "" if row is None or row["roof_share"] is None else f"{100 * row['roof_share']:.0f}%"


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
    percents = lambda rows: span([round(100 * r["roof_share"]) for r in rows]) + "%"
    for dtype in ("fp32", "bf16"):
        for which in ("forward", "backward"):
            def pick(document):
                return [r for r in document["results"]
                        if r["dtype"] == dtype and r["pass"] == which]
            ratios = [r["torch_over_flashlab"] for r in pick(peers)]
            lines.append(
                f"| {dtype} {which} | {span([round(1e3 * r['tflops']) for r in pick(full)])} | "
                f"{percents(pick(full))} | {percents(pick(causal))} | "
                f"{min(ratios):.2f}..{max(ratios):.2f}x |")
    narrow = [load(f"bench/results/{FRONT}-avx2{s}.json") for s in ("", "-causal")]
    for which in ("forward", "backward"):
        rows, causal_rows = ([r for r in d["results"]
                              if r["dtype"] == "fp32" and r["pass"] == which] for d in narrow)
        rates = span([round(1e3 * r["tflops"]) for r in rows])
        lines.append(f"| fp32 {which}, AVX2 alone | {rates} | {percents(rows)} | "
                     f"{percents(causal_rows)} | |")
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
    lines = ["| | TFLOP/s | FlashAttention-3 | FlashAttention-4 | cuDNN | FlashAttention-2 | "
             "memory-efficient | math |", "|---|" + "---:|" * 7]
    to_cudnn = ratios_to_cudnn()
    for label, dtype, which, dims in (("bf16 forward", "bf16", "forward", (64, 128, 256)),
                                      ("bf16 backward, head dims 64 and 128", "bf16", "backward",
                                       (64, 128)),
                                      ("bf16 backward, head dim 256", "bf16", "backward", (256,)),
                                      ("fp32 forward", "fp32", "forward", None),
                                      ("fp32 backward", "fp32", "backward", None)):
        cells, rates = {}, []
        # Ours of the newest record: others are of earlier commits.
        newest = max((d for d in documents.values()
                      if any(r["dtype"] == dtype for r in d["results"])),
                     key=lambda d: d["date_utc"])
        for name, document in documents.items():
            rows = [r for r in document["results"]
                    if r["dtype"] == dtype and r["pass"] == which
                    and (dims is None or r["head_dim"] in dims)]
            if document is newest:
                rates += [round(tflops(r)) for r in rows]
            mean = lambda values: f"{geometric_mean(values):.2f}x" if rows else ""
            cells[name] = mean([r["torch_over_flashlab"] for r in rows])
            if name == "papers-torch.cudnn":
                cells |= {peer: mean([r["torch_over_flashlab"] * to_cudnn[cell_of(r)][peer]
                                      for r in rows]) for peer in ("fa3", "fa4")}
        order = ("fa3", "fa4", "papers-torch.cudnn", "papers-torch.flash", "fp32-torch.efficient",
                 "fp32-torch.math")
        lines.append(f"| {label} | {span(rates)} | " + " | ".join(cells[n] for n in order) + " |")
    e = documents["papers-torch.cudnn"]["environment"]
    command = documents["papers-torch.cudnn"]["command"].split(" --json")[0]
    columns = {}  # commit: what was measured with it
    for name, document in documents.items():
        grid, peer = name.split("-torch.")
        columns.setdefault(document["environment"]["commit"][:12], []).append(
            f"{'bf16' if grid == 'papers' else 'fp32'} {peer}")
    commits = ", ".join(f"commit {commit}" + (f" ({', '.join(what)})" if len(columns) > 1 else "")
                        for commit, what in columns.items())
    pytorch = documents["papers-torch.cudnn"]["peer"].split(" torch.")[0]
    lines += ["", "Nx: the peer takes N times as long as FlashLab (geometric mean). "
              "bf16 is the papers' grid: 16k tokens, hidden size 2048, head dims 64 to 256, S 512 "
              "to 16k, full and causal. fp32 is `ieee`: batch 8, one head, head dims 16 to 128, S "
              "1k to 16k, causal. The kernels `sm90` compute bf16, `sm80` fp32. FlashAttention-3 "
              "and 4 were not on this machine: their times follow cuDNN's by the ratio of the "
              "three on one H100 (`bench/results/gpu/h100-peers.json`).",
              "", f"{pytorch}, {e['gpu']}, driver {e['driver']}, {e['gpu_clock_mhz']:.0f} MHz, "
              f"{e['date_utc'][:10]}, {commits}: `{command}`, and `--grid fp32`."]
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
    documents = {"bench/README.md": {"results": everything(), **bench_sequences.tables()}}
    for chinese in (False, True):
        ending = ".zh-CN.md" if chinese else ".md"
        documents[f"README{ending}"] = {"results": front(), "gpu": gpu_front()}
        documents[f"docs/ranks{ending}"] = bench_ranks.tables(chinese)
        for page in bench_ladder.PAGES:
            documents[f"docs/learn/{page}{ending}"] = bench_ladder.tables(chinese)
    made_of = {path: lambda text, tables=tables: with_tables(text, tables)
               for path, tables in documents.items()}
    made_of |= {path: lambda _, svg=svg: svg for path, svg in {**bench_picture.pictures(),
                                                     **bench_ladder.pictures()}.items()}
    for path, make in made_of.items():
        text = ""
        if os.path.exists(path):
            with open(path, encoding="utf-8") as stream:
                text = stream.read()
        made = make(text)
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
