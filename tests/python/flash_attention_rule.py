#!/usr/bin/env python3
"""Runs FlashAttention's own test matrices on flashlab.torch, a seeded sample at a time.

  tests/python/flash_attention_rule.py --file fa2,fa3,fa4 --sample 500 --time-limit 60 --jobs 8
  tests/python/flash_attention_rule.py --case fa2:causal:dtype=bf16,local=0,d=64,swap=1,...

The cases of a file are shuffled by --seed; a visit runs the next ones and records in
JSON-FILE.json what was run, passed, failed and refused so far, and the next visit goes on from
there. Recorded failures are run again first, then what the last visit had no time for. What
flashlab.torch cannot do yet (qv, 8 bits, ...) is counted, and a sample of it must raise. Every case
runs in a process of its own kind, so that one that dies takes nothing with it; cases of the same
kernels go to one process, one behind the other, so that each kernel is compiled once. Exit code 1
when a case failed.
"""

import argparse
import collections
import datetime
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import subprocess
import sys
import time
import traceback

import flash_attention_cases as cases

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
SCHEMA = "flashlab.flash_attention_rule/1"
DEADLY = ("CUDA error", "the process died")  # results after which a process is of no use

# Cases run beside each other on one GPU: a process keeps this much of what it is done with, and
# one that finds no memory tries again when others may have given some back.
KEPT_BYTES = 2 << 30
NO_MEMORY = "OutOfMemoryError"
WAITS_S = (1, 4, 15)

Task = collections.namedtuple("Task", "file name reason again")


# ---------------------------------------------------------------------------------------------
# One case
# ---------------------------------------------------------------------------------------------

def run_one(name, reason, device, repeats):
    """{"ok": bool, "what": text, "shares": {tensor: error / allowed}} of a case or a refusal."""
    import torch
    for wait in (*WAITS_S, None):
        result = try_one(name, reason, device, repeats)
        if device != "cuda":
            return result
        no_memory = result["what"].startswith(NO_MEMORY)
        if no_memory or torch.cuda.memory_reserved() > KEPT_BYTES:
            torch.cuda.empty_cache()
        if not no_memory or wait is None:
            return result
        time.sleep(wait)


def try_one(name, reason, device, repeats):
    import flash_attention_math as maths
    sweep, case = cases.find(name)
    try:
        if reason:
            return {"ok": True, "what": maths.run_refused(reason, case, device), "shares": {}}
        shares, note = maths.run(sweep, case, device, repeats)
        return {"ok": True, "what": note, "shares": shares}
    except maths.Failed as failure:
        return {"ok": False, "what": str(failure), "shares": {}}
    except Exception as error:  # whatever a call raises is this case's result
        where = traceback.extract_tb(error.__traceback__)[-1]
        kind = "CUDA error" if "CUDA error" in str(error) else type(error).__name__
        what = f"{kind} at {os.path.basename(where.filename)}:{where.lineno}: "
        return {"ok": False, "what": what + str(error).split("\n", 1)[0][:300], "shares": {}}


def work(pipe, device, repeats, threads, gpu):
    """A worker: answers each (name, reason) until None comes."""
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    import torch
    if threads:
        torch.set_num_threads(threads)
    pipe.send(None)  # ready
    for name, reason in iter(pipe.recv, None):
        result = run_one(name, reason, device, repeats)
        pipe.send(result)
        if result["what"].startswith(DEADLY):
            return  # nothing works in this process after it; the parent starts another


def died(what):
    return {"ok": False, "what": what, "shares": {}}


