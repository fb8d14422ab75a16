#!/usr/bin/env python3
"""MPI's own collectives on processors: its algorithms, its sums.

    build/flashlab launch -n 2 bench collective --device cpu --peers mpi   # rank 0 starts it
    python3 bench/peers/mpi_collectives.py --ranks 2 --bytes 1048576,67108864

It starts OpenMPI's mpirun for itself, with as many processes as there are ranks, each on its share
of the processors, and calls libmpi by ctypes: nothing is compiled or installed. The protocol is
that of torch_collectives.py: all enter a sample together, its time is the slowest one's. With
--requests, problems come as lines of JSON and a line of times answers each.
"""

import argparse
import ctypes
import ctypes.util
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import time

TYPES = {"fp32": ("ompi_mpi_float", ctypes.c_float), "fp64": ("ompi_mpi_double", ctypes.c_double)}
IN_PLACE = ctypes.c_void_p(1)  # OpenMPI's MPI_IN_PLACE


class Mpi:
    """The functions of libmpi that are called, by their names without MPI_."""

    def __init__(self):
        name = ctypes.util.find_library("mpi") or "libmpi.so.40"
        try:
            self.library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            self.world = self.symbol("ompi_mpi_comm_world")
        except (OSError, ValueError) as error:
            raise RuntimeError(f"no library of OpenMPI: {error}") from error
        self.Init(None, None)
        rank, size = ctypes.c_int(), ctypes.c_int()
        self.Comm_rank(self.world, ctypes.byref(rank))
        self.Comm_size(self.world, ctypes.byref(size))
        self.rank, self.size = rank.value, size.value

    def symbol(self, name):
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.library, name)))

    def __getattr__(self, name):
        function = getattr(self.library, "MPI_" + name)

        def checked(*arguments):
            code = function(*arguments)
            if code:
                raise RuntimeError(f"MPI_{name} gave {code}")
        setattr(self, name, checked)
        return checked

    def words(self):
        text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
        self.Get_library_version(text, ctypes.byref(length))
        return text.value.decode().split(",")[0]

    def share(self, value):
        """Rank 0's value, everywhere."""
        data = json.dumps(value).encode()
        length = ctypes.c_int(len(data))
        byte = self.symbol("ompi_mpi_byte")
        self.Bcast(ctypes.byref(length), 4, byte, 0, self.world)
        text = ctypes.create_string_buffer(data, max(length.value, len(data)))
        self.Bcast(text, length, byte, 0, self.world)
        return json.loads(text.raw[:length.value])

    def largest(self, values):
        """Of every element, over ranks."""
        numbers = (ctypes.c_double * len(values))(*values)
        self.Allreduce(IN_PLACE, numbers, len(values), self.symbol("ompi_mpi_double"),
                       self.symbol("ompi_mpi_op_max"), self.world)
        return list(numbers)


class Memory:
    """Pages of one value, at an address."""

    def __init__(self, kind, elements, value):
        self.kind, self.elements = kind, elements
        self.pages = mmap.mmap(-1, max(1, elements * ctypes.sizeof(kind)))
        self.view = memoryview(self.pages)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        self.fill(0, elements, value)

    def values(self, elements, value):
        return bytes(self.kind(value)) * elements

    def fill(self, first, elements, value):
        size = ctypes.sizeof(self.kind)
        self.view[first * size:(first + elements) * size] = self.values(elements, value)

    def holds(self, first, elements, value):
        size = ctypes.sizeof(self.kind)
        return self.view[first * size:(first + elements) * size] == self.values(elements, value)

    def at(self, first=0):
        return ctypes.c_void_p(self.address + first * ctypes.sizeof(self.kind))


def call_of(mpi, operation, size, dtype):
    """A function that runs it once, and one that says whether the result is right."""
    if dtype not in TYPES:
        raise ValueError(f"{dtype} is no type of MPI")
    symbol, kind = TYPES[dtype]
    one, total = mpi.symbol(symbol), mpi.symbol("ompi_mpi_op_sum")
    part = size // ctypes.sizeof(kind) // mpi.size
    count, world = size // ctypes.sizeof(kind), mpi.world
    if operation == "all-reduce":
        # In place: values that stay finite, because zeros stay zeros.
        whole = Memory(kind, count, 0)
        return (lambda: mpi.Allreduce(IN_PLACE, whole.at(), count, one, total, world),
                lambda: whole.holds(0, count, 0))
    if operation == "broadcast":
        whole = Memory(kind, count, mpi.rank + 1)
        return (lambda: mpi.Bcast(whole.at(), count, one, 0, world),
                lambda: whole.holds(0, count, 1))
    out = Memory(kind, part * mpi.size, 0)

    def everybodys():
        return all(out.holds(part * rank, part, rank + 1) for rank in range(mpi.size))
    if operation == "all-gather":
        out.fill(part * mpi.rank, part, mpi.rank + 1)
        return (lambda: mpi.Allgather(IN_PLACE, 0, one, out.at(), part, one, world), everybodys)
    given = Memory(kind, part * mpi.size, mpi.rank + 1)
    if operation == "reduce-scatter":
        return (lambda: mpi.Reduce_scatter_block(given.at(), out.at(), part, one, total, world),
                lambda: out.holds(0, part, mpi.size * (mpi.size + 1) / 2))
    if operation == "all-to-all":
        return (lambda: mpi.Alltoall(given.at(), part, one, out.at(), part, one, world), everybodys)
    raise ValueError(f"{operation} is unknown")


