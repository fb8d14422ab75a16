#!/usr/bin/env python3
"""Training steps on a GPU beside PyTorch's torch.compile, in one run:
  bench/training.py PROGRAM FOLDER NAME [--parts PART,...] [--cases CASE,...] [--python P]
                    [--seconds N] [--jobs N] [--groups N,...]

  steps    whole steps (clipping, AdamW) of the CASES: PyTorch, ours, PyTorch again; time, tokens/s
           and peak memory. PyTorch's models are compiled --jobs at a time in groups that fit
           on the device together and beside our step, small ones first: the first group beside
           the parts before. A model that does not fit beside our step is timed before it alone; a
           PyTorch that ends or lacks memory is a row without a time that says why
  parity   `flashlab check step` against records that bench/peers/train_parity.py makes here
  memory   2.7B at context 2048, batch 4, bf16, with checkpointing in groups of --groups layers:
           bytes that are predicted, and by which the device's free memory shrinks
  head     the chunked LM head with its loss, 8192 x 4096 x 151936: TFLOP/s, beside torch.compile
  idle     the gaps between kernels in the steps that CUPTI recorded, as a share of these, and what
           the time of a step that nobody records, launched behind another one, is above that of the
           kernels; small, gpt2 and large, if in CASES
  kernels  the kernels of a step of 16,384 tokens at their least bytes, as a share of --roof

Parts run in the order given; what no longer fits into --seconds is left out and said. Writes
FOLDER/NAME-step-CASE.json (as `bench step` does, PyTorch's row beside ours) and
FOLDER/NAME-training.json. PROGRAM is build/flashlab. The exit code is not 0 when a part that ran
has failed.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import processes

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = ("parity", "memory", "steps", "head", "kernels", "idle")
# width, hidden, layers, heads: the sizes of `flashlab explain step --size NAME`.
SIZES = {"small": (768, 3072, 12, 12), "medium": (1024, 4096, 24, 16),
         "large": (1280, 5120, 36, 20), "xl-2025": (1600, 6400, 48, 25),
         "gpt2": (768, 3072, 12, 12), "gpt2-xl": (1600, 6400, 48, 25)}
# GiB that PyTorch's step takes at most, on the way to its compiled form, too; and ours.
PEER_GIB = {"small": 4, "gpt2": 5, "small-tf32": 5, "small-fp32": 5, "medium": 10,
            "medium-tf32": 12, "medium-fp32": 12, "large": 20, "gpt2-batch64": 32, "xl-2025": 42,
            "gpt2-xl": 75}
OWN_GIB = {"small": 3, "gpt2": 4, "small-tf32": 4, "small-fp32": 4, "medium": 8, "medium-tf32": 9,
           "medium-fp32": 9, "large": 17, "gpt2-batch64": 22, "xl-2025": 35, "gpt2-xl": 61}
CONTEXTS_GIB = 3  # what the processes of a group hold beside their models
REPEATS = 20
LEAST_SECONDS = 8  # a part is not begun with less


@dataclasses.dataclass(frozen=True)
class Case:
    """A step: what `bench step` and torch_step.py are asked for."""
    size: str
    precision: str = "bf16"
    batch: int = 4
    context: int = 512
    vocabulary: int = 10000

    def flags(self):
        return ["--size", self.size, "--precision", self.precision, "--batch", str(self.batch),
                "--context", str(self.context), "--vocabulary", str(self.vocabulary)]

    def request(self):
        width, hidden, layers, heads = SIZES[self.size]
        return {"family": "gpt2" if self.size.startswith("gpt2") else "course",
                "vocabulary": self.vocabulary, "context": self.context, "width": width,
                "hidden": hidden, "layers": layers, "heads": heads, "theta": 10000.0,
                "epsilon": 1e-5, "batch": self.batch, "accumulate": 1,
                "precision": self.precision, "attention": "", "seed": 1, "mode": "step",
                "compile": True, "warmup": 3, "repeats": 1, "device": "cuda:0", "threads": 0}


CASES = {"small": Case("small"), "medium": Case("medium"), "large": Case("large"),
         "xl-2025": Case("xl-2025"),
         "gpt2": Case("gpt2", context=1024, vocabulary=50304),
         "gpt2-batch64": Case("gpt2", batch=64, context=1024, vocabulary=50304),
         "gpt2-xl": Case("gpt2-xl", batch=16, context=1024, vocabulary=50304),
         "small-tf32": Case("small", "tf32"), "small-fp32": Case("small", "fp32"),
         "medium-tf32": Case("medium", "tf32"), "medium-fp32": Case("medium", "fp32")}


class Peer:
    """torch_step.py with one model: compiled once, timed when asked."""

    def __init__(self, python, case):
        self.said = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [python, os.path.join(HERE, "peers", "torch_step.py")], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.said, text=True)
        self.request = case.request()
        self.words = "PyTorch"
        self.failure = None  # the answer that says why there is no step

    def ask(self, request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            answer = self.ended()
        if answer["status"] != "ok":
            self.failure = answer
        return answer

    def ended(self):
        """An answer from the exit code, or the signal, and the last line on standard error."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            code = None
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        how = "answers no more" if code is None else "has ended"
        if code is not None:
            how += f" by signal {-code}" if code < 0 else f" with exit code {code}"
        return {"status": "error", "message": f"Python {how}: {lines[-1] if lines else 'no word'}",
                "ms": [], "peak_bytes": None}

    def prepare(self):
        try:
            self.words = json.loads(self.process.stdout.readline())["ready"]
        except ValueError:
            self.failure = self.ended()
            return self.failure
        return self.ask(self.request)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.said.close()


