"""What ui.perfetto.dev needs of a trace in Chrome's format, checked without it."""

import json
import math

PHASES = {"X": {"name", "ts", "dur", "pid", "tid"}, "M": {"name", "pid", "args"},
          "C": {"name", "ts", "pid", "args"}}


def fail_on_constant(name):
    raise ValueError(f"{name} is no JSON")


def crossings(ranges):
    """Pairs of ranges on one track that begin inside each other and end outside."""
    stack = []
    for start, end, name in sorted(ranges, key=lambda r: (r[0], -r[1])):
        while stack and stack[-1][1] <= start:
            stack.pop()
        if stack and end > stack[-1][1]:
            yield (f"{name} from {start} to {end} crosses the end of {stack[-1][2]} "
                   f"at {stack[-1][1]}")
        stack.append((start, end, name))


def complaints(text):
    """What is wrong with it, a line each; nothing for a trace that loads as it is meant."""
    try:
        trace = json.loads(text, parse_constant=fail_on_constant)
    except ValueError as error:
        return [f"not JSON: {error}"]
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list) or not events:
        return ["no traceEvents"]
    out, tracks, named = [], {}, set()
    for event in events:
        needs = PHASES.get(event.get("ph"))
        if needs is None or not needs <= set(event):
            out.append(f"an event of phase {event.get('ph')} has {sorted(event)}")
            continue
        for key in ("ts", "dur"):
            if key in needs and not (isinstance(event[key], (int, float)) and
                                     math.isfinite(event[key]) and event[key] >= 0):
                out.append(f"{event['name']}: {key} is {event[key]}")
                break
        else:
            if event["ph"] == "X":
                end = event["ts"] + event["dur"]
                track = tracks.setdefault((event["pid"], event["tid"]), [])
                track.append((event["ts"], round(end, 3), event["name"]))
        if event["ph"] == "M" and event["name"] == "thread_name":
            named.add((event["pid"], event["tid"]))
        if event["ph"] == "C" and not all(isinstance(v, (int, float))
                                          for v in event["args"].values()):
            out.append(f"counter {event['name']} is {event['args']}")
    out += [f"track {track} has no name" for track in tracks if track not in named]
    for ranges in tracks.values():
        out += crossings(ranges)
    return out
