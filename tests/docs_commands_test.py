#!/usr/bin/env python3
"""Every `flashlab` command that a document shows works as it is written, on a smaller problem.

    tests/docs_commands_test.py build/flashlab .

Commands of one page run in order in one folder, so that a file that one writes is there for the
next. Lengths, rows and repeats are made small; a command for a GPU runs where there is one, and
must elsewhere fail for want of the GPU and nothing else. What would take minutes at any size
(sweeps, compiling ahead) is stopped behind its flags, by an output that cannot be written.
"""

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

RECORD = re.compile(r"<!-- (.+?): begin -->.*?<!-- \1: end -->", re.S)  # other machines' commands
FENCE = re.compile(r"^```\w*[^\n]*\n(.*?)^```", re.M | re.S)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
COMMAND = re.compile(r"(?:^|&& *)(?:build/)?flashlab +([a-z].*)$")
# Whole pages are records of other machines, or the list of every flag in both languages.
LEFT_OUT = ("bench/", "docs/command-line", "docs/decisions/", "src/cuda/", "THIRD_PARTY")
PLACEHOLDER = re.compile(r"[<>|…]|\.\.\.|\bN\b|\bNAME\b|\bFILE\b|\bDIR\b")
TIMED = ("bench", "compare")
OWN_SIZES = ("--lengths", "--cache-length")
OWN_SWEEPS = ("decode", "equal", "mixed")
SMALL_LISTS = {"--seqlen": 32, "--seqlen-k": 32, "--rows": 16, "--dim": 16, "--batch": 1}


def commands_of(text):
    """The commands of a page, without comments, in order."""
    text = RECORD.sub("", text)
    for match in re.finditer(rf"{FENCE.pattern}|{SPAN.pattern}", text, re.M | re.S):
        code = match.group(1) or match.group(2)
        for line in code.replace("\\\n", " ").split("\n"):
            found = COMMAND.search(re.sub(r"\s+#.*$", "", line.strip()))
            # Behind `launch --` stands another program, `launch` or `tokenize` alone is a name, and
            # ranks that are compared need a launcher (cli_parallel_test.py).
            names = found and re.match(
                r"(?:launch|tokenize) *$|launch.* -- |(?:check|bench) parallel", found.group(1))
            if found and not names and not PLACEHOLDER.search(found.group(1)):
                yield found.group(1)


def documents(root):
    for path in sorted(glob.glob(os.path.join(root, "**", "*.md"), recursive=True)):
        name = os.path.relpath(path, root)
        if not name.startswith((*LEFT_OUT, "build", "results", ".")):
            yield name, path


def flag_value(words, flag):
    for at, word in enumerate(words):
        if word == flag and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None


def small_step(words):
    """A training step, or its profile, of the smallest model."""
    out = list(words)
    for flag, value in (("--size", "tiny"), ("--context", "32"), ("--batch", "1")):
        if flag_value(out, flag) is None:
            out += [flag, value]
        elif flag in out:
            out[out.index(flag) + 1] = value
    return out


