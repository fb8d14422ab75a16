#!/usr/bin/env python3
"""Configures and builds quietly:  tools/build.py LABEL [TARGET...]

Shows a bar, keeps everything the tools said in build/build.log, and on failure shows the first
error. Exit code 0, or 1 when it does not build.
"""

import os
import re
import subprocess
import sys

import console

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NINJA_LINE = re.compile(r"^\[(\d+)/(\d+)\] (.*)")
ERRORS_SHOWN = 40


class BuildError(Exception):
    """A build that failed; its text is for a person."""


def forget_foreign_cache(binary_dir):
    """A build folder made for another source folder or generator cannot be reused: start anew."""
    cache = os.path.join(binary_dir, "CMakeCache.txt")
    try:
        with open(cache, errors="replace") as stream:
            text = stream.read()
    except OSError:
        return
    home = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", text, re.M)
    generator = re.search(r"^CMAKE_GENERATOR:INTERNAL=(.*)$", text, re.M)
    same_home = home is not None and os.path.realpath(home.group(1)) == os.path.realpath(SOURCE)
    if not same_home or generator is None or generator.group(1) != "Ninja":
        os.remove(cache)


def configure(log, binary_dir, arguments):
    command = ["cmake", "-S", SOURCE, "-B", binary_dir, "-G", "Ninja", *arguments]
    log.write("$ " + " ".join(command) + "\n")
    log.flush()
    if subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL).returncode != 0:
        log.flush()
        raise BuildError(f"cmake could not configure; the end of {os.path.relpath(log.name)}:\n"
                         + console.tail_of(log.name, 25))


def compile_targets(log, binary_dir, targets, step):
    """Runs ninja. Returns how many steps did something; raises BuildError with the failures."""
    command = ["cmake", "--build", binary_dir, "-j", str(console.jobs())]
    if targets:
        command += ["--target", *targets]
    log.write("$ " + " ".join(command) + "\n")
    environment = dict(os.environ, NINJA_STATUS="[%f/%t] ")
    ninja = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             stdin=subprocess.DEVNULL, errors="replace", env=environment)
    steps, failure = 0, []
    for line in ninja.stdout:
        log.write(line)
        match = NINJA_LINE.match(line)
        if match:
            # The looks at the commit and at globbed folders are part of every build.
            steps += not match.group(3).startswith(("Reading the commit", "Re-checking"))
            step.progress(int(match.group(1)), int(match.group(2)),
                          os.path.basename(match.group(3).split()[-1]))
        if line.startswith("FAILED:") or (failure and len(failure) < ERRORS_SHOWN):
            # The command line itself helps nobody on the screen; the log has it.
            if len(line) < 400:
                failure.append(line)
    if ninja.wait() != 0:
        log.flush()
        text = "".join(failure) or console.tail_of(log.name, 25)
        raise BuildError(f"the build failed; all of it is in {os.path.relpath(log.name)}\n{text}")
    return steps


def build(step, binary_dir, arguments, targets, configure_always=False):
    """Configures, by default only where needed, and builds `targets`: names, or a function that
    gives them for the configured folder. Returns the number of build steps that did something."""
    os.makedirs(binary_dir, exist_ok=True)
    forget_foreign_cache(binary_dir)
    with open(os.path.join(binary_dir, "build.log"), "w", errors="replace") as log:
        made = all(os.path.exists(os.path.join(binary_dir, name))
                   for name in ("build.ninja", "CMakeCache.txt"))
        if configure_always or not made:
            configure(log, binary_dir, arguments)
        names = targets(binary_dir) if callable(targets) else targets
        return compile_targets(log, binary_dir, names, step)


def main():
    label, targets = sys.argv[1], sys.argv[2:]
    os.chdir(SOURCE)
    step = console.Step(label, "build")
    try:
        steps = build(step, "build", ["-DCMAKE_BUILD_TYPE=Release", "-DFLASHLAB_FOLDERS_AS_ONE=ON"],
                      targets)
    except BuildError as error:
        step.finish("failed")
        print(f"flashlab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        step.finish("stopped; the same command goes on from here")
        return 130
    step.finish("up to date" if steps == 0 else f"{steps} steps, log: build/build.log")
    return 0


if __name__ == "__main__":
    sys.exit(main())