class Workers:
    """Processes that run cases; one that dies, or takes longer than case_limit, fails its case.

    A process runs a list of tasks. What is not handed out when the time is over, and what has no
    result `grace` seconds later, is kept in `left`."""

    def __init__(self, arguments):
        self.arguments = arguments
        # A server that has imported everything forks workers: dozens of them start in a second.
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["flash_attention_math"])
        # The server finds it by the environment alone: before Python 3.13 it has no other path.
        here = os.path.dirname(os.path.abspath(__file__))
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, known)])
        self.gpus = gpus_of(arguments)
        self.started = 0
        self.busy = {}    # pipe -> (process, task or None while it starts, since)
        self.queues = {}  # pipe -> tasks that follow
        self.left = []
        for _ in range(arguments.jobs):
            self.start([])

    def start(self, queue):
        ours, theirs = self.context.Pipe()
        threads = max(1, (os.cpu_count() or 1) // self.arguments.jobs)
        gpu = self.gpus[self.started % len(self.gpus)] if self.gpus else ""
        self.started += 1
        process = self.context.Process(
            target=work, daemon=True,
            args=(theirs, self.arguments.device, self.arguments.repeats, threads, gpu))
        process.start()
        theirs.close()
        self.busy[ours], self.queues[ours] = (process, None, time.monotonic()), queue

    def run(self, lists, deadline):
        """Yields (task, result, seconds) until the tasks or the time run out."""
        lists = iter(lists)
        while self.busy and time.monotonic() < deadline + self.arguments.grace:
            for pipe in multiprocessing.connection.wait(list(self.busy), timeout=1):
                process, task, since = self.busy.pop(pipe)
                queue = self.queues.pop(pipe)
                try:
                    result = pipe.recv()
                except EOFError:
                    process.join(timeout=5)
                    result = died(f"the process died, exit code {process.exitcode}")
                    if task is None:
                        raise SystemExit("a worker did not start: see its message above") from None
                if task is not None:
                    yield task, result, time.monotonic() - since
                if result is not None and result["what"].startswith(DEADLY):
                    self.start(queue)
                    continue
                in_time = time.monotonic() < deadline
                queue = queue or (next(lists, []) if in_time else [])
                if not queue or not in_time:
                    self.left += queue
                    pipe.send(None)
                    continue
                pipe.send((queue[0].name, queue[0].reason))
                self.busy[pipe] = (process, queue[0], time.monotonic())
                self.queues[pipe] = queue[1:]
            yield from self.overdue()
        for pipe, (process, task, _) in self.busy.items():
            process.kill()
            self.left += [task] if task is not None else []
            self.left += self.queues[pipe]
        self.left += itertools.chain.from_iterable(lists)

    def overdue(self):
        for pipe, (process, task, since) in list(self.busy.items()):
            if task is not None and time.monotonic() - since > self.arguments.case_limit:
                process.kill()
                del self.busy[pipe]
                self.start(self.queues.pop(pipe))
                limit = self.arguments.case_limit
                yield task, died(f"no result within {limit:g} s"), limit


def gpus_of(arguments):
    """The numbers of the GPUs that processes share; none: they see what this process sees."""
    if arguments.device != "cuda":
        return []
    import torch
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return seen.split(",") if seen else [str(n) for n in range(torch.cuda.device_count())]


class Here:
    """The same in this process."""

    def __init__(self, arguments):
        self.arguments, self.left = arguments, []

    def run(self, lists, deadline):
        tasks = itertools.chain.from_iterable(lists)
        for task in tasks:
            begin = time.monotonic()
            if begin >= deadline:
                self.left = [task, *tasks]
                return
            result = run_one(task.name, task.reason, self.arguments.device, self.arguments.repeats)
            yield task, result, time.monotonic() - begin


# ---------------------------------------------------------------------------------------------
# What a file's visits have covered
# ---------------------------------------------------------------------------------------------

def operations(sweep, case):
    """Multiply-adds of a forward pass without a mask, about; 0 for what has no size."""
    batch, seqlen_q, seqlen_k, heads, _, dim, dim_v = sweep.shape(case)
    return batch * heads * seqlen_q * seqlen_k * (dim + dim_v)


class Coverage:
    """The record of one file: read, added to, written."""

    def __init__(self, file, arguments):
        self.file, self.path = file, f"{arguments.json}-{file}.json"
        self.device = arguments.device
        self.cases, counts, self.refused, self.matrix = cases.sorted_out(file, self.device)
        if arguments.max_work:
            self.cases = [(s, c) for s, c in self.cases if operations(s, c) <= arguments.max_work]
        self.order = list(range(len(self.cases)))
        random.Random(arguments.seed).shuffle(self.order)
        self.record = {
            "schema": SCHEMA, "file": file, "source": cases.FILES[file][0],
            "seed": arguments.seed, "multiply_adds_at_most": arguments.max_work or None,
            "matrix": self.matrix, "supported": len(self.cases),
            "not_supported_yet": dict(counts), "run": 0, "passed": 0, "refusals_checked": {},
            "passed_by_rounding_only": [], "largest_share_of_allowed": {}, "tests": {},
            "failures": [], "visits": []}
        if os.path.exists(self.path) and not arguments.restart:
            with open(self.path, encoding="utf-8") as stream:
                old = json.load(stream)
            if (old["seed"], old["matrix"], old["supported"]) == (
                    arguments.seed, self.matrix, len(self.cases)):
                self.record = old
            elif old["seed"] != arguments.seed:
                raise SystemExit(f"{self.path} was recorded with --seed {old['seed']}; give that, "
                                 "or --restart to begin again")
        for sweep in cases.FILES[file][1]:
            if sweep.kind != "refused":
                count = sum(1 for s, _ in self.cases if s is sweep)
                self.record["tests"].setdefault(
                    sweep.name, {"supported": count, "run": 0, "passed": 0})
        # The cases drawn so far: those that were run and those that were left.
        self.next = self.record["run"] + len(self.record.setdefault("left", []))
        self.seconds, self.slowest = 0, (0, "")
        self.count = collections.Counter()

    def tasks(self, sample, probes):
        """Lists of tasks that share kernels: earlier failures and a sample of what must be refused,
        then what was left and the next cases."""
        for failure in list(self.record["failures"]):
            reason = cases.lacks(*cases.find(failure["case"]), self.device)
            yield [Task(self.file, failure["case"], reason, True)]
        for task in self.probes(probes):
            yield [task]
        names = list(self.record["left"])
        for index in self.order[self.next:self.next + sample]:
            sweep, case = self.cases[index]
            names.append(sweep.case_name(case))
        self.record["left"] = []
        together = {}
        for name in names:
            together.setdefault(cases.kernels_of(*cases.find(name)), []).append(
                Task(self.file, name, "", False))
        # Those first of which most cases need the same kernels.
        yield from sorted(together.values(), key=len, reverse=True)

    def leave(self, task):
        """The next visit begins with it; what was to be run again or refused comes by itself."""
        if not task.again and not task.reason:
            self.record["left"].append(task.name)

    def probes(self, count):
        """A sample of what must be refused, every reason among it."""
        chosen = random.Random(f"{self.record['seed']} {len(self.record['visits'])}")
        for reason, all_of_it in self.refused.items():
            share = max(1, count // len(self.refused))
            for sweep, case in chosen.sample(all_of_it, min(share, len(all_of_it))):
                yield Task(self.file, sweep.case_name(case), reason, False)

    def add(self, task, result, seconds):
        record, name = self.record, task.name
        self.seconds += seconds
        self.slowest = max(self.slowest, (seconds, name))
        if task.reason:
            counts = record["refusals_checked"].setdefault(task.reason, {})
            how = result["what"] if result["ok"] else "NOT REFUSED"
            counts[how] = counts.get(how, 0) + 1
            self.count["refused" if result["ok"] else "failed"] += 1
        else:
            test = record["tests"][name.split(":")[1]]
            for counts in (record, test):
                counts["run"] += 0 if task.again else 1
                counts["passed"] += 1 if result["ok"] else 0
            self.count["passed" if result["ok"] else "failed"] += 1
            for tensor, share in result["shares"].items():
                largest = record["largest_share_of_allowed"]
                largest[tensor] = round(max(share, largest.get(tensor, 0)), 3)
            if result["ok"] and result["what"]:
                record["passed_by_rounding_only"].append(f"{name}: {result['what']}")
        record["failures"] = [f for f in record["failures"] if f["case"] != name]
        if not result["ok"]:
            record["failures"].append({
                "case": name, "what": result["what"], "repeat":
                f"tests/python/flash_attention_rule.py --device {self.device} --case {name}"})

    def write(self, visit):
        self.record["visits"].append(visit | dict(self.count) | {
            "seconds_of_processes": round(self.seconds), "slowest": self.slowest[1],
            "slowest_seconds": round(self.slowest[0], 1)})
        os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
        with open(self.path, "w", encoding="utf-8") as stream:
            json.dump(self.record, stream, indent=1)
            stream.write("\n")

    def summary(self):
        r = self.record
        return (f"{self.file}: {self.count['passed']} passed, {self.count['failed']} failed, "
                f"{self.count['refused']} refusals checked in this visit; so far {r['passed']} of "
                f"{r['run']} run passed, {len(r['left'])} of the sample left, {r['supported']} "
                f"supported of {r['matrix']}; {self.seconds:.0f} s of processes, the slowest "
                f"{self.slowest[0]:.1f} s {self.slowest[1]}")


# ---------------------------------------------------------------------------------------------
# A visit
# ---------------------------------------------------------------------------------------------

def environment(arguments):
    import torch

    import flashlab
    found = {"date_utc": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
             "torch": torch.__version__, "commit": flashlab.info()["environment"]["commit"],
             "device": arguments.device, "repeats": arguments.repeats}
    if arguments.device == "cuda":
        run = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,"
                              "noheader"], capture_output=True, text=True, check=False)
        found["device"] = run.stdout.strip().split("\n", 1)[0]
    return found