def made_small(words):
    """The same command on a problem of a moment."""
    if words[0] == "launch" and words[3] in ("train", "check"):  # behind -n N
        return words[:3] + made_small(words[3:])
    if words[:2] == ["check", "parallel"]:
        return [*words, "--quick"]
    if words[:2] == ["explain", "step"]:
        return words  # nothing runs
    if words[:2] in (["bench", "step"], ["profile", "step"]) and "--dry-run" not in words:
        return small_step(words)
    if "collective" in words:
        return [*words, "--repeats", "2", *([] if "--bytes" in words else ["--bytes", "4KiB"])]
    if words[:2] == ["bench", "append"]:
        small = {"--batch": "1,2", "--cache-length": "64,128"}
        words = [small.get(before, word) for before, word in zip(["", *words], words)]
        return [*words, "--repeats", "2",
                *([] if "--cache-length" in words else ["--cache-length", "64"])]
    if words[0] == "monitor":
        return [*words, "--duration", "0.2", "--interval", "0.1"]
    out, at = [], 0
    while at < len(words):
        word = words[at]
        out.append(word)
        at += 1
        if word in SMALL_LISTS and at < len(words):
            unit = SMALL_LISTS[word]
            count = words[at].count(",") + 1
            out.append(",".join(str(unit * (n + 1)) for n in range(count)))
            at += 1
    timed = out[0] in TIMED and out[1:2] not in (["step"], ["accumulate"], ["precision"])
    own = (any(flag_value(out, flag) for flag in OWN_SIZES)
           or flag_value(out, "--sweep") in OWN_SWEEPS)
    wanted = {"--repeats": "2"} if timed else {}
    if timed and "weighted-sum" in out:
        wanted["--rows"] = "16"
    elif timed and not own:
        wanted["--batch"] = "1"
        if not flag_value(out, "--input"):
            wanted["--seqlen"] = "64"
    for flag, value in wanted.items():
        if flag_value(out, flag) is None:
            out += [flag, value]
    if out[0] == "check":
        out += ["--quick"] if "--quick" not in out and not own else []
        out += ["--dtype", "bf16"] if flag_value(out, "--dtype") is None else []
    precisions = out[:2] == ["bench", "precision"]
    if (out[0] == "train" or precisions) and flag_value(out, "--steps") is None:
        out += ["--steps", "2"]
    if out[0] == "train" and flag_value(out, "--evaluate-every") is None:
        out += ["--evaluate-every", "0"]
    if precisions:
        out += ["--context", "32", "--layers", "1", "--batch", "1",
                "--text", os.path.join(ROOT, "README.md")]
    return out


def said(words):
    """A command by what it does: without a GPU `--device cpu` says nothing."""
    text = " ".join(words)
    return text if GPU else text.replace(" --device cpu", "")


class Documents(unittest.TestCase):
    longMessage = True

    def run_in(self, folder, words, timeout=1500):
        # Nobody's own cache is cleared.
        environment = {**os.environ, "FLASHLAB_CACHE": os.path.join(folder, "cache")}
        return subprocess.run([PROGRAM, *words], cwd=folder, env=environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=timeout)

    def check(self, folder, command, words):
        long = "--sweep" in words or words[0] == "precompile"
        if long:
            flag = "--output" if words[0] == "precompile" else "--json"
            value = flag_value(words, flag)
            words = [w for w in words if w not in (flag, value)] + [flag, "/dev/null/no"]
        done = self.run_in(folder, words)
        text = done.stdout + done.stderr
        wants_gpu = "cuda" in (flag_value(words, "--device") or "")
        if long and (GPU or not wants_gpu):
            self.assertIn("/dev/null/no", text, command)
            return
        if wants_gpu and not GPU:
            self.assertEqual(done.returncode, 2, f"{command}\n{text}")
            self.assertIn("--device cpu", text, f"{command}: fails for another reason")
            return
        if "torch" in (flag_value(words, "--peers") or "") and done.returncode != 0:
            self.assertRegex(text, "PyTorch|torch", f"{command}: fails for another reason")
            return
        # A verdict about speed is a result of the machine, not of the command.
        fine = (0, 3) if "--baseline" in words else (0,)
        self.assertIn(done.returncode, fine, f"{command}\nas {' '.join(words)}\n{text}")

    def test_commands_work_as_written(self):
        seen, count = set(), 0
        for name, path in documents(ROOT):
            with open(path, encoding="utf-8") as stream:
                commands = [(command, made_small(shlex.split(command)))
                            for command in commands_of(stream.read())]
            # A Chinese page shows what the English one does.
            if all(said(words) in seen for _, words in commands):
                continue
            with tempfile.TemporaryDirectory(prefix="flashlab-docs-") as folder:
                # A reader's own text.
                shutil.copy(os.path.join(ROOT, "README.md"), os.path.join(folder, "mine.txt"))
                for command, words in commands:
                    files = "--baseline" in words or "--json" in words  # made anew
                    if said(words) in seen and not files:
                        continue
                    seen.add(said(words))
                    count += 1
                    with self.subTest(document=name, command=command):
                        self.check(folder, command, words)
        self.assertGreater(count, 25, "the documents' commands are not found any more")


if __name__ == "__main__":
    PROGRAM, ROOT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    GPU = os.path.exists("/dev/nvidia0")
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
