#!/usr/bin/env python3
"""The tree's own rules that a compiler does not know:  tools/lint.py [--root FOLDER]

Each rule is one function over one file (or the whole tree) and yields complaints. A line may be
excused where it stands:   // lint: allow(rule) because ...
Exit code 0 when nothing is wrong, 1 otherwise. Warnings do not count.
"""

import argparse
import fnmatch
import os
import re
import sys

import source

LIBRARY_ROOMS = ("include/", "src/base/", "src/api/", "src/cpu/", "src/reference/", "src/cuda/",
                 "src/peers/", "src/runtime/", "src/dist/", "src/train/", "src/lab/",
                 "src/profile/", "cases/")
TEXT_FILES = (".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt", ".md", ".json", "/run")
CPP_ROOMS = ("include/", "src/", "cases/", "tests/", "examples/", "fuzz/", "python/")

# What the library may not do: it returns a Status; only the command line talks and exits.
FORBIDDEN_IN_LIBRARY = {
    "prints": re.compile(
        r"\b(?:v?f?w?printf|puts|putchar|perror|psignal)\s*\("
        r"|\bstd::(?:w?cout|w?cerr|w?clog|print|println)\b|\bfmt::v?print(?:ln)?\b"
        r"|\b(?:stdout|stderr)\b"),
    "exits": re.compile(
        r"(?<![\w.>])(?:std::)?(?:_?exit|_Exit|quick_exit|terminate|raise)\s*\("
        r"|\bstd::terminate\b"),
    "throws": re.compile(r"\bthrow\b|\brethrow_exception\b"),
}
# What no code here may do.
FORBIDDEN_ANYWHERE = {
    "aborts": re.compile(r"(?<![\w.>])(?:std::)?abort\s*\(|\bstd::abort\b|__builtin_trap\b"),
    "asserts": re.compile(r"(?<![\w_])assert\s*\(|\bNDEBUG\b|#\s*include\s*<cassert>"),
}
# An empty template emits no instruction: it only holds the optimiser back, as rulers must.
ASM = re.compile(r"(?<![\w])(?:asm|__asm__|__asm)\b(?!\s*(?:volatile|__volatile__)?\s*\(\s*\"\")")
JSON_DUMP = re.compile(r"(?:\.|->)dump\s*\(")
JSON_PARSE = re.compile(r"\b(?:[jJ]son|ordered_json)::(?:parse|accept)\s*\(")
INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
ALLOW = re.compile(r"//\s*lint:\s*allow\(([\w-]+)\)\s*(\S?)")

MAX_FILE_LINES, WARN_FILE_LINES = 600, 500
MAX_FUNCTION_LINES, WARN_FUNCTION_LINES = 120, 100
# Rooms with a stricter limit. The ladder is read file by file: one idea each.
MAX_FILE_LINES_IN = {"src/cuda/kernels/ladder/": 150}
MAX_COLUMNS = 100

