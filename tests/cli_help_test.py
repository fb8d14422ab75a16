#!/usr/bin/env python3
"""Help, documents and completion come from the one table, and are true."""

import os
import re
import shutil
import subprocess

import cli_harness
from cli_harness import Folder, run, source_root


class Help(Folder):
    COMMANDS = ["info", "check", "bench", "bench weighted-sum", "compare", "explain", "precompile",
                "cache", "train", "generate", "evaluate", "export", "explain step",
                "explain precision", "bench accumulate", "bench step",
                "bench precision", "check step", "completion"]

    def test_every_command_has_examples(self):
        for command in self.COMMANDS:
            done = run(*command.split(), "--help")
            self.assertEqual(done.returncode, 0, command)
            self.assertIn("Examples", done.stdout)
            self.assertIn("flashlab " + command, done.stdout)
            self.assertEqual(done.stdout, run("help", *command.split()).stdout)
            for line in done.stdout.splitlines():
                self.assertLessEqual(len(line), 110, line)
        overview = run("--help")
        self.assertEqual(overview.returncode, 0)
        for command in self.COMMANDS:
            self.assertIn(command, overview.stdout)
        for part in ("130", "regression" if "regression" in overview.stdout else "baseline"):
            self.assertIn(part, overview.stdout)

    def test_examples_are_accepted(self):
        """Each example's flags are known: its numbers are replaced by an input that is refused."""
        for command in self.COMMANDS:
            text = run(*command.split(), "--help").stdout
            examples = text.split("Examples\n")[1].split("\n\n")[0]
            commands = re.findall(r"^  (flashlab [^#\n]*?)(?:  |$)", examples, re.MULTILINE)
            self.assertTrue(commands, command)
            for example in commands:
                if command == "completion":
                    continue
                words = example.split(">")[0].split()[1:]
                probe = run(*words, "--definitely-no-flag")
                self.assertIn("knows no flag --definitely-no-flag", probe.stderr, example)

    def test_version(self):
        done = run("--version")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"^flashlab \d+\.\d+\.\d+ \(\S+\)\n$")

    def test_document_is_the_table(self):
        with open(os.path.join(source_root(), "docs", "command-line.md"), encoding="utf-8") as file:
            self.assertEqual(file.read(), run("--help-markdown").stdout,
                             "write it again: flashlab --help-markdown > docs/command-line.md")

    def test_completion_parses(self):
        script = run("completion", "bash")
        self.assertEqual(script.returncode, 0)
        path = self.path("completion.bash", script.stdout.encode())
        self.assertEqual(subprocess.run(["bash", "-n", path], check=False).returncode, 0)
        for shell in ("zsh", "fish"):
            script = run("completion", shell)
            self.assertEqual(script.returncode, 0)
            path = self.path("completion." + shell, script.stdout.encode())
            if shutil.which(shell):
                self.assertEqual(subprocess.run([shell, "-n", path], check=False).returncode, 0)
            if shell == "zsh":  # a second word makes another command of the first
                cases = re.search(r'case "\$words\[2\] \$words\[3\]" in\n +(.*)\) command=',
                                  script.stdout).group(1).split("|")
                two = re.findall("^## flashlab (.* .*)$", run("--help-markdown").stdout, re.M)
                self.assertEqual(set(cases), {f"'{command}'" for command in two})

    def complete(self, words):
        path = self.path("completion.bash", run("completion", "bash").stdout.encode())
        quoted = " ".join(f"'{word}'" for word in words)
        script = (f"source {path}; COMP_WORDS=({quoted}); "
                  "COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); _flashlab; "
                  "printf '%s\\n' \"${COMPREPLY[@]}\"")
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True,
                              check=True).stdout.split()

    def test_completion_in_bash(self):
        self.assertEqual(self.complete(["flashlab", "comp"]), ["compare", "completion"])
        self.assertIn("--seqlen", self.complete(["flashlab", "bench", "--seq"]))
        self.assertIn("--causal=top-left", self.complete(["flashlab", "bench", "--cau"]))
        self.assertEqual(self.complete(["flashlab", "bench", "--dtype", "bf"]), ["bf16"])
        self.assertEqual(self.complete(["flashlab", "bench", "--dtype", "fp6"]), ["fp64"])
        self.assertEqual(self.complete(["flashlab", "bench", "--dtype", "fp32,bf"]), ["fp32,bf16"])
        self.assertIn("gpt2-small", self.complete(["flashlab", "compare", "--preset", "gpt2"]))
        self.assertEqual(self.complete(["flashlab", "bench", "weighted-sum", "--ro"]), ["--rows"])
        self.assertEqual(self.complete(["flashlab", "completion", "z"]), ["zsh"])


if __name__ == "__main__":
    cli_harness.main()
