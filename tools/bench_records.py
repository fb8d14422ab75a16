"""Reading the records of bench/results."""

import json

GPU = "bench/results/gpu/h200"  # the start of the names of the GPU's files


def load(path):
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)


def find(rows, **wanted):
    return next((r for r in rows if all(r.get(k) == v for k, v in wanted.items())), None)


def ratios_to_cudnn():
    """{(pass, head dim, length, causal): {peer: its time over cuDNN's}} of the H100's record.

    FlashAttention-3 and 4 are not installed where our records are made. Their times follow cuDNN's
    of a run by these ratios.
    """
    rows = load("bench/results/gpu/h100-peers.json")["rows"]
    return {(r["pass"], r["head_dim"], r["seqlen"], r["causal"]):
            {peer: r[f"{peer}_ms"] / r["cudnn_ms"] for peer in ("fa3", "fa4")} for r in rows}


def cell_of(row):
    """The key of a peers file's row in ratios_to_cudnn."""
    return row["pass"], row["head_dim"], row["seqlen_q"], row["mask"] != "none"


def recorded_on(environment, chinese):
    """GPU, driver, date and commit of a record."""
    e = environment
    commit, _, changes = e["commit"].partition("+")
    commit = commit[:12] + ("+" + changes if changes else "")
    parts = [e["gpu"], f"驱动 {e['driver']}" if chinese else f"driver {e['driver']}",
             e["date_utc"][:10], f"提交 {commit}" if chinese else f"commit {commit}"]
    return (",".join(parts) if chinese else ", ".join(parts))
