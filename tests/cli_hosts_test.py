#!/usr/bin/env python3
"""Several hosts, played on one machine: processes that torchrun's variables put on hosts of their
own, each with a host name of its own where the system lets them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from cli_harness import main, program

FAKE = os.environ.get("FLASHLAB_FAKE_GPU", "")
OWN_NAME = shutil.which("unshare") is not None and shutil.which("hostname") is not None and \
    subprocess.run(["unshare", "--uts", "hostname", "other"], capture_output=True,
                   check=False).returncode == 0


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return min(found.getsockname()[1], 65000)


def start(hosts, *words, port=None, only=None, **more):
    """A process a rank, or of those in `only`: `hosts` says how many ranks each has."""
    port, started, size = port or free_port(), [], sum(hosts)
    for host, ranks in enumerate(hosts):
        for local in range(ranks):
            rank = sum(hosts[:host]) + local
            if only is not None and rank not in only:
                continue
            variables = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local,
                         "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": port, "FAKE_FIRST": 8 * host, **more}
            env = {**os.environ, **{name: str(value) for name, value in variables.items()}}
            command = [program(), *words]
            if OWN_NAME:
                command = ["unshare", "--uts", "sh", "-c", f'hostname host{host}; exec "$@"', "sh",
                           *command]
            started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE, text=True,
                                            stdin=subprocess.DEVNULL))
    return started


def end_of(started, seconds=120):
    """Of every rank: exit code, output, errors."""
    ends = []
    for process in started:
        out, error = process.communicate(timeout=seconds)
        ends.append((process.returncode, out, error))
    return ends


class Hosts(unittest.TestCase):
    def name(self, host):
        return f"host{host}" if OWN_NAME else socket.gethostname()

    def test_every_collective(self):
        for hosts in ([1, 1], [2, 1, 2]):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "rows.json")
                ends = end_of(start(hosts, "bench", "collective", "--device", "cpu", "--bytes",
                                    "4KiB,1000000", "--dtype", "fp32,bf16", "--repeats", "2",
                                    "--warmup", "1", "--timeout", "60", "--json", path))
                self.assertEqual([end[0] for end in ends], [0] * sum(hosts), ends)
                with open(path, encoding="utf-8") as file:
                    rows = json.load(file)["results"]
            self.assertEqual([row["status"] for row in rows], ["ok"] * 20, rows)
            self.assertEqual({row["implementation"] for row in rows}, {"sockets"})

    def test_training_has_one_ranks_bits(self):
        ends = end_of(start([1, 1], "check", "parallel", "--quick", "--device", "cpu", "--threads",
                            "1", "--timeout", "100"), 300)
        self.assertEqual([end[0] for end in ends], [0, 0], ends)
        self.assertRegex(ends[0][1], r"(\d+) of \1 give the bits of one rank")

    def test_a_killed_rank_is_named_on_the_other_host(self):
        for killed in (0, 1):
            with tempfile.TemporaryDirectory() as folder:
                ranks = start([1, 1], "train", "--parallel", "bucket", "--steps", "1000000",
                              "--device", "cpu", "--output", os.path.join(folder, "run"))
                log = os.path.join(folder, "run", "log.jsonl")
                end = time.monotonic() + 60
                while not (os.path.exists(log) and os.path.getsize(log) > 0):
                    self.assertLess(time.monotonic(), end, "no step")
                    time.sleep(0.05)
                ranks[killed].send_signal(signal.SIGKILL)
                begin = time.monotonic()
                ends = end_of(ranks)
                self.assertLess(time.monotonic() - begin, 5)
            self.assertEqual(ends[1 - killed][0], 1, ends)
            self.assertRegex(ends[1 - killed][2],
                             rf"rank {killed} \(process {ranks[killed].pid} on "
                             rf"{self.name(killed)}\) has ended")

    def test_who_does_not_come_or_does_not_belong_is_named(self):
        words = ("bench", "collective", "--device", "cpu", "--bytes", "4KiB", "--timeout")
        ends = end_of(start([1, 1, 1], *words, "3", only=(0, 1)))
        self.assertEqual([end[0] for end in ends], [1, 1], ends)
        self.assertIn("rank 2 did not come within 3 s", ends[0][2])
        port = free_port()
        two, three = start([1, 1], *words, "60", port=port, only=(0,)), \
            start([1, 1, 1], *words, "60", port=port, only=(1,))
        ends = end_of(two + three)
        self.assertEqual([end[0] for end in ends], [2, 2], ends)
        self.assertIn("rank 1 of 3", ends[0][2])

    def test_a_port_in_use_is_no_reason(self):
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            held.listen()
            port = held.getsockname()[1] - 1  # the first that rank 0 would take
            ends = end_of(start([1, 1], "bench", "collective", "--device", "cpu", "--bytes", "4KiB",
                                "--repeats", "2", "--timeout", "60", port=port))
        self.assertEqual([end[0] for end in ends], [0, 0], ends)

    @unittest.skipUnless(FAKE, "skipped: no stand-in for a GPU")
    def test_gpus_of_several_hosts_have_nccl_alone(self):
        """Stand-ins for the driver and NCCL: ranks meet by sockets. That NCCL moves nothing, which
        is what the row of a call that ran says."""
        library = os.path.join(FAKE, "libcuda.so.1")
        for nccl, said in (("/nowhere/libnccl.so.2", "/nowhere/libnccl.so.2"),
                           (library, "element 0 of rank 0 is wrong")):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "rows.json")
                ends = end_of(start([1, 1], "bench", "collective", "--device", "cuda", "--enqueue",
                                    "eager", "--operation", "all-reduce", "--bytes", "4KiB",
                                    "--repeats", "2", "--timeout", "60", "--json", path,
                                    LD_LIBRARY_PATH=FAKE, FLASHLAB_NVRTC=library,
                                    FLASHLAB_CACHE="/proc/nowhere", FLASHLAB_NCCL=nccl))
                self.assertIn(ends[0][0], (0, 1, 4), ends)
                with open(path, encoding="utf-8") as file:
                    rows = {row["implementation"]: row for row in json.load(file)["results"]}
            self.assertIn("ranks of several hosts", rows["copies.eager"]["message"])
            self.assertIn(said, rows["nccl.eager"]["message"])


if __name__ == "__main__":
    main()