def measure(mpi, call, request):
    """The slowest rank's time of every sample."""
    def sample(calls):
        mpi.Barrier(mpi.world)
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begin) * 1e3 / calls
    for _ in range(max(2, request["warmup"])):
        took = sample(1)
    # Rank 0 decides for all.
    calls = min(100000, max(1, int(request["sample_ms"] / max(took, 1e-6))))
    samples = max(3, min(request["repeats"], int(request["seconds"] * 1e3 / (took * calls))))
    calls, samples = mpi.share([calls, samples])
    return mpi.largest([sample(calls) for _ in range(samples)])


def answer(mpi, request):
    call, right = call_of(mpi, request["operation"], request["bytes"], request["dtype"])
    ms = measure(mpi, call, request)
    return {"ms": ms, "right": not any(mpi.largest([0.0 if right() else 1.0]))}


def requests_of(mpi, arguments):
    """Rank 0's; empty ones end."""
    if arguments.requests:
        if mpi.rank == 0:
            print(json.dumps({"ready": mpi.words(), "backend": "mpi"}), flush=True)
        while True:
            line = sys.stdin.readline() if mpi.rank == 0 else ""
            request = mpi.share(json.loads(line) if line.strip() else None)
            if request is None:
                return
            yield request
    for operation in arguments.operation.split(","):
        for size in map(int, arguments.bytes.split(",")):
            yield {"operation": operation, "bytes": size, "dtype": arguments.dtype,
                   "warmup": arguments.warmup, "repeats": arguments.repeats,
                   "seconds": arguments.seconds, "sample_ms": 1.0}


def serve(arguments):
    mpi = Mpi()
    # As `flashlab launch` deals processors out.
    processors = sorted(os.sched_getaffinity(0))
    share = len(processors) // mpi.size
    if share and len(processors) % mpi.size == 0:
        os.sched_setaffinity(0, processors[share * mpi.rank:share * (mpi.rank + 1)])
    for request in requests_of(mpi, arguments):
        try:
            result = answer(mpi, request)
        except (RuntimeError, ValueError) as error:
            result = {"error": str(error)[:200]}  # all ranks meet the same limit
        if mpi.rank == 0 and not arguments.requests:
            median = statistics.median(result["ms"])
            result = {"implementation": "mpi", "library": mpi.words(), "ranks": mpi.size,
                      "operation": request["operation"], "dtype": request["dtype"],
                      "bytes": request["bytes"], "median_ms": median,
                      "min_ms": min(result["ms"]), "right": result["right"],
                      "algorithm_gb_per_s": request["bytes"] / median * 1e-6}
        if mpi.rank == 0:
            print(json.dumps(result), flush=True)
    mpi.Finalize()


def start(ranks, text):
    """mpirun of this program, outside of whatever run it was started in."""
    mpirun = shutil.which("mpirun")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True,
                             check=False).stdout if mpirun else ""
    if "Open MPI" not in version:
        sys.exit(f"{'another MPI than OpenMPI' if mpirun else 'no mpirun in PATH'}; install "
                 "OpenMPI (Debian: openmpi-bin)")
    # The rank that started this may be bound to its own processors.
    os.sched_setaffinity(0, range(os.cpu_count()))
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("OMPI_", "PMIX_", "PMI_", "PRTE_"))}
    environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       FLASHLAB_MPI_PEER="1")
    command = [mpirun, "-n", str(ranks), "--oversubscribe", "--bind-to", "none", sys.executable]
    command += ["-c", text] if text else [os.path.abspath(__file__)]
    os.execve(mpirun, command + sys.argv[1:], environment)


def own_text():
    """Of a program that came by -c; nothing of a file's."""
    if "__file__" in globals():
        return None
    with open("/proc/self/cmdline", "rb") as words:
        line = words.read().split(b"\0")
    return line[line.index(b"-c") + 1].decode()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--operation", default="all-reduce,all-gather,broadcast")
    parser.add_argument("--bytes", default="4096,65536,1048576,16777216,67108864")
    parser.add_argument("--dtype", default="fp32", choices=sorted(TYPES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=5, help="a row ends after this long")
    parser.add_argument("--requests", action="store_true", help="problems come by standard input")
    arguments = parser.parse_args()
    if os.environ.get("FLASHLAB_MPI_PEER") == "1":
        serve(arguments)
    else:
        start(arguments.ranks, own_text())


if __name__ == "__main__":
    main()
