"""Reading the records of bench/results."""

import json

GPU = "bench/results/gpu/h200"  # the start of the names of the GPU's files


def load(path):
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)


def find(rows, **wanted):
    return next((r for r in rows if all(r.get(k) == v for k, v in wanted.items())), None)


def recorded_on(environment, chinese):
    """GPU, driver, date and commit of a record."""
    e = environment
    commit, _, changes = e["commit"].partition("+")
    commit = commit[:12] + ("+" + changes if changes else "")
    parts = [e["gpu"], f"驱动 {e['driver']}" if chinese else f"driver {e['driver']}",
             e["date_utc"][:10], f"提交 {commit}" if chinese else f"commit {commit}"]
    return (",".join(parts) if chinese else ", ".join(parts))
