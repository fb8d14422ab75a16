"""Runs the requests: every implementation on the same tensors, in turns, one result each."""

import math
import platform
import sys
import warnings

import torch

import flashlab._core
from flashlab.peers import clock as clocks
from flashlab.peers import failures, memory, contestants
from flashlab.peers.problem import OutOfMemory, Problem, Tensors, Unsupported, accounts, mib
from flashlab.peers.protocol import PROTOCOL
from flashlab.peers.truth import Truth

# These write matrices of scores. A CPU promises memory that it does not have, and then ends the
# process: whether they fit is computed instead of tried.
QUADRATIC = ("naive", "cublas", "torch.math")
LOST = "not run: an earlier call had made the device useless for this process"


class Worker:
    """One process's device and settings."""

    def __init__(self, channel, device, threads, cpu_isa):
        self.channel = channel
        self.device = torch.device(device)
        if self.device.type == "cuda":
            if not torch.cuda.is_available():
                raise RuntimeError(f"torch {torch.__version__} sees no CUDA device")
            torch.cuda.set_device(self.device)
            torch.cuda.init()
            self.clock = clocks.GpuClock(self.device)
        else:
            self.clock = clocks.WallClock(self.device)
            flashlab._core.configure_cpu(threads=threads, isa=cpu_isa)
        if threads > 0:
            torch.set_num_threads(threads)
        torch.set_warn_always(True)  # reasons are read from warnings, each time

    def describe(self):
        gpu = self.device.type == "cuda"
        return {"protocol": PROTOCOL, "python": platform.python_version(),
                "executable": sys.executable, "torch": torch.__version__,
                "flashlab": flashlab.__version__,
                "device": torch.cuda.get_device_name(self.device) if gpu else "cpu",
                "clock": self.clock.words, "threads": torch.get_num_threads(),
                "installed": {name: contestants.version_of(name)
                              for name in contestants.OPTIONAL}}

    def answer(self, request):
        """Emits the request's results; False when this process can do nothing more."""
        run = None
        try:
            run = Run(self, request)
            run.everything()
        except Unsupported as error:  # the problem as a whole
            for which in request["passes"]:
                for name in request["implementations"]:
                    self.channel.emit("result", implementation=name, status="unsupported",
                                      message=str(error), **{"pass": which})
        lost = run is not None and run.lost
        self.channel.emit("end", cancelled=self.channel.cancelled, lost=lost)
        return not lost