class Run(processes.Deadline):
    """The command's arguments, the time that is left, and what was found."""

    def __init__(self, arguments):
        super().__init__(arguments.seconds)
        self.arguments = arguments
        self.found = {}
        self.failed = False
        self.memory_gib = self.device_memory()

    def device_memory(self):
        """GiB that the GPU has; a program that cannot say it is told of by the first part."""
        _, text, _ = processes.run([self.arguments.program, "info", "--device", "cuda", "--json",
                                    "-"], self.left())
        try:
            return json.loads(text)["environment"]["gpu_memory_bytes"] / 2**30
        except (ValueError, KeyError, TypeError):
            return 0

    def flashlab(self, name, arguments, limit=None):
        """The JSON of a command with --json, or None."""
        path = os.path.join(self.arguments.folder, f"{self.arguments.name}-{name}.json")
        limit = min(self.left(), limit or self.left())
        code, text, _ = processes.run([self.arguments.program, *arguments, "--json", path], limit)
        if code != 0:
            self.failed = True
            self.say(f"{name}: ended with {code}: {text.strip()[-300:]}")
            return None
        with open(path, encoding="utf-8") as file:
            got = json.load(file)
        if "environment" in got:
            self.found.setdefault("environment", got["environment"])
        return got

    def save(self, name, content):
        path = os.path.join(self.arguments.folder, f"{self.arguments.name}-{name}.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")


def parity(run):
    folder = os.path.join(run.arguments.folder, "parity")
    os.makedirs(folder, exist_ok=True)
    maker = os.path.join(HERE, "peers", "train_parity.py")
    code, text, _ = processes.run([run.arguments.python, maker, folder, "--bf16"], run.left())
    if code != 0:
        run.failed = True
        run.say(f"parity: no record: {text.strip()[-300:]}")
        return
    records = ",".join(os.path.join(folder, f"{family}.json") for family in ("course", "gpt2"))
    out = []
    for precision in ("fp32", "bf16"):
        code, text, _ = processes.run(
            [run.arguments.program, "check", "step", "--device", "cuda", "--record", records,
             "--precision", precision], run.left())
        run.failed |= code != 0
        out.append({"precision": precision, "exit_code": code, "output": text.splitlines()})
        run.say(f"parity {precision}: {'ok' if code == 0 else f'exit code {code}'}\n" +
                "\n".join("          " + line for line in text.strip().splitlines()[-8:]))
    run.found["parity"] = out


def memory(run):
    out = []
    for group in run.arguments.groups:
        if run.left() < 2 * LEAST_SECONDS:
            run.say("memory: no time for the rest")
            break
        # What the device has less than before the step was made: nothing else may run on it.
        got = run.flashlab(
            f"memory-{group}",
            ["profile", "step", "--device", "cuda", "--size", "2.7B", "--context", "2048",
             "--batch", "4", "--precision", "bf16", "--checkpoint", str(group), "--warmup", "1",
             "--steps", "1", "--quick", "--output",
             os.path.join(run.arguments.folder, f"memory-{group}")])
        if got is None:
            continue
        row = {"checkpoint": group, **{key: got[key] for key in (
            "title", "planned_bytes", "measured_bytes", "plain_step_ms")}}
        row["share"] = row["planned_bytes"] / row["measured_bytes"]
        out.append(row)
        run.say(f"memory, groups of {group}: measured {row['measured_bytes'] / 2**30:.2f} GiB, "
                f"predicted {row['share']:.4f} of it, {row['plain_step_ms']:.1f} ms a step")
    run.found["memory"] = out


