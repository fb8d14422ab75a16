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
_starting = False  # the main thread, which signals interrupt, makes a program that nobody knows yet


def run(command, limit=None):
    """(exit code, output, seconds) of a command; TOO_LONG when it took more than limit seconds."""
    start = time.monotonic()
    with _start(command) as process:
        if _stopping.is_set():
            _kill(process)
            if _on_main_thread():
                sys.exit(128 + signal.SIGTERM)
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


def _start(command):
    global _starting
    _starting = _starting or _on_main_thread()
    try:
        # A group of its own: some start further programs, and all must go.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, errors="replace", start_new_session=True)
        _running.add(process)
        return process
    finally:
        if _on_main_thread():
            _starting = False


def _on_main_thread():
    return threading.current_thread() is threading.main_thread()


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
        if not _starting:  # else run() ends the program that is being made, and the script
            sys.exit(128 + number)
    signal.signal(signal.SIGTERM, stop)


def _kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
