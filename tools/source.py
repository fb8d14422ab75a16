"""Reading C++ text well enough for lints: files of the tree, and code without comments."""

import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<raw>R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
  | (?P<string>"(?:\\.|[^"\\\n])*")
  | (?P<char>(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+')
    """,
    re.VERBOSE | re.DOTALL,
)


def tree_files(root=ROOT):
    """Every file of the tree that is or could be committed, relative to its root."""
    if os.path.exists(os.path.join(root, ".git")):
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root, capture_output=True, check=False)
        if listed.returncode == 0:
            names = listed.stdout.decode(errors="replace").split("\0")
            return sorted(n for n in names if n and os.path.isfile(os.path.join(root, n)))
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [s for s in subfolders
                         if not s.startswith(("build", ".git", "__pycache__"))
                         and not (folder == root and s.startswith("results"))]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(found)


def read(path, root=ROOT):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as stream:
        return stream.read()


def is_cpp(path):
    return path.endswith((".h", ".cpp", ".cu", ".cuh"))


def without_comments(text, keep_strings=False):
    """The code with comments (and the insides of strings) blanked, line numbers unchanged."""
    def blank(match):
        if match.group("comment") is None:
            if keep_strings:
                return match.group(0)
            return '""' + "\n" * match.group(0).count("\n")
        return " " + "\n" * match.group(0).count("\n")

    return _TOKEN.sub(blank, text)


def without_directives(code):
    """Code (already without comments) with preprocessor lines blanked."""
    lines, continued = [], False
    for line in code.split("\n"):
        directive = continued or line.lstrip().startswith("#")
        continued = directive and line.endswith("\\")
        lines.append("" if directive else line)
    return "\n".join(lines)


def functions(code):
    """(name, first line, last line) of each outermost function body in comment-free code."""
    code = without_directives(code)
    found, head_start, depth, function = [], 0, 0, None
    for match in re.finditer(r"[{};]", code):
        char, at = match.group(0), match.start()
        if char == "{":
            depth += 1
            if function is None:
                head = code[head_start:at]
                if _is_function_head(head):
                    name = re.findall(r"([~\w]+)\s*\(", head)
                    first = code.count("\n", 0, head_start + len(head) - len(head.lstrip())) + 1
                    function = (name[0] if name else "?", first, depth)
        elif char == "}":
            if function is not None and depth == function[2]:
                found.append((function[0], function[1], code.count("\n", 0, at) + 1))
                function = None
            depth -= 1
        if function is None:
            head_start = at + 1
    return found


def _is_function_head(head):
    head = head.strip()
    if "(" not in head or head.endswith(("=", ",", "(", "return")):
        return False
    words = re.match(r"(?:template\s*<.*?>\s*)?(?:requires\b.*?)?\[?(\w+)", head, re.DOTALL)
    return words is None or words.group(1) not in ("namespace", "class", "struct", "union", "enum",
                                                   "extern")
