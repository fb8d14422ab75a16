#!/usr/bin/env python3
"""Holds the documents to the tree:  tools/check_docs.py [--root FOLDER] [--compiler g++]

In every *.md: links and their anchors exist; pictures have alt text; paths in `code` exist; `make`
targets, `flashlab` commands and flags, and CMake options exist; C++ blocks with a main() compile;
README.zh-CN.md shows the same commands and code as README.md; the architecture's dark picture is
the light one in other colours; docs/tests.md names every test once. Records below bench/results/
name no place of the machine that made them: their commands can be typed in a checkout.
Exit code 0 when everything named is there.
"""

import argparse
import os
import re
import subprocess
import sys

import architecture_picture
import source

ROOMS = ("src/", "include/", "cases/", "tests/", "tools/", "docs/", "examples/", "fuzz/", "cmake/",
         "bench/", ".ci/")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.M | re.S)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")
PICTURE = re.compile(r'<(?:img|source)(?: [^>]*)? (?:src|srcset)="([^"]+)"')
PLACE = re.compile(r'(?<![\w.])/(?:root|home|tmp|work|mnt)/[^\s"]*')
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# Written by the program itself (tests/cli_help_test.py): a heading per command, a row per flag.
COMMANDS = "docs/command-line.md"


class Tree:
    """What the documents may name."""

    def __init__(self, root):
        self.root = root
        self.files = source.tree_files(root)
        self.folders = {os.path.dirname(f)[:i] for f in self.files
                        for i in [m.end() for m in re.finditer(r"[^/]+", os.path.dirname(f))]}
        self.documents = [f for f in self.files if f.endswith(".md")]
        self.targets = set(re.findall(r"^([a-z][\w-]*):", self.text("Makefile"), re.M))
        command_line = "".join(self.text(f) for f in self.files
                               if f.startswith(("src/cli/", "src/lab/subjects/")))
        literals = re.findall(r'"((?:\\.|[^"\\\n])*)"', source.without_comments(command_line, True))
        self.words = {word for text in literals for word in re.split(r"[\s,=\[\]|;:]+", text)}
        self.flags = {flag for text in literals for flag in FLAG.findall(text)} | {"--help"}
        sections = re.findall(r"^## flashlab ([\w -]+)\n(.*?)(?=^## |\Z)", self.text(COMMANDS),
                              re.M | re.S)
        self.flags_of = {name: {flag for row in re.findall(r"^\| `([^`]*)`", rows, re.M)
                                for flag in FLAG.findall(row)} for name, rows in sections}
        cmake = "".join(self.text(f) for f in self.files
                        if f.endswith((".cmake", "CMakeLists.txt", "CMakePresets.json")))
        self.cmake_words = set(re.findall(r"\w+", cmake))

    def text(self, path):
        return source.read(path, self.root) if path in self.files else ""

    def has(self, path):
        path = path.rstrip("/")
        if path in self.folders or path in self.files:
            return True
        # <room>, * and ... stand for anything, {a,b} for each.
        if not re.search(r"[<*{…]", path):
            return False
        pattern = re.escape(path)
        pattern = re.sub(r"<[^>]*>|\\\*+|…", "[^/]+", pattern)
        pattern = re.sub(r"\\\{([^}]*)\\\}", lambda m: "(" + m.group(1).replace(",", "|") + ")",
                         pattern)
        return any(re.fullmatch(pattern, f) for f in [*self.files, *self.folders])


def anchors(text):
    """The anchors that a renderer makes of the headings."""
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#{1,6} +(.+?) *$", text, re.M):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def check_links(tree, path, text):
    prose = FENCE.sub(lambda m: "\n" * m.group(0).count("\n"), text)
    for match in [*LINK.finditer(prose), *PICTURE.finditer(prose)]:
        link = next(filter(None, match.groups()))
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
        if not tree.has(target):
            yield line_of(prose, match.start()), f"the link {link} leads nowhere"
        elif match.group(0).startswith("![]"):
            yield line_of(prose, match.start()), f"the picture {link} has no alt text"
        elif anchor and target.endswith(".md") and anchor not in anchors(tree.text(target)):
            yield line_of(prose, match.start()), f"{target} has no heading for #{anchor}"


