"""What the steps of `make` show: a progress bar on a terminal, one line a step anywhere else."""

import os
import shutil
import sys
import time

BAR_CELLS = 32


def seconds(duration):
    """'0.4 s', '38 s', '4 min 05 s'."""
    if duration < 9.95:
        return f"{duration:.1f} s"
    if duration < 119.5:
        return f"{duration:.0f} s"
    whole = round(duration)
    return f"{whole // 60} min {whole % 60:02d} s"


class Step:
    """One step: `[2/3] build      ████████ 100%  38 s`."""

    def __init__(self, label, name, out=sys.stdout):
        self.prefix = f"{label:<5} {name:<10} "
        self.out = out
        self.live = out.isatty()
        self.start = time.monotonic()
        self.drawn = 0.0

    def progress(self, done, total, note=""):
        """Redraws the bar, at most ten times a second."""
        now = time.monotonic()
        if not self.live or total <= 0 or (now - self.drawn < 0.1 and done < total):
            return
        self.drawn = now
        share = min(1.0, done / total)
        full = round(share * BAR_CELLS)
        bar = "█" * full + "░" * (BAR_CELLS - full)
        line = f"{self.prefix}{bar} {share * 100:3.0f}%  {note}"
        width = shutil.get_terminal_size().columns - 1
        self.out.write("\r\033[K" + line[:width])
        self.out.flush()

    def finish(self, text, tail=None):
        """Replaces the bar by the step's result; `tail` defaults to the time it took."""
        if self.live:
            self.out.write("\r\033[K")
        tail = seconds(time.monotonic() - self.start) if tail is None else tail
        self.out.write(f"{self.prefix}{text:<56} {tail}\n")
        self.out.flush()


def tail_of(path, lines):
    """The last lines of a file, without what could upset a terminal."""
    try:
        with open(path, errors="replace") as stream:
            return "".join(stream.readlines()[-lines:]).rstrip("\n")
    except OSError as error:
        return f"({error})"


def jobs():
    """Compilers at once: one a core, and at least 1.5 GiB of memory each (SIMD code is hungry)."""
    cores = len(os.sched_getaffinity(0))
    try:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return max(1, min(cores, int(pages / (1.5 * 2**30))))
    except (OSError, ValueError):
        return cores
