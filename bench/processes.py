"""Programs that a script starts and that end with it: what is measured next wants an idle GPU."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

TOO_LONG = 124
_running = set()
_stopping = threading.Event()


def run(command, limit=None):
    """(exit code, output, seconds) of a command; TOO_LONG when it took more than limit seconds."""
    start = time.monotonic()
    # A group of its own: some start further programs, and all must go.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", start_new_session=True) as process:
        _running.add(process)
        if _stopping.is_set():
            _kill(process)
        try:
            text, _ = process.communicate(timeout=limit)
            code = process.returncode
        except subprocess.TimeoutExpired:
            _kill(process)
            text, _ = process.communicate()
            code = TOO_LONG
        finally:
            _running.discard(process)
    return code, text, time.monotonic() - start


class Deadline:
    """The seconds that a script may take, from now on."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()

    def say(self, text):
        """One line, after the seconds that have passed."""
        print(f"{self.seconds - self.left():6.1f} s  {text}", flush=True)


def stop_with_this_script():
    """From now on SIGTERM ends the script's programs before the script: `timeout` sends it."""
    def stop(number, _frame):
        _stopping.set()
        for process in list(_running):
            _kill(process)
        sys.exit(128 + number)
    signal.signal(signal.SIGTERM, stop)


def _kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
