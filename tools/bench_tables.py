#!/usr/bin/env python3
"""Tables of the recorded results:  tools/bench_tables.py [--check]

Writes what stands between the result markers of README.md, README.zh-CN.md and bench/README.md from
bench/results/*.json (shares of the measured roof) and bench/results/peers/*.json (PyTorch beside
us). --check writes nothing and fails if a document does not hold what the files say.
"""

import glob
import json
import os
import sys

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
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


def with_tables(text, tables):
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def main():
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    check = "--check" in sys.argv[1:]
    stale = []
    for path, tables in (("README.md", front()), ("README.zh-CN.md", front()),
                         ("bench/README.md", everything())):
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
