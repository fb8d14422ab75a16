"""python -m flashlab.peers DEVICE THREADS [CPU_ISA]: answers requests on stdin until it ends."""

import os
import sys

from flashlab.peers.protocol import Channel


def main():
    # Compiling beside a measurement would disturb it.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    channel = Channel()
    device, threads = sys.argv[1], int(sys.argv[2])
    cpu_isa = sys.argv[3] if len(sys.argv) > 3 else "automatic"
    try:
        # Imported here: a broken installation is an answer, not a traceback.
        from flashlab.peers.worker import Worker
        worker = Worker(channel, device, threads, cpu_isa)
    except Exception as error:  # pylint: disable=broad-except
        channel.emit("unusable", text=f"{type(error).__name__}: {error}")
        return 0
    channel.emit("ready", **worker.describe())
    for request in channel.requests():
        if not worker.answer(request):
            return 1
    return 0


sys.exit(main())
