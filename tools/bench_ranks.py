"""Tables of several GPUs in docs/ranks.md, from records of `bench parallel` and `bench collective`.

bench/results/gpu/h200-xN-parallel-MODEL*.json (N GPUs; a model's files are rows of one table, each
beside the GPU alone of its own run), h200-x2-collectives.json, h200-x2-beside.json.
"""

import glob
import json
import os

from bench_records import GPU

PEERS = {"torch.ddp": ("PyTorch DDP", "bucket"), "torch.zero1": ("PyTorch ZeRO-1", "zero1"),
         "torch.fsdp2": ("PyTorch FSDP2", "fsdp")}
COLLECTIVES = ("all-gather", "reduce-scatter", "all-to-all", "broadcast", "all-reduce")


def load_all(pattern):
    documents = []
    for path in sorted(glob.glob(f"{GPU}-{pattern}.json")):
        with open(path, encoding="utf-8") as stream:
            documents.append((os.path.basename(path), json.load(stream)))
    return documents


def source(name, document, chinese):
    e = document["environment"]
    peer = f", {document['torch']}" if document.get("torch") else ""
    command = e["command"].split(" --json")[0]
    ranks = document.get("ranks") or document["results"][0]["ranks"]
    command = f"flashlab launch -n {ranks}" + command[command.index(" "):]
    where = f"[{'记录' if chinese else 'record'}](../bench/results/gpu/{name})"
    commit = ("提交 " if chinese else "commit ") + e["commit"][:12]
    return (f"{where}: {e['gpu']}, driver {e['driver']}{peer}, {e['date_utc'][:10]}, {commit}: "
            f"`{command}`")


def sources(documents, chinese):
    return ["", "\n\n".join(source(name, each, chinese) for name, each in documents)]


def bucket_words(row):
    size = row.get("bucket_bytes")
    if size is None:
        return f"`{row['mode']}`"
    return f"`{row['mode']}`, " + ("all" if size >= 1 << 62 else f"{size / 1e6:g} MB")


def mode_line(row, document, ours):
    if "error" in row:
        return f"| {row['mode']} | {row['error'].splitlines()[0]} | | | | |"
    if row["mode"] in PEERS:
        words, mode = PEERS[row["mode"]]
        more = f"{row['step_ms'] / ours[mode]:.2f}x" if mode in ours else ""
        return (f"| {words} | {row['step_ms']:.1f} | | {row['gradients_ms']:.1f} | | | "
                f"{row['tokens_per_s'] / 1e3:.0f} | {more} |")
    share = row["of_one_rank"]
    # What a list that gathers its values computes without them are products of zeros.
    exposed = "" if row["mode"] == "fsdp" else f"{row['exposed_ms']:.1f}"
    return (f"| {bucket_words(row)} | {row['step_ms']:.1f} | {100 * share['step']:.1f}% | "
            f"{row['gradients_ms']:.1f} | {100 * share['gradients']:.1f}% | {exposed} | "
            f"{row['tokens_per_s'] / 1e3:.0f} | |")


def modes(pattern, chinese):
    """A line a mode; PyTorch's ways say how many times their tokens/s ours makes."""
    documents = load_all(pattern)
    if not documents:
        return "尚无记录。" if chinese else "There is no record yet."
    lines = ["| | 一步,毫秒 | 相对一块 GPU | 前向与反向 | 相对一块 GPU | 露出的通信 | 千 tokens/s | 我们与它之比 |"
             if chinese else "| | step, ms | of one GPU | forward and backward | of one GPU | "
             "exposed | k tokens/s | ours over it |", "|---|" + "---:|" * 7]
    for _, document in documents:
        one = document["one_rank"]
        alone = "一块 GPU" if chinese else "one GPU"
        lines.append(f"| {alone} | {one['step_ms']:.1f} | | {one['gradients_ms']:.1f} | | | | |")
        ours = {row["mode"]: row["step_ms"] for row in document["rows"] if "step_ms" in row}
        lines += [mode_line(row, document, ours) for row in document["rows"]]
    return "\n".join(lines + sources(documents, chinese))


def collectives(chinese):
    documents = load_all("x2-collectives")
    name, document = documents[0]
    sizes = {16 << 20: "16 MiB", 256 << 20: "256 MiB", 1 << 30: "1 GiB"}
    lines = ["| | 字节 | copies | NCCL | PyTorch |" if chinese else
             "| | bytes | copies | NCCL | PyTorch |", "|---|---:|---:|---:|---:|"]
    times = {(r["implementation"], r["operation"], r["bytes"]): 1e3 * r["median_ms"]
             for r in document["results"] if r["status"] == "ok"}
    for operation in COLLECTIVES:
        cells = [" / ".join(f"{times[way, operation, size]:.0f}" for size in sizes)
                 for way in ("copies", "nccl", "torch.nccl")]
        words = operation + (("(就地)" if chinese else " in place") if operation == "all-gather"
                             else "")
        lines.append(f"| {words} | {' / '.join(sizes.values())} | " + " | ".join(cells) + " |")
    return "\n".join(lines + sources(documents, chinese))


def beside(chinese):
    documents = load_all("x2-beside")
    if not documents:
        return "尚无记录。" if chinese else "There is no record yet."
    lines = ["| | 走的路 | 乘积慢了 | 每 GiB 毫秒 | 单独,毫秒 | 在乘积旁 |" if chinese else
             "| | way | products lose | ms a GiB | alone, ms | beside products |",
             "|---|---|---:|---:|---:|---:|"]
    for row in documents[0][1]["results"]:
        if row["status"] != "ok" or row["implementation"] == "copies":
            continue
        part = {p["name"]: p["median_ms"] for p in row["parts"]}
        lost = 1 - part["product"] / part["product beside calls"]
        gib = row["bytes"] / (1 << 30)
        lines.append(f"| {row['operation']} | `{row['implementation']}` | "
                     f"{100 * (part['product beside calls'] / part['product'] - 1):.1f}% | "
                     f"{lost * part['call beside products'] / gib:.2f} | {part['call']:.2f} | "
                     f"{part['call beside products']:.2f} |")
    return "\n".join(lines + sources(documents, chinese))


def tables(chinese):
    return {"ranks collectives": collectives(chinese), "ranks beside": beside(chinese),
            "ranks large": modes("x2-parallel-large*", chinese),
            "ranks xl-2026": modes("x2-parallel-xl-2026*", chinese),
            "ranks four": modes("x4-parallel-*", chinese)}