def own_head(run, rows, width, vocabulary):
    """Milliseconds of the head's operations in a backward pass of one layer, or None."""
    got = run.flashlab(
        "head", ["profile", "step", "--device", "cuda", "--precision", "bf16", "--mode", "backward",
                 "--layers", "1", "--width", str(width), "--hidden", "256", "--heads", "32",
                 "--vocabulary", str(vocabulary), "--context", "2048", "--batch", "4", "--steps",
                 "3", "--quick", "--by", "operation", "--output",
                 os.path.join(run.arguments.folder, "head")])
    if got is None:
        return None
    names = ("logits", "cross-entropy", "d head", "d head weight")
    return {name: sum(row["total_ms"] for row in got["by"]["operation"]
                      if row["key"] == f"model / head / {name}") for name in names}


def torch_head(run, *shape):
    code, text, _ = processes.run([run.arguments.python,
                                   os.path.join(HERE, "peers", "torch_head.py"),
                                   *map(str, shape)], run.left())
    if code != 0:
        run.say(f"head: PyTorch ended with {code}: {text.strip().splitlines()[-1:]}")
        return None
    return json.loads(text.strip().splitlines()[-1])


def head(run):
    """Ours before and after PyTorch's: the power limit and the card's warmth move both."""
    rows, width, vocabulary = 8192, 4096, 151936
    ours, peers = [], []
    for side in (ours, peers, ours, peers, ours):
        got = (own_head if side is ours else torch_head)(run, rows, width, vocabulary)
        if got is not None:
            side.append(got)
    if not ours:
        return
    parts = {name: statistics.median(one[name] for one in ours) for name in ours[0]}
    each = [sum(one.values()) for one in ours]
    ms = statistics.median(each)
    tflops = 3 * 2 * rows * width * vocabulary / ms / 1e9
    run.found["head"] = {"rows": rows, "width": width, "vocabulary": vocabulary, "ms": ms,
                         "each_ms": each, "tflops": tflops, "parts_ms": parts,
                         "torch_compile": peers}
    run.say(f"head: {ms:.2f} ms, {tflops:.0f} TFLOP/s; " +
            ", ".join(f"{name} {part:.2f}" for name, part in parts.items()) +
            "".join(f"; torch.compile {one['tflops']:.0f}" for one in peers))


def idle(run):
    out = {}
    for name in ("small", "gpt2", "large"):
        if name not in run.arguments.cases:
            continue
        if run.left() < LEAST_SECONDS:
            run.say(f"idle {name}: no time left")
            continue
        got = run.flashlab(f"profile-{name}",
                           ["profile", "step", "--device", "cuda", *CASES[name].flags(), "--warmup",
                            "20", "--steps", "15", "--output",
                            os.path.join(run.arguments.folder, "profile-" + name)])
        if got is None or not got["device_step_ms"]:
            continue
        account = got["account"]
        share = 1 - account["covered_ms"] / got["device_step_ms"]
        gaps = account["gaps_ms"] / account["span_ms"]
        out[name] = {"device_step_ms": got["device_step_ms"], "enqueue_ms": got["enqueue_ms"],
                     "covered_ms": account["covered_ms"], "idle": share,
                     "recorded_ms": account["span_ms"], "gaps": account["gaps"],
                     "gaps_share": gaps}
        run.say(f"idle {name}: {100 * gaps:.2f} % in {account['gaps']:.0f} gaps of a recorded "
                f"step of {account['span_ms']:.3f} ms; {100 * share:.2f} % of "
                f"{got['device_step_ms']:.3f} ms, an unrecorded step behind another")
    run.found["idle"] = out