def pieces_of_code(text):
    """(line, code) of every code span, and of every line of shell-like blocks."""
    for match in FENCE.finditer(text):
        if match.group(1) in ("", "sh", "bash", "console", "shell", "text"):
            first = line_of(text, match.start(2))
            joined = match.group(2).replace("\\\n", "  ")
            for offset, line in enumerate(joined.split("\n")):
                yield first + offset, line
    prose = FENCE.sub(lambda m: "\n" * m.group(0).count("\n"), text)
    for match in SPAN.finditer(prose):
        yield line_of(prose, match.start()), match.group(1)


def check_paths(tree, line, code):
    for word in re.findall(r"(?:\{[^}\s]*\}|[^\s\"'(),;:={}])+", code):
        word = word.removeprefix("./").removeprefix("+")
        if word.startswith(ROOMS) and not tree.has(word.rstrip(".")):
            yield line, f"{word} does not exist"


def check_make(tree, line, code):
    match = re.match(r"\$? *(?:.*&& *)?make((?: +[a-z][\w-]*)*)(?: |$)", code)
    for target in (match.group(1).split() if match else []):
        if target not in tree.targets:
            yield line, f"the Makefile has no target {target}"


def check_command(tree, line, code):
    """`flashlab COMMAND --flags`, alone or after `build/`, a prompt or variables."""
    match = re.match(r"(?:\$ *)?(?:[A-Z_]+=\S* +)*(?:\./)?(?:build/)?flashlab( .*|$)", code)
    if match is None:
        if re.fullmatch(r"--[a-z][a-z0-9-]*(?:[ =].*)?", code) and tree.flags:
            name = FLAG.match(code).group(0)
            if name not in tree.flags and not tree.named_elsewhere(name):
                yield line, f"no command has the flag {name}"
        return
    words = re.sub(r"#.*", "", match.group(1)).split()
    if words and re.fullmatch(r"[a-z][a-z-]*", words[0]) and words[0] not in tree.words:
        yield line, f"flashlab has no command {words[0]}"
    names = (" ".join(words[:2]), words[0] if words else "")
    command = next((name for name in names if name in tree.flags_of), None)
    if command == "launch":  # what stands behind its own flags is another command, or a program
        rest = re.match(r" *launch(?: -n +\S+)* *(.*)", match.group(1)).group(1)
        if not rest.startswith("--"):
            yield from check_command(tree, line, f"flashlab {rest}")
        return
    for flag in FLAG.findall(re.split(r"#|\||;|&&", match.group(1))[0]):
        if flag not in tree.flags:
            yield line, f"flashlab has no flag {flag}"
        elif command and flag not in tree.flags_of[command]:
            yield line, f"flashlab {command} does not take {flag}"


def check_cmake(tree, line, code):
    for option in re.findall(r"(?:^|-D|[^A-Z_])(FLASHLAB_[A-Z_]+|BUILD_SHARED_LIBS)\b", code):
        in_code = any(option in tree.text(f) for f in tree.files
                      if source.is_cpp(f) or f.startswith(("tools/", ".ci/")))
        if option not in tree.cmake_words and not in_code:
            yield line, f"{option} is read nowhere"
    for preset in re.findall(r"--preset[= ]([\w-]+)", code if "cmake" in code else ""):
        if f'"name": "{preset}"' not in tree.text("CMakePresets.json"):
            yield line, f"CMakePresets.json has no preset {preset}"


def check_cpp(tree, path, text, compiler):
    for match in FENCE.finditer(text):
        if match.group(1) != "cpp" or "main(" not in match.group(2):
            continue
        run = subprocess.run(
            [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
             "-Wno-psabi", f"-I{tree.root}/include", "-x", "c++", "-"], input=match.group(2),
            text=True, capture_output=True, check=False)
        if run.returncode != 0:
            yield (line_of(text, match.start()),
                   f"this C++ does not compile:\n{run.stderr.rstrip()}")