# room -> the rooms it may include from. Order matters: the longest matching prefix is the room.
# ptx <- tile <- kernels;  runtime <- api <- cpu, cuda <- backends;  api <- lab <- cli;
# reference and cases see only include/.
MAY_INCLUDE = {
    "include/": ("include/",),
    "cases/": ("include/", "cases/"),
    "src/reference/": ("include/", "src/reference/"),
    # What every room above may need and none should have twice: files, text, JSON.
    "src/base/": ("include/", "src/base/"),
    # The runtime knows nothing of attention, and goes from libraries to devices to kernels.
    "src/runtime/guard.": ("include/",),
    "src/runtime/per_process.": ("include/", "src/runtime/per_process.h"),
    "src/runtime/cpu/": ("include/", "src/runtime/per_process.h", "src/runtime/cpu/"),
    "src/runtime/library/": ("include/", "src/runtime/library/"),
    "src/runtime/cuda/": ("include/", "src/runtime/guard.h", "src/runtime/library/",
                          "src/runtime/cuda/"),
    "src/runtime/": ("include/", "src/base/", "src/runtime/"),
    # Ranks. Their interface is the runtime's, for a step of a program can be a collective.
    # What its kernels are launched with is the same text on host and device.
    "src/dist/": ("include/", "src/base/", "src/runtime/", "src/dist/",
                  "src/cuda/kernels/dist/"),
    "src/api/": ("include/", "src/base/", "src/api/", "src/runtime/"),
    "src/cpu/": ("include/", "src/runtime/", "src/api/", "src/cpu/",
                 "src/cuda/kernels/dropout_pattern.h"),
    "src/cuda/": ("include/", "src/runtime/", "src/api/", "src/cuda/"),
    "src/peers/": ("include/", "src/runtime/", "src/api/", "src/cuda/", "src/peers/"),
    # The training engine: above attention and the runtime, below the instruments.
    # What its kernels are launched with is the same text on host and device.
    "src/train/": ("include/", "src/base/", "src/runtime/", "src/api/", "src/train/",
                   "src/cuda/kernels/train/"),
    # Where the backends of the API are put together.
    "src/backends/": ("include/", "src/runtime/", "src/api/", "src/cpu/", "src/cuda/",
                      "src/peers/", "src/reference/", "src/backends/"),
    "src/lab/": ("include/", "cases/", "src/base/", "src/runtime/", "src/dist/", "src/api/",
                 "src/cpu/", "src/cuda/", "src/peers/", "src/reference/", "src/train/", "src/lab/"),
    # Joins the training engine's lists with the instruments.
    "src/profile/": ("include/", "src/base/", "src/runtime/", "src/api/", "src/lab/",
                     "src/train/", "src/profile/"),
    # Of the lab only its door: what stands behind it can change without the command line.
    "src/cli/": ("include/", "cases/", "src/base/", "src/dist/start/", "src/dist/gpus/",
                 "src/dist/launch/launcher.h",
                 "src/lab/lab.h", "src/train/", "src/profile/", "src/cli/"),
    "src/cuda/kernels/ptx/": ("src/cuda/kernels/ptx/",),
    "src/cuda/kernels/tile/": ("src/cuda/kernels/ptx/", "src/cuda/kernels/tile/",
                               "src/cuda/kernels/arguments.h", "src/cuda/kernels/config_types.h",
                               "src/cuda/kernels/dropout_pattern.h",
                               "src/cuda/kernels/sequence_arguments.h"),
    "src/cuda/kernels/": ("src/cuda/kernels/",),
    "tests/": ("include/", "cases/", "src/", "tests/"),
    "fuzz/": ("include/", "cases/", "src/runtime/", "src/api/", "src/lab/", "fuzz/"),
    "examples/": ("include/",),
    "python/src/": ("include/", "src/runtime/", "src/api/", "src/dist/", "python/src/"),
}


class Complaint:
    def __init__(self, path, line, rule, text, warning=False):
        self.path, self.line, self.rule, self.text = path, line, rule, text
        self.warning = warning

    def __str__(self):
        kind = "warning" if self.warning else "error"
        return f"{self.path}:{self.line}: {kind}: {self.text} [{self.rule}]"


def matches(pattern, code):
    for match in pattern.finditer(code):
        yield code.count("\n", 0, match.start()) + 1, match.group(0).strip().rstrip("(").strip()


def lint_forbidden(path, code):
    """prints, exits, throws, aborts, asserts"""
    if not path.startswith(CPP_ROOMS) or not source.is_cpp(path):
        return
    if path.startswith(LIBRARY_ROOMS):
        for rule, pattern in FORBIDDEN_IN_LIBRARY.items():
            if rule == "exits" and path.startswith("src/cuda/kernels/") and not is_planner(path):
                continue  # device code cannot, and may call a function `raise`
            for line, what in matches(pattern, code):
                yield Complaint(path, line, rule, f"`{what}`: the library {rule} nowhere; "
                                "it returns a Status that says what happened")
    for rule, pattern in FORBIDDEN_ANYWHERE.items():
        for line, what in matches(pattern, code):
            yield Complaint(path, line, rule, f"`{what}`: nothing here {rule}, and nothing depends "
                            "on NDEBUG")


def lint_json(path, text):
    """json"""
    if source.is_cpp(path) and path.startswith("src/") and path != "src/base/json.h":
        code = source.without_comments(text, keep_strings=True)
        for line, what in matches(JSON_DUMP, code):
            yield Complaint(path, line, "json", f"`{what}` throws at bytes that are no UTF-8; use "
                            "base::json_text")
        for line, what in matches(JSON_PARSE, code):
            yield Complaint(path, line, "json", f"`{what}` has no limit of depth; use "
                            "base::read_json")


def lint_asm(path, text):
    """asm"""
    if source.is_cpp(path) and not path.startswith("src/cuda/kernels/ptx/"):
        code = source.without_comments(text, keep_strings=True)
        for line, what in matches(ASM, code):
            yield Complaint(path, line, "asm", f"`{what}`: assembly stands only in "
                            "src/cuda/kernels/ptx; use an intrinsic")


def is_planner(path):
    """Of a kernel's room: the host's half, which plans what the device sources beside it do."""
    return path.startswith("src/cuda/kernels/") and path.endswith(("plan.h", ".cpp"))


def room_of(path):
    if is_planner(path):
        return "src/cuda/"
    return max((room for room in MAY_INCLUDE if path.startswith(room)), key=len, default=None)