def round_robin(*lists):
    missing = object()
    for row in itertools.zip_longest(*lists, fillvalue=missing):
        yield from (tasks for tasks in row if tasks is not missing)


def visit(arguments):
    files = list(cases.FILES) if arguments.file == "all" else arguments.file.split(",")
    unknown = [file for file in files if file not in cases.FILES]
    if unknown:
        raise SystemExit(f"--file {unknown[0]}: one of all, {', '.join(cases.FILES)}")
    seen = environment(arguments)  # before the work: what is missing is missed at once
    begin = time.monotonic()
    deadline = begin + arguments.time_limit
    runner = Workers(arguments) if arguments.jobs else Here(arguments)  # they start meanwhile
    coverage = {file: Coverage(file, arguments) for file in files}
    tasks = round_robin(*(c.tasks(arguments.sample, arguments.refusals)
                          for c in coverage.values()))
    failed = 0
    for task, result, seconds in runner.run(tasks, deadline):
        coverage[task.file].add(task, result, seconds)
        what = f"{task.name}{f' ({task.reason})' if task.reason else ''}"
        if not result["ok"]:
            failed += 1
            print(f"FAIL {what}: {result['what']}", flush=True)
        elif arguments.verbose:
            print(f"ok   {what} {seconds:.1f} s {result['what'] or result['shares']}", flush=True)
    seen["seconds"] = round(time.monotonic() - begin, 1)
    for task in runner.left:
        coverage[task.file].leave(task)
    for file in files:
        coverage[file].write(seen)
        print(coverage[file].summary())
    return 1 if failed else 0


