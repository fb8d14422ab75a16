#!/usr/bin/env python3
"""The documents' checker catches what is not there, and lets what is there pass."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
sys.dont_write_bytecode = True

import check_docs  # noqa: E402

TREE = {
    "Makefile": "run:\n\t@true\ntest: run\n\t@true\n",
    "src/cli/main.cpp": 'f("bench", "--head-dim,--headdim", "dim");  // "--not-a-flag"\n'
                        'f("info", "--json", "file");\n',
    "src/api/plan.cpp": "int x;\n",
    "include/flashlab/a.h": "#pragma once\nnamespace flashlab { int answer(); }\n",
    "cmake/Options.cmake": "option(FLASHLAB_WERROR)\n",
    "CMakePresets.json": '{"name": "asan"}\n',
    "docs/other.md": "# A heading, `code`\n",
}


def complaints_of(text, **others):
    with tempfile.TemporaryDirectory() as root:
        for path, content in {**TREE, "docs/page.md": text, **others}.items():
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as stream:
                stream.write(content)
        return check_docs.check_tree(root, os.environ.get("CXX", "g++"))[1]


class Docs(unittest.TestCase):
    def assert_bad(self, text, line=1):
        found = complaints_of(text)
        self.assertEqual([(path, at) for path, at, _ in found], [("docs/page.md", line)], text)

    def assert_good(self, text):
        self.assertEqual(complaints_of(text), [], text)

    def test_links(self):
        self.assert_good("[a](other.md) [b](other.md#a-heading-code) [c](https://x.y/z) "
                         "[d](../src/api) [e](#here)\n\n# Here\n")
        self.assert_bad("[a](missing.md)\n")
        self.assert_bad("[a](other.md#no-such)\n")
        self.assert_bad("text\n\n![picture](missing.svg)\n", line=3)
        self.assert_good("![a picture of it](other.md)\n")
        self.assert_bad("text\n\n![](other.md)\n", line=3)
        self.assert_good('<picture><source srcset="other.md"><img src="other.md"></picture>\n')
        self.assert_bad('<picture>\n<source media="dark" srcset="missing.svg">\n', line=2)
        self.assert_bad('<img alt="x" src="missing.svg">\n')

    def test_the_dark_picture(self):
        light = '<svg><rect fill="#ffffff"/><path marker-end="url(#tip)"/></svg>'
        def found(dark):
            return complaints_of("text\n", **{"docs/architecture-light.svg": light,
                                              "docs/architecture-dark.svg": dark})
        self.assertEqual(found(light.replace("#ffffff", "#0d1117")), [])
        self.assertEqual([path for path, _, _ in found(light)], ["docs/architecture-dark.svg"])

    def test_paths(self):
        self.assert_good("`src/api/plan.cpp`, `src/api/`, `src/<room>/plan.cpp`, "
                         "`src/{api,cli}/*.cpp`, `build/anything`\n")
        self.assert_bad("`src/api/missing.cpp`\n")
        self.assert_bad("```\nvi src/missing/plan.cpp\n```\n", line=2)

    def test_make(self):
        self.assert_good("`make run`, `make test`, `git clone x && make run`\n")
        self.assert_bad("`make everything`\n")

    def test_commands_and_flags(self):
        self.assert_good("`flashlab bench --head-dim 64`, `build/flashlab bench --headdim 64`\n"
                         "`--head-dim`\n")
        self.assert_bad("`flashlab brew`\n")
        self.assert_bad("`flashlab bench --no-such-flag`\n")
        self.assert_bad("`flashlab bench --not-a-flag`\n")
        self.assert_bad("```sh\n$ flashlab bench --tail-dim 64   # why\n```\n", line=2)
        self.assert_bad("`--no-such-flag`\n")

    def test_a_flag_belongs_to_its_command(self):
        reference = ("# Commands\n\n## flashlab bench\n\n| Flag | What |\n|---|---|\n"
                     "| `--head-dim N` | x |\n\n## flashlab info\n\n"
                     "| Flag | What |\n|---|---|\n| `--json FILE` | x |\n")
        text = "`flashlab bench --head-dim 64 | flashlab info --json -`\n"
        whole = {"docs/command-line.md": reference}
        bad = complaints_of("`flashlab info --head-dim 64`\n", **whole)
        self.assertEqual([(path, at) for path, at, _ in bad], [("docs/page.md", 1)])
        self.assertEqual(complaints_of(text, **whole), [])

    def test_cmake(self):
        self.assert_good("`-DFLASHLAB_WERROR=ON`, `cmake --preset asan`\n")
        self.assert_bad("`-DFLASHLAB_NO_SUCH=ON`\n")
        self.assert_bad("`cmake --preset missing`\n")

    def test_cpp_blocks(self):
        good = "```cpp\n#include \"flashlab/a.h\"\nint main() { return flashlab::answer(); }\n```\n"
        self.assert_good(good)
        self.assert_bad(good.replace("answer", "question"))

    def test_the_translation_shows_the_same_code(self):
        code = "```sh\nmake run   # {}\n```\n"
        same = complaints_of("", **{"README.md": code.format("go"),
                                    "README.zh-CN.md": code.format("跑")})
        self.assertEqual(same, [])
        differ = complaints_of("", **{"README.md": code.format("go"),
                                      "README.zh-CN.md": code.replace("run", "test")})
        self.assertEqual([path for path, _, _ in differ], ["README.zh-CN.md"])

    def test_the_glossary_has_the_same_rows_in_both_languages(self):
        def found(english, chinese):
            pages = {"docs/glossary.md": english, "docs/glossary.zh-CN.md": chinese}
            return [path for path, _, _ in complaints_of("", **pages)]

        row = "| `batch`, B | {} |\n"
        self.assertEqual(found(row.format("problems"), row.format("问题数")), [])
        self.assertEqual(found(row.format("problems") * 2, row.format("问题数")),
                         ["docs/glossary.zh-CN.md"])
        self.assertEqual(found(row.format("problems"), "| `lse`, B | 问题数 |\n"),
                         ["docs/glossary.zh-CN.md"])

    def test_the_page_of_tests_names_each_once(self):
        def found(page):
            lists = "flashlab_test(api_test\n  SOURCES api_a_test.cpp LIBRARIES x)"
            files = {"docs/tests.md": page, "tests/api.cmake": lists,
                     "tests/api_a_test.cpp": "", "tests/python/test_b.py": ""}
            return [what for path, _, what in complaints_of("", **files) if path == "docs/tests.md"]

        self.assertEqual(found("| claim | api_test, test_b |\n"), [])
        self.assertEqual(found("| claim | api_a_test, test_b |\n"), [])
        self.assertEqual(found("| claim | api_test |\n"), ["the test test_b is missing"])
        self.assertEqual(found("| claim | api_test, test_b, api_test |\n"),
                         ["api_test stands here twice"])
        self.assertEqual(found("| claim | api_test, test_b, api_c_test |\n"),
                         ["api_c_test is no test"])

    def test_records_name_no_place_of_a_machine(self):
        record = "bench/results/gpu/a.json"
        good = complaints_of("", **{record: '{"command": "flashlab bench --json a/tmp/b"}'})
        self.assertEqual(good, [])
        bad = complaints_of("", **{record: '{\n"command": "/tmp/flashlab bench"}'})
        self.assertEqual([(path, at) for path, at, _ in bad], [(record, 2)])


if __name__ == "__main__":
    unittest.main()
