#!/usr/bin/env python3
"""The last step of `make install`: where it installs, which kernels, and what a person is told."""

import os
import subprocess
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools", "install.sh")


class Install(unittest.TestCase):
    """tools/install.sh with a stand-in for cmake that notes its arguments."""

    def install(self, *arguments, cmake="exit 0", path=()):
        with tempfile.TemporaryDirectory() as folder:
            calls = os.path.join(folder, "calls")
            with open(os.path.join(folder, "cmake"), "w", encoding="utf-8") as stream:
                stream.write(f'#!/bin/sh\necho "$*" >> "{calls}"\n{cmake}\n')
            os.chmod(os.path.join(folder, "cmake"), 0o755)
            done = subprocess.run(
                ["bash", SCRIPT, "[3/3]", *arguments], capture_output=True, text=True, check=False,
                env={**os.environ, "HOME": "/home/ada",
                     "PATH": os.pathsep.join((folder, *path, os.environ["PATH"]))})
            with open(calls, encoding="utf-8") as stream:
                return done, stream.read().splitlines()

    def test_into_the_home_folder_by_default(self):
        done, calls = self.install(path=["/home/ada/.local/bin"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(calls, ["build", "--build build --target flashlab_kernels",
                                 "--install build --prefix /home/ada/.local"])
        self.assertIn("/home/ada/.local/bin/flashlab", done.stdout)
        self.assertNotIn("not on your PATH", done.stdout)

    def test_elsewhere_with_the_kernels_that_were_named(self):
        done, calls = self.install("/opt/a b", "sm_90a")
        self.assertEqual(calls[0], "build -DFLASHLAB_KERNEL_ARCHITECTURES=sm_90a")
        self.assertEqual(calls[-1], "--install build --prefix /opt/a b")
        self.assertIn('export PATH="/opt/a b/bin:$PATH"', done.stdout)

    def test_what_fails_is_shown_with_a_remedy(self):
        failing = 'case $1 in --install) echo no permission; exit 1;; esac'
        done, _ = self.install("/opt", cmake=failing)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no permission", done.stderr)
        self.assertIn("PREFIX=/another/folder", done.stderr)
        self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