class Run:
    """One request."""

    def __init__(self, worker, request):
        self.channel, self.device, self.clock = worker.channel, worker.device, worker.clock
        self.request = request
        self.problem = Problem.from_request(request["problem"])
        self.names = request["implementations"]
        self.passes = request["passes"]
        self.watch = memory.Watch(self.device)
        self.tensors = None
        self.contestants = {}
        self.lost = False
        self._step = 0
        # What fp32 means is said, whatever the defaults of this version of PyTorch.
        torch.set_float32_matmul_precision("high" if self.problem.dtype == "tf32" else "highest")

    def everything(self):
        refused = self._create_tensors()
        for which in self.passes:
            if self.channel.cancelled:
                break
            rows = {name: {"implementation": name, "pass": which, "status": "ok", "message": ""}
                    for name in self.names}
            if refused:
                for row in rows.values():
                    row.update(status="oom", message=refused)
            else:
                self._run_pass(rows, which == "backward")
            for row in rows.values():
                # Interrupted: a row without a time says nothing.
                if row["status"] != "ok" or row.get("samples_ms"):
                    self.channel.emit("result", **row)
        self.contestants.clear()
        self.tensors = None
        if self.device.type == "cuda" and not self.lost:
            torch.cuda.empty_cache()

    def _stage(self, words):
        self._step += 1
        self._progress(0.0, words)

    def _progress(self, part, words):
        # Filling, then per pass: fp64, a first call of each, the timing.
        total = 1 + len(self.passes) * (len(self.names) + 2)
        self.channel.progress(self._step - 1 + part, total, words)

    def _create_tensors(self):
        """Why the problem does not fit, or ""."""
        self._stage("filling")
        backward = "backward" in self.passes
        p = self.problem
        names = ("q", "k", "v", "o") + (("dO", "dq", "dk", "dv") if backward else ())
        needed = p.bytes_of(*names) + p.lse_bytes()
        there = memory.available_bytes(self.device)
        if there is not None and needed > there:
            return f"{mib(needed)} are needed and {mib(there)} are free; {accounts(p, backward)}"
        try:
            self.tensors = Tensors(p, self.device, backward)
        except Exception as error:  # pylint: disable=broad-except
            status, message = failures.classify(error, p, backward, self.device)
            if status != "oom":
                raise
            return message
        return ""

    def _run_pass(self, rows, backward):
        word = "backward" if backward else "forward"
        self._stage(f"fp64 {word}")
        truth = self._truth(backward)
        calls = {}
        # Those that keep most memory come last, so that their failure costs the others nothing.
        for name in sorted(self.names, key=QUADRATIC.__contains__):
            if self.channel.cancelled:
                break
            row = rows[name]
            if self.lost:
                row.update(status="error", message=LOST)
                continue
            self._stage(f"first call of {name} {word}")
            contestant = self._first_calls(name, row, truth, backward)
            if contestant is not None:
                calls[contestant] = contestant.backward if backward else contestant.forward
        del truth
        ordered = {contestant: calls[contestant] for name in self.names for contestant in calls
                   if contestant.name == name}
        self._stage(f"timing {word}")
        times = clocks.interleave(
            self.clock, ordered, self.request, lambda: self.channel.cancelled or self.lost,
            lambda done, planned: self._progress(done / planned, f"timing {word}"),
            lambda contestant, error: self._failed(rows[contestant.name], error, backward))
        for contestant, samples in times.items():
            rows[contestant.name]["samples_ms"] = samples

    def _truth(self, backward):
        """None where there is no memory for it: then there are times without errors."""
        try:
            return Truth(self.problem, self.tensors, backward)
        except Exception as error:  # pylint: disable=broad-except
            if failures.classify(error, self.problem, backward, self.device)[0] != "oom":
                raise
            return None

    def _failed(self, row, error, backward, warned=()):
        status, message = failures.classify(error, self.problem, backward, self.device, warned)
        if status == "error" and failures.device_lost(self.device):
            self.lost = True
            message += "; the device is useless for the rest of this process"
        row.update(status=status, message=message)

    def _first_calls(self, name, row, truth, backward):
        """The contestant, once it has given a right answer; else None, and the row says why."""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                contestant = self._contestant(name, backward)
                with contestant.setting():
                    self._measure(contestant, row, truth, backward)
            except Exception as error:  # pylint: disable=broad-except
                self._failed(row, error, backward, warned)
                self.contestants.pop(name, None)
                return None
        return contestant if row["status"] == "ok" else None

    def _contestant(self, name, backward):
        if self.device.type == "cuda":
            # What the contestant before has left in PyTorch's allocator would be cut into pieces.
            torch.cuda.empty_cache()
        if self.device.type == "cpu":
            if self.problem.dtype == "tf32":
                raise Unsupported("a CPU has no tf32")
            need = self.problem.score_bytes() * (4 if backward else 2)
            there = memory.available_bytes(self.device)
            if name in QUADRATIC and there is not None and need > there:
                raise OutOfMemory(f"matrices of scores need {mib(need)}")
        if name not in self.contestants:
            self.contestants[name] = contestants.make(name, self.problem, self.tensors)
        return self.contestants[name]

    def _measure(self, contestant, row, truth, backward):
        p = self.problem
        inputs = p.bytes_of("q", "k", "v")
        # Once before it counts: kernels are compiled, libraries take workspaces that they keep.
        if backward:
            contestant.prepare_backward()
            contestant.backward()
            contestant.forget()
            before = self.watch.settle()
            contestant.prepare_backward()
            kept = max(0, self.watch.settle() - before)
            result, own, process_peak = self.watch.around(contestant.backward)
            outputs = contestant.gradients(result)
            if own is not None:
                row["memory_before_backward_bytes"] = inputs + kept
                row["peak_bytes"] = inputs + kept + p.bytes_of("dO") + own
        else:
            contestant.forward()
            result, own, process_peak = self.watch.around(contestant.forward)
            outputs = (contestant.output(result),)
            if own is not None:
                row["peak_bytes"] = inputs + own
        row["process_peak_bytes"] = process_peak
        row["plan"] = contestant.plan()
        if truth is None:
            return
        error = truth.error_of(outputs)
        wrong = truth.verdict(error)
        # JSON has no infinity.
        for key, value in (("error_vs_fp64", error), ("naive_error_vs_fp64", truth.naive_error)):
            row[key] = value if math.isfinite(value) else None
        row["error_sample"] = truth.sample
        if wrong:
            row.update(status="error", message=wrong)