def check_translation(tree):
    """Code blocks of README.zh-CN.md equal README.md's, comments aside."""
    def blocks(path):
        bare = [re.sub(r" *(#|//) .*", "", b) for _, b in FENCE.findall(tree.text(path))]
        return [re.sub(r"[ \n]+", " ", b).strip() for b in bare]

    english, chinese = blocks("README.md"), blocks("README.zh-CN.md")
    for number, (one, other) in enumerate(zip(english, chinese), 1):
        if one != other:
            yield "README.zh-CN.md", 1, f"code block {number} differs from README.md's"
    if len(english) != len(chinese):
        yield ("README.zh-CN.md", 1,
               f"{len(chinese)} code blocks; README.md has {len(english)}")


def check_glossary(tree):
    """The glossary's two languages have the same rows: their code, row by row."""
    def rows(path):
        return [re.findall(r"`[^`]+`", line) for line in tree.text(path).splitlines()
                if line.startswith("|")]

    path = "docs/glossary.zh-CN.md"
    english, chinese = rows("docs/glossary.md"), rows(path)
    for number, (one, other) in enumerate(zip(english, chinese), 1):
        if one != other:
            yield path, 1, f"table row {number} has the code {other}; glossary.md's has {one}"
    if len(english) != len(chinese):
        yield path, 1, f"{len(chinese)} table rows; glossary.md has {len(english)}"


def check_records(tree):
    """A record's commands work elsewhere."""
    for path in tree.files:
        if path.startswith("bench/results/") and path.endswith(".json"):
            for number, line in enumerate(tree.text(path).splitlines(), 1):
                for found in PLACE.findall(line):
                    yield path, number, f"{found} is a place of one machine"


def check_picture(tree):
    """The dark picture is the light one in other colours."""
    light, dark = "docs/architecture-light.svg", "docs/architecture-dark.svg"
    if light not in tree.files:
        return
    if tree.text(dark) != architecture_picture.dark_of(tree.text(light)):
        yield dark, 1, "is not what tools/architecture_picture.py makes"


def check_tests(tree):
    """docs/tests.md names every test once: a program of tests/*.cmake, or a file by its stem."""
    page = "docs/tests.md"
    if page not in tree.files:
        return
    lists = "".join(tree.text(f) for f in tree.files
                    if f.startswith("tests/") and f.endswith((".cmake", "CMakeLists.txt")))
    programs = {name: {os.path.splitext(f)[0] for f in re.findall(r"\w+_test\.cpp", sources)}
                for name, sources in re.findall(r"flashlab_test\(\s*(\w+)\s+([^)]*)\)", lists)}
    stems = {os.path.splitext(os.path.basename(f))[0] for f in tree.files
             if re.fullmatch(r"tests/(?:\w+_test\.\w+|python/test_\w+\.py)", f)}
    named, covered = set(), set()
    for number, text in enumerate(tree.text(page).splitlines(), 1):
        if not text.startswith("|"):
            continue
        for name in re.findall(r"\b\w+_test\b|\btest_\w+", text):
            if name in named:
                yield page, number, f"{name} stands here twice"
            if name not in stems and name not in programs:
                yield page, number, f"{name} is no test"
            named.add(name)
            covered |= {name} | programs.get(name, set())
    for stem in sorted(stems - covered):
        yield page, 1, f"the test {stem} is missing"


def check_tree(root, compiler):
    tree = Tree(root)
    tree.named_elsewhere = lambda flag: any(
        flag in tree.text(f) for f in tree.files if f.startswith(("tools/", "fuzz/", "bench/")))
    complaints = []
    for path in tree.documents:
        text = tree.text(path)
        found = [*check_links(tree, path, text), *check_cpp(tree, path, text, compiler)]
        for line, code in pieces_of_code(text):
            for check in (check_paths, check_make, check_command, check_cmake):
                found += check(tree, line, code)
        complaints += [(path, line, what) for line, what in found]
    return tree, [*complaints, *check_translation(tree), *check_glossary(tree),
                  *check_records(tree), *check_picture(tree), *check_tests(tree)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--root", default=source.ROOT, help="the tree to read")
    parser.add_argument("--compiler", default=os.environ.get("CXX", "g++"))
    arguments = parser.parse_args()
    tree, complaints = check_tree(os.path.abspath(arguments.root), arguments.compiler)
    for path, line, what in complaints:
        print(f"{path}:{line}: {what}")
    print(f"docs: {len(tree.documents)} documents, {len(complaints)} complaints")
    return 1 if complaints or not tree.documents else 0


if __name__ == "__main__":
    sys.exit(main())