def least_bytes(case, calls):
    """Least traffic of all calls of a kernel in a step of `case` in bf16: each operand once."""
    width, hidden, layers, _ = SIZES[case.size]
    rows = 2 * case.batch * case.context  # bytes of a column
    gpt2 = case.size.startswith("gpt2")
    # A residual's gradient is read and written; the last norm's is only written.
    out = {"flash_fwd_norm": 2 * rows * width * calls,
           "flash_bwd_norm": (4 * calls - 1) * rows * width,
           "flash_fwd_rope": 4 * rows * width * calls,
           "flash_fwd_cross_entropy": 2 * rows * case.vocabulary,
           "flash_bwd_gelu_sums": 3 * rows * hidden * calls}
    if not gpt2:
        parameters = 2 * case.vocabulary * width + layers * (
            4 * width * width + 3 * width * hidden + 2 * width) + width
        out.update(flash_fwd_activation=3 * rows * hidden * calls,
                   flash_bwd_activation=5 * rows * hidden * calls,
                   flash_opt_norm_sums=4 * parameters, flash_opt_adamw=30 * parameters)
    return out


def kernels(run):
    out = {}
    for case in (Case("small", batch=32), Case("gpt2", batch=16, context=1024, vocabulary=50304)):
        got = run.flashlab(
            f"kernels-{case.size}",
            ["profile", "step", "--device", "cuda", *case.flags(), "--steps", "9", "--output",
             os.path.join(run.arguments.folder, "kernels-" + case.size)])
        if got is None:
            continue
        rows = []
        for row in got["by"]["kernel"]:
            least = least_bytes(case, row["calls"]).get(row["key"])
            share = least / row["total_ms"] / 1e6 / run.arguments.roof if least else None
            rows.append({"kernel": row["key"], "calls": row["calls"], "mean_ms": row["mean_ms"],
                         "total_ms": row["total_ms"], "least_bytes": least, "share": share})
            run.say(f"    {case.size:5} {row['key'][:48]:48} {row['calls']:4.0f} x "
                    f"{1e3 * row['mean_ms']:8.2f} us" + (f", {100 * share:.1f} %" if share else ""))
        out[case.size] = rows
    run.found["kernels"] = {"roof_gb_per_s": run.arguments.roof, **out}


def peer_row(case, ours, answers, words):
    """PyTorch's row in the form of ours, from its answers before and after."""
    ms = sorted(ms for answer in answers for ms in answer.get("ms", []))
    out = {key: value for key, value in ours.items()}
    for key in out:
        if key.endswith("_ms") or key in ("tflops", "tflops_peak", "predicted_bytes",
                                          "error_sample"):
            out[key] = None
    bad = [answer for answer in answers if answer["status"] != "ok"]
    out.update(implementation="torch.compile", plan=words, samples=len(ms),
               status=bad[0]["status"] if bad else "ok",
               message=bad[0]["message"] if bad else "", tokens_per_s=None,
               peak_bytes=max((a["peak_bytes"] or 0 for a in answers), default=None))
    if ms:
        quarter = statistics.quantiles(ms, n=4) if len(ms) > 1 else ms * 3
        out.update(median_ms=statistics.median(ms), mean_ms=statistics.fmean(ms),
                   std_ms=statistics.pstdev(ms), min_ms=ms[0], max_ms=ms[-1],
                   q1_ms=quarter[0], q3_ms=quarter[2])
        out["tokens_per_s"] = case.batch * case.context / out["median_ms"] * 1e3
    return out


def step(run, name, peer):
    """A peer that does not fit beside our step is timed before it alone."""
    case = CASES[name]
    alone = peer is not None and not fit_beside([name], run.memory_gib)
    if peer and peer.failure:
        answers = [peer.failure]
    else:
        answers = [peer.ask({"again": REPEATS}) for _ in range(1 + alone)] if peer else []
    if peer and (alone or peer.failure):
        peer.close()  # one that has failed holds memory, too
    record = run.flashlab("step-" + name,
                          ["bench", "step", "--device", "cuda", "--mode", "full", "--warmup", "10",
                           "--repeats", str(REPEATS), *case.flags()])
    if peer and not alone and not peer.failure:
        answers.append(peer.ask({"again": REPEATS}))
        peer.close()
    if record is None:
        return
    ours = record["results"][0]
    line = f"{name}: {ours['status']} {ours.get('message') or ''}"
    if ours["median_ms"]:
        line += (f"{ours['median_ms']:.3f} ms, {ours['tokens_per_s']:.0f} tokens/s, "
                 f"{ours['peak_bytes'] / 2**30:.2f} GiB")
    if peer:
        row = peer_row(case, ours, answers, peer.words)
        record["results"].append(row)
        run.save("step-" + name, record)
        line += f"; torch.compile {row['status']} {row['message']}"
        if row["median_ms"]:
            line += (f"{row['median_ms']:.3f} ms, {row['tokens_per_s']:.0f}, "
                     f"{row['peak_bytes'] / 2**30:.2f} GiB")
        if row["median_ms"] and ours["median_ms"]:
            line += f": x {row['median_ms'] / ours['median_ms']:.2f}"
    run.say(line)
    run.found.setdefault("steps", []).extend(record["results"])


