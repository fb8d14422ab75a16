"""What the tests of the command line share: running it, and files for it to read.

Each tests/cli_*_test.py is called with the program and the source tree:
    tests/cli_help_test.py build/flashlab . [unittest arguments]
"""

import fcntl
import io
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import zipfile

# Small enough that a whole measurement takes milliseconds.
SMALL = ["--batch", "1", "--heads", "2", "--head-dim", "16", "--seqlen", "64",
         "--repeats", "3", "--warmup", "1"]


# The same results on a machine with a GPU: these tests are about the command line.
os.environ["CUDA_VISIBLE_DEVICES"] = ""


def run(*arguments, timeout=300, env=None, cwd=None, stdout=subprocess.PIPE):
    return subprocess.run([program(), *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True,
                          timeout=timeout, env=env, cwd=cwd, stdin=subprocess.DEVNULL)


def interrupt_once(test, child, path, text="", times=1):
    """Sends Ctrl-C as soon as the file at `path` holds `text` so often; a program that ends before
    fails the test."""
    def there():
        if not os.path.exists(path):
            return False
        with open(path, encoding="utf-8") as file:
            return file.read().count(text) >= times
    end = time.monotonic() + 300
    while not there():
        test.assertIsNone(child.poll(), "it ended before")
        test.assertLess(time.monotonic(), end, "it never came so far")
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)


def on_terminal(test, *arguments, columns=100, env=None, until=None):
    """What the program writes to a terminal of so many columns; interrupts it at a text."""
    try:
        parent, child = pty.openpty()
    except OSError as error:  # e.g. a container without /dev/pts
        test.skipTest(f"no terminal to be had here: {error}")
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen([program(), *arguments], stdout=child, stderr=child,
                               stdin=subprocess.DEVNULL,
                               env={**(env or os.environ), "TERM": "xterm"})
    os.close(child)
    text = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:
            break
        if not piece:
            break
        text += piece
        if until and until.encode() in text:
            process.send_signal(signal.SIGINT)
            until = None
    os.close(parent)
    return process.wait(timeout=300), text.decode()


def safetensors(tensors):
    """name -> (shape, little-endian floats)."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def attention_file(gradient=True):
    def tensor(heads, seed):
        shape = [1, 12, heads, 8]
        count = 12 * heads * 8
        return shape, [((i * 37 + seed) % 19 - 9) / 7.0 for i in range(count)]
    tensors = {"q": tensor(4, 1), "k": tensor(2, 2), "v": tensor(2, 3)}
    if gradient:
        tensors["do"] = tensor(4, 4)
    return safetensors(tensors)


def attention_npz(method):
    """The same shapes as attention_file, as NumPy's savez and savez_compressed write them."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, heads in (("q", 4), ("k", 2), ("v", 2)):
            text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': (1, 12, {heads}, 8), }}"
            text = text.ljust(128 - 11) + "\n"
            values = [((i * 29) % 23 - 11) / 9.0 for i in range(96 * heads)]
            archive.writestr(name + ".npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) +
                             text.encode() + struct.pack(f"<{len(values)}f", *values))
    return out.getvalue()


def with_times(results, factor):
    """Results whose every time is the median times a factor: a run without any spread."""
    for row in results["results"]:
        time_ms = row["median_ms"] * factor
        for key in row:
            if key.endswith("_ms") and row[key] is not None:
                row[key] = 0 if key == "std_ms" else time_ms
    return results


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="flashlab-cli-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, name, contents=None):
        full = os.path.join(self.folder, name)
        if contents is not None:
            with open(full, "wb") as out:
                out.write(contents)
        return full

    def verdict(self, done, word, code):
        """A comparison with a baseline ends so; a machine too busy for a verdict says that."""
        if "this run's time lies anywhere" in done.stdout:
            word, code = "ambiguous", 0
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(word, done.stdout)

    def refused(self, arguments, *parts, code=2):
        """Fails with `code`, says every part on stderr, prints no result on stdout."""
        done = run(*arguments)
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stderr}")
        self.assertTrue(done.stderr.startswith("flashlab: "), done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr, f"{arguments}")
        self.assertNotIn("terminate called", done.stderr)
        return done


def program():
    return os.path.abspath(sys.argv[1])


def source_root():
    return os.path.abspath(sys.argv[2])


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