def resolve_include(path, name, files):
    """The tree's file that #include "name" means, or None for a system header."""
    here = os.path.normpath(os.path.join(os.path.dirname(path), name))
    # Device sources include from their own root, the only one that the run-time compiler knows.
    for candidate in (here, "include/" + name, "src/" + name, "cases/" + name, "tests/" + name,
                      "src/cuda/kernels/" + name):
        if candidate in files:
            return candidate
    return None


def lint_includes(path, text, files):
    """includes: direction, public headers, #pragma once"""
    room = room_of(path)
    if room is None or not source.is_cpp(path):
        return
    if path.endswith(".h") and "#pragma once" not in text:
        # Highway's per-target files are meant to be included several times.
        if not path.endswith("-inl.h"):
            yield Complaint(path, 1, "includes", "a header starts with #pragma once")
    for number, line in enumerate(text.split("\n"), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = resolve_include(path, match.group(2), files)
        if target is None:
            third_party = re.match(r"(fmt|hwy|CLI|nlohmann|gtest|gmock|nanobind)/|zlib\.h",
                                   match.group(2))
            if match.group(1) == '"' and not third_party and "generated" not in match.group(2):
                yield Complaint(path, number, "includes", f'"{match.group(2)}" is no file of the '
                                "tree; system headers stand in <>")
            if third_party and room == "include/":
                yield Complaint(path, number, "includes", f"public headers need nothing but the "
                                f"standard library, not {match.group(2)}")
            continue
        if match.group(1) == "<":
            yield Complaint(path, number, "includes", f"{match.group(2)} is the tree's own: use "
                            "quotes")
        if room.startswith("src/cuda/kernels/") and is_planner(target):
            yield Complaint(path, number, "includes", f"{target} is the host's; device sources "
                            "include device sources")
        if not target.startswith(MAY_INCLUDE[room]):
            allowed = ", ".join(MAY_INCLUDE[room])
            yield Complaint(path, number, "direction", f"{room}* may include from {allowed}; "
                            f"not {target}")


def lint_lengths(path, text, code):
    """length: files, functions"""
    if not source.is_cpp(path) and not path.endswith((".py", ".sh", ".cmake")):
        return
    lines = text.count("\n")
    if lines > WARN_FILE_LINES:
        yield Complaint(path, 1, "length", f"{lines} lines; split it by role before "
                        f"{MAX_FILE_LINES}", warning=lines <= MAX_FILE_LINES)
    for room, most in MAX_FILE_LINES_IN.items():
        if path.startswith(room) and lines > most and not is_planner(path):
            yield Complaint(path, 1, "length", f"{lines} lines; in {room} at most {most}: split it "
                            "by role")
    if not source.is_cpp(path):
        return
    for name, first, last in source.functions(code):
        size = last - first + 1
        if size > WARN_FUNCTION_LINES:
            yield Complaint(path, first, "length", f"{name} has {size} lines; a function stays "
                            f"within about {WARN_FUNCTION_LINES}",
                            warning=size <= MAX_FUNCTION_LINES)


def lint_layout(path, text):
    """layout: columns, tabs, line ends"""
    if not path.endswith(TEXT_FILES):
        return
    prose = path.endswith((".md", ".txt", ".json"))
    for number, line in enumerate(text.split("\n"), 1):
        if "\t" in line:
            yield Complaint(path, number, "layout", "a tab; indent with spaces")
        if "\r" in line:
            yield Complaint(path, number, "layout", "a carriage return")
        if not prose and line != line.rstrip():
            yield Complaint(path, number, "layout", "trailing space")
        if not prose and len(line) > MAX_COLUMNS and "http" not in line:
            yield Complaint(path, number, "layout", f"{len(line)} columns; at most {MAX_COLUMNS}")
    if text and not text.endswith("\n"):
        yield Complaint(path, text.count("\n") + 1, "layout", "no newline at the end")


def lint_built(files, read):
    """built: every source belongs to a list, every test has its name"""
    lists = {path: read(path) for path in files
             if os.path.basename(path) == "CMakeLists.txt" or path.endswith(".cmake")}
    every_list = "\n".join(lists.values())
    globs = [os.path.join(os.path.dirname(path), pattern) for path, text in lists.items()
             for pattern in re.findall(r"\$\{CMAKE_CURRENT_SOURCE_DIR\}/([\w/]*\*\.cpp)", text)]
    for path in files:
        if path.startswith(("src/", "cases/", "tests/", "fuzz/")) and path.endswith(".cpp"):
            name = re.escape(os.path.basename(path))
            globbed = any(fnmatch.fnmatch(path, pattern) for pattern in globs)
            if not globbed and not re.search(rf"(?<![\w-]){name}", every_list):
                yield Complaint(path, 1, "built", "no CMake list names it: it is never compiled")
        if path.startswith("tests/") and re.search(r"TEST(_F|_P)?\(", read(path)):
            if not re.match(r"tests/[a-z0-9]+_\w+_test\.cpp$", path) and path.endswith(".cpp"):
                yield Complaint(path, 1, "built", "a test is named tests/<room>_<what>_test.cpp")


# Sub-rooms in their order: a room includes from the rooms before it. A folder that is not named
# here only has to keep out of circles, as every folder has.
ORDER_OF_SUB_ROOMS = {
    "src/lab/": ("machine", "measure", "data", "results", "check", "subjects", "python", "report",
                 "kernels"),
    "src/train/": ("plan", "model", "layers", "step", "parallel", "cpu", "cuda", "data",
                   "weights", "run"),
}


def half_of(path):
    """The path as a place among rooms: a kernel's room is two of them, the device's and, above it,
    the host's."""
    return path.replace("src/cuda/kernels/", "src/cuda/planners/") if is_planner(path) else path


def siblings_of(path, target):
    """Two nodes of the folder in which the ways to the two files part, or None within a folder.

    A folder's own files are one node of it, its sub-folders are the others."""
    here, there = half_of(path).split("/"), half_of(target).split("/")
    depth = 0
    while depth < min(len(here), len(there)) - 1 and here[depth] == there[depth]:
        depth += 1
    nodes = ["/".join(parts[:depth + 1]) if depth < len(parts) - 1
             else "/".join(parts[:depth]) + "/*" for parts in (here, there)]
    return tuple(nodes) if nodes[0] != nodes[1] else None


def find_circle(arrows):
    """The nodes of a shortest circle of {node: {node: ...}}, or None."""
    best = None
    for start in sorted(arrows):
        came_from, queue = {start: None}, [start]
        for node in queue:
            for following in sorted(arrows.get(node, ())):
                if following == start:
                    way = [node]
                    while came_from[way[-1]] is not None:
                        way.append(came_from[way[-1]])
                    if best is None or len(way) < len(best):
                        best = way[::-1]
                elif following not in came_from:
                    came_from[following] = node
                    queue.append(following)
    return best


def lint_circles(files, read):
    """circle: no two folders, at any depth, include from one another, not even by a detour"""
    arrows, known = {}, set(files)
    for path in files:
        if not path.startswith(("include/", "src/", "cases/", "python/")) or \
                not source.is_cpp(path):
            continue
        for number, line in enumerate(read(path).split("\n"), 1):
            match = INCLUDE.match(line)
            target = match and resolve_include(path, match.group(2), known)
            nodes = target and siblings_of(path, target)
            if nodes:
                arrows.setdefault(nodes[0], {}).setdefault(nodes[1], (path, number, target))
                yield from out_of_order(path, number, target, *nodes)
    while circle := find_circle(arrows):
        steps = list(zip(circle, circle[1:] + circle[:1]))
        words = "; ".join("{} includes {}".format(*arrows[a][b][::2]) for a, b in steps)
        path, number, _ = arrows[steps[0][0]][steps[0][1]]
        yield Complaint(path, number, "circle", f"{' -> '.join(circle + circle[:1])}: {words}; "
                        "move what both need into a room below both")
        del arrows[steps[0][0]][steps[0][1]]


def out_of_order(path, number, target, here, there):
    for room, order in ORDER_OF_SUB_ROOMS.items():
        if here.startswith(room) and here[len(room):] in order and there[len(room):] in order and \
                order.index(here[len(room):]) < order.index(there[len(room):]):
            yield Complaint(path, number, "circle", f"{here} stands below {there} and may not "
                            f"include {target}; the order is {' <- '.join(order)}")


def excused(complaint, lines):
    """Whether the complaint's line, or the one above it, allows the rule and says why."""
    for number in (complaint.line, complaint.line - 1):
        if 0 < number <= len(lines):
            match = ALLOW.search(lines[number - 1])
            if match and match.group(1) == complaint.rule and match.group(2):
                return True
    return False


def lint_tree(root):
    files = source.tree_files(root)
    known = set(files)
    complaints = []
    for path in files:
        if path.startswith("build") or not path.endswith(TEXT_FILES):
            continue
        text = source.read(path, root)
        code = source.without_comments(text) if source.is_cpp(path) else text
        found = [*lint_forbidden(path, code), *lint_asm(path, text), *lint_json(path, text),
                 *lint_includes(path, text, known), *lint_lengths(path, text, code),
                 *lint_layout(path, text)]
        lines = text.split("\n")
        complaints += [c for c in found if not excused(c, lines)]
    def read(path):
        return source.read(path, root)

    complaints += lint_built(files, read)
    complaints += lint_circles(files, read)
    return complaints


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--root", default=source.ROOT, help="the tree to read")
    complaints = lint_tree(os.path.abspath(parser.parse_args().root))
    for complaint in complaints:
        print(complaint)
    errors = sum(not c.warning for c in complaints)
    print(f"lint: {errors} errors, {len(complaints) - errors} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