def fit_beside(names, memory_gib):
    """Whether PyTorch's models hold memory together and leave enough for our step of each."""
    return sum(PEER_GIB[name] for name in names) + max(OWN_GIB[name] for name in names) \
        + CONTEXTS_GIB <= memory_gib


def groups_of(names, memory_gib):
    """The cases with peers, small ones first, in lists that fit on the device together; one that
    does not fit beside our own step is a list of its own."""
    out = []
    for name in sorted(names, key=PEER_GIB.get):
        if out and fit_beside([*out[-1], name], memory_gib):
            out[-1].append(name)
        else:
            out.append([name])
    return out


def steps(run, pool, groups, begun):
    """Group by group: no peer compiles while another one or ours is timed."""
    waiting = list(run.arguments.cases)
    for index, group in enumerate(groups):
        peers, futures = begun if index == 0 else prepared(run, pool, group)
        ready = ready_peers(run, peers, futures, len(waiting))
        for name, peer in sorted(ready.items(), key=lambda item: item[1].failure is None):
            if run.left() < LEAST_SECONDS:
                peer.close()
            else:
                step(run, name, peer)
                waiting.remove(name)
    for name in waiting:
        if run.left() < LEAST_SECONDS:
            run.say(f"{name}: no time left")
        else:
            step(run, name, None)


def prepared(run, pool, names):
    """(peers, futures) of the cases whose PyTorch is being compiled, by their names."""
    peers = {}

    def prepare(name):
        peers[name] = Peer(run.arguments.python, CASES[name])
        begin = time.monotonic()
        answer = peers[name].prepare()
        run.say(f"torch {name}: {answer['status']} {answer['message'][:200]} after "
                f"{time.monotonic() - begin:.0f} s")

    return peers, {name: pool.submit(prepare, name) for name in names}


def ready_peers(run, peers, futures, cases):
    """The peers that are compiled, or have failed, while there is time to measure the cases."""
    concurrent.futures.wait(futures.values(), max(run.left() - cases * LEAST_SECONDS, 1))
    out = {}
    for name, future in futures.items():
        future.cancel()
        if future.done() and not future.cancelled():
            future.result()
            out[name] = peers[name]
        elif name in peers:
            run.say(f"torch {name}: not ready")
            peers[name].close()
    return out


def listed(known):
    def parse(text):
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r}: there are {', '.join(known)}")
        return names
    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("name")
    parser.add_argument("--parts", type=listed(PARTS), default=list(PARTS))
    parser.add_argument("--cases", type=listed(CASES), default=list(CASES))
    parser.add_argument("--peers", type=listed(CASES), default=None, help="default: the cases")
    parser.add_argument("--groups", type=lambda text: [int(n) for n in text.split(",")],
                        default=[8, 1, 2, 4])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--roof", type=float, default=4269,
                        help="GB/s that a copy reaches (default: an H200's)")
    arguments = parser.parse_args()
    if arguments.peers is None:
        arguments.peers = arguments.cases
    os.makedirs(arguments.folder, exist_ok=True)
    processes.stop_with_this_script()
    run = Run(arguments)
    if "steps" not in arguments.parts:
        arguments.peers = []
    pool = concurrent.futures.ThreadPoolExecutor(arguments.jobs)
    groups = groups_of([name for name in arguments.peers if name in arguments.cases],
                       run.memory_gib)
    begun = prepared(run, pool, groups[0]) if groups else ({}, {})
    for name in arguments.parts:
        if run.left() < LEAST_SECONDS:
            run.say(f"{name}: no time left")
        elif name == "steps":
            steps(run, pool, groups, begun)
        else:
            {"parity": parity, "memory": memory, "head": head, "kernels": kernels,
             "idle": idle}[name](run)
        run.save("training", {"schema": "flashlab.training/1", **run.found})
    for peer in begun[0].values():
        peer.close()
    os._exit(1 if run.failed else 0)  # a compiler that was given up may still hold a thread


if __name__ == "__main__":
    main()
