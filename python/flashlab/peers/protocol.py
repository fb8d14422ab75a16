"""Lines of JSON between `flashlab compare` and this process.

In    one request a line: a problem, its passes, the implementations, the settings.
Out   {"event": "ready" | "missing" | "unusable"} once, then for each request any number of
      {"event": "result"} and one {"event": "end"}.
Aside progress on stderr: "progress DONE TOTAL WORDS".
"""

import json
import os
import queue
import signal
import sys
import threading

PROTOCOL = 1


class Channel:
    """This process's side of the conversation."""

    def __init__(self):
        # Libraries that print belong on stderr: stdout carries the results and nothing else.
        sys.stdout.flush()
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self.cancelled = False
        signal.signal(signal.SIGINT, self._on_interrupt)
        self._lines = queue.Queue()
        self._closing = False
        threading.Thread(target=self._read, daemon=True).start()

    def _on_interrupt(self, _signal, _frame):
        self.cancelled = True

    def _read(self):
        for line in sys.stdin:
            self._lines.put(line)
        # Whoever asked is gone, perhaps killed: nothing that still runs is of use to anybody.
        os._exit(0)

    def requests(self):
        """Requests as they come; ends only with the process."""
        while True:
            yield json.loads(self._lines.get())

    def emit(self, event, **members):
        self._out.write(json.dumps({"event": event, **members}, allow_nan=False) + "\n")
        self._out.flush()

    def progress(self, done, total, words):
        sys.stderr.write(f"progress {done:g} {total:g} {words}\n")
        sys.stderr.flush()