def one_case(arguments):
    sweep, case = cases.find(arguments.case)
    result = run_one(arguments.case, cases.lacks(sweep, case, arguments.device),
                     arguments.device, arguments.repeats)
    print(f"{'ok  ' if result['ok'] else 'FAIL'} {arguments.case}\n     "
          f"{result['what']} { {k: round(v, 3) for k, v in result['shares'].items()} }")
    return 0 if result["ok"] else 1


def main():
    try:
        import torch

        import flashlab  # noqa: F401
    except ImportError as error:
        raise SystemExit(f"flash_attention_rule.py: {error}; it needs PyTorch and `pip install .`"
                         ) from None
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--file", default="all", help="all, or some of fa2,fa3,fa4")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the cases")
    parser.add_argument("--sample", type=int, default=500, help="cases per file at most")
    parser.add_argument("--refusals", type=int, default=60, help="refusals checked per file")
    parser.add_argument("--time-limit", type=float, default=60, help="seconds")
    parser.add_argument("--case-limit", type=float, default=120, help="seconds for one case")
    parser.add_argument("--grace", type=float, default=120,
                        help="seconds that cases under way have when the time is over")
    parser.add_argument("--repeats", type=int, default=20,
                        help="calls of the tests that repeat one, at most what the original does")
    parser.add_argument("--jobs", type=int, default=8 if gpu else 0,
                        help="processes, on all GPUs in turn; 0: all in this one")
    parser.add_argument("--device", default="cuda" if gpu else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--max-work", type=float, default=0,
                        help="leave out cases of more multiply-adds (for a CPU, 1e8)")
    parser.add_argument("--json", default=os.path.join(
        ROOT, "bench", "results", "python", "flash_attention_rule"), help="start of the records' "
        "names")
    parser.add_argument("--restart", action="store_true", help="forget what was covered")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--case", default="", help="run this one and say what came of it")
    arguments = parser.parse_args()
    try:
        return one_case(arguments) if arguments.case else visit(arguments)
    except ValueError as error:
        raise SystemExit(f"flash_attention_rule.py: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
