"""Tables of ragged batches and caches, from records of `flashlab compare` and `flashlab bench`.

Each is made of bench/results/gpu/CARD-NAME.json, of every card that has one; a table without a
record is one sentence.
"""

import glob
import json
import math
import os

RESULTS = "bench/results/gpu"
OURS = ("sm90", "sm80", "decode", "sm80.fp32", "sm90.fp32")


def load_all(name):
    """(card, document) of every record of this name."""
    for path in sorted(glob.glob(f"{RESULTS}/*-{name}.json")):
        with open(path, encoding="utf-8") as stream:
            yield os.path.basename(path).split("-")[0], json.load(stream)


def source(document):
    e = document["environment"]
    number, _, changes = e["commit"].partition("+")
    commit = number[:12] + ("+" + changes if changes else "")
    command = e["command"].split(" --output")[0].split(" --json")[0].replace("./", "")
    read = f", read roof {e['read_gb_per_s']:.0f} GB/s" if e.get("read_gb_per_s") else ""
    cut = (f"; cut off after {len(document['results'])} of {document['planned']} calls"
           if document["interrupted"] else "")
    return (f"{e['gpu']}, driver {e['driver']}{read}, {e['date_utc'][:10]}, commit {commit}{cut}: "
            f"`{command}`")


def groups(document):
    """{(case, pass): {implementation: row}}, in the order of the record; rows that ran."""
    out = {}
    for row in document["results"]:
        if row["status"] == "ok":
            out.setdefault((row["case"], row["pass"]), {})[row["implementation"]] = row
    return out


def best(rows, names):
    found = [rows[name] for name in rows if name in names]
    return min(found, key=lambda row: row["median_ms"], default=None)


def ours_and_peer(rows):
    """The fastest of ours and of the others."""
    return best(rows, OURS), best(rows, [name for name in rows if name not in OURS])


def length(tokens):
    return f"{tokens >> 10}k" if tokens % 1024 == 0 and tokens else str(tokens)


def decode_words(row):
    keys = "1 to 16k" if row.get("lengths_k") == "any" else length(row["seqlen_k"])
    where = f"pages of {row['page_size']:.0f}" if row["page_size"] else "contiguous"
    queries = "" if row["seqlen_q"] == 1 else f", {row['seqlen_q']} queries"
    return f"{row['batch']} x {keys}, {where}{queries}"


def decode_table(document):
    lines = ["| caches | ours, us | GB/s | of the read roof | best peer | its us | over ours |",
             "|---|---:|---:|---:|---|---:|---:|"]
    for rows in groups(document).values():
        ours, peer = ours_and_peer(rows)
        if ours is None:
            continue
        cells = [decode_words(ours), f"{ours['median_ms'] * 1e3:.1f}", f"{ours['gb_per_s']:.0f}",
                 f"{ours['roof_share'] * 100:.1f}%" if ours["roof_share"] else ""]
        cells += ["", "", ""] if peer is None else [
            f"`{peer['implementation']}`", f"{peer['median_ms'] * 1e3:.1f}",
            f"{peer['median_ms'] / ours['median_ms']:.2f}x"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def pair_words(row):
    return (f"{row['heads_q']} heads of {row['head_dim']}, "
            f"{'full' if row['mask'] == 'none' else 'causal'}")


def equal_table(document):
    """A ragged call over the dense one that it equals."""
    dense, lines = {}, ["| lengths | | forward | backward |", "|---|---|---:|---:|"]
    table = groups(document)
    for rows in table.values():
        row = best(rows, OURS)
        if not row.get("lengths"):
            dense[(row["batch"], row["seqlen_q"], pair_words(row), row["pass"])] = row["median_ms"]
    cells = {}
    for rows in table.values():
        row = best(rows, OURS)
        lengths = (row.get("lengths") or "").split("+")[0]
        if not lengths:
            continue
        batch, tokens = (int(n) for n in lengths.split("x"))
        over = dense.get((batch, tokens, pair_words(row), row["pass"]))
        if over:
            key = (row["lengths"], pair_words(row))
            cells.setdefault(key, {})[row["pass"]] = f"{row['median_ms'] / over:.3f}"
    for (lengths, words), passes in cells.items():
        lines.append(f"| {lengths} | {words} | {passes.get('forward', '')} | "
                     f"{passes.get('backward', '')} |")
    return lines


def ragged_table(document):
    """By heads and mask: how much longer the best peer takes, over the mixes."""
    ratios = {}
    for (_, which), rows in groups(document).items():
        ours, peer = ours_and_peer(rows)
        if ours is not None and peer is not None:
            heads = f"{ours['heads_q']}/{ours['heads_k']} heads of {ours['head_dim']}"
            mask = "full" if ours["mask"] == "none" else "causal"
            ratios.setdefault((heads, mask, which), []).append(
                peer["median_ms"] / ours["median_ms"])
    lines = ["| | | pass | geometric mean | least |", "|---|---|---|---:|---:|"]
    for (heads, mask, which), values in ratios.items():
        mean = math.exp(math.fsum(map(math.log, values)) / len(values))
        lines.append(f"| {heads} | {mask} | {which} | {mean:.2f}x | {min(values):.2f}x |")
    return lines


TABLES = {"decode": ("decode-compare", decode_table), "equal": ("equal", equal_table),
          "ragged": ("ragged*-compare", ragged_table)}


def tables():
    """By tag, what bench/README.md holds."""
    out = {}
    for tag, (name, make) in TABLES.items():
        parts = ["\n".join([*make(document), "", f"**{card}**: {source(document)}"])
                 for card, document in load_all(name)]
        out[tag] = "\n\n".join(parts) or "No record yet."
    return out
