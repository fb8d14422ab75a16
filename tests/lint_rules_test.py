#!/usr/bin/env python3
"""Every lint rule catches what it is for, and lets good code pass."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
sys.dont_write_bytecode = True

import lint  # noqa: E402
import source  # noqa: E402


def complaints_of(files):
    """[(path, line, rule)] of a tree that holds just these files and lists them all."""
    names = [os.path.basename(path) for path in files if path.endswith(".cpp")]
    with tempfile.TemporaryDirectory() as root:
        for path, text in {"src/CMakeLists.txt": " ".join(names) + "\n", **files}.items():
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as stream:
                stream.write(text)
        return [(c.path, c.line, c.rule) for c in lint.lint_tree(root) if not c.warning]


class Forbidden(unittest.TestCase):
    def rule_of(self, line, path="src/api/a.cpp"):
        return [rule for _, _, rule in complaints_of({path: line + "\n"})]

    def test_the_library_does_not_print_exit_or_throw(self):
        for line, rule in (
                ('void f() { printf("x"); }', "prints"),
                ('void f() { std::fprintf(stderr, "x"); }', "prints"),
                ("void f() { std::cout << 1; }", "prints"),
                ('void f() { fmt::print("x"); }', "prints"),
                ("void f() { exit(1); }", "exits"),
                ("void f() { std::_Exit(1); }", "exits"),
                ("void f() { std::terminate(); }", "exits"),
                ("void f() { throw 1; }", "throws")):
            for room in ("include/flashlab/a.h", "src/api/a.cpp", "src/cpu/deep/a.cpp",
                         "src/reference/a.cpp", "src/lab/a.cpp", "cases/a.cpp"):
                prefix = "#pragma once\n" if room.endswith(".h") else ""
                self.assertIn(rule, self.rule_of(prefix + line, room), (line, room))

    def test_the_command_line_may_print_and_exit(self):
        self.assertEqual(self.rule_of('void f() { printf("x"); exit(2); }', "src/cli/a.cpp"), [])

    def test_nothing_aborts_or_depends_on_ndebug(self):
        for line in ("void f() { std::abort(); }", "void f() { abort(); }",
                     "#ifdef NDEBUG\n#endif", "void f() { assert(true); }"):
            for path in ("src/cli/a.cpp", "src/cpu/a.cpp", "tests/cpu_a_test.cpp"):
                rules = self.rule_of(line, path)
                self.assertTrue({"aborts", "asserts"} & set(rules), (line, path, rules))

    def test_words_in_comments_strings_and_other_names_are_fine(self):
        for line in ("// never throw, exit() or printf()",
                     "/* std::abort\n   throw */",
                     'const char* text = "throw abort() printf(";',
                     'const char* raw = R"(std::cout << "x")";',
                     "int snprintf_like; void f() { snprintf(0, 0, 0); }",
                     "static_assert(sizeof(int) == 4);",
                     "void f(Task& t) { t.exit(); t->abort(); on_exit(); }",
                     "constexpr int kMillion = 1'000'000;  // 'quotes'"):
            self.assertEqual(self.rule_of(line), [], line)

    def test_a_line_may_be_excused_with_a_reason_only(self):
        excused = "void f() { throw 1; }  // lint: allow(throws) the allocator's contract"
        self.assertEqual(self.rule_of(excused), [])
        self.assertEqual(self.rule_of("void f() { throw 1; }  // lint: allow(throws)"), ["throws"])
        self.assertEqual(self.rule_of(excused.replace("(throws)", "(prints)")), ["throws"])

    def test_assembly_stands_in_one_folder(self):
        for line in ('void f() { asm volatile("nop"); }', 'void f() { __asm__("nop"); }'):
            self.assertEqual(self.rule_of(line, "src/cpu/a.cpp"), ["asm"])
            self.assertEqual(self.rule_of("#pragma once\n" + line, "src/cuda/kernels/ptx/a.h"), [])
        barrier = 'void f(int x) { asm volatile("" : "+r"(x)); }'
        self.assertEqual(self.rule_of(barrier, "src/lab/a.cpp"), [])

    def test_json_is_written_by_one_function(self):
        line = "std::string f(const Json& j) { return j.dump(1); }"
        self.assertEqual(self.rule_of(line, "src/train/run/a.cpp"), ["json"])
        self.assertEqual(self.rule_of("#pragma once\n" + line, "src/base/json.h"), [])

    def test_json_is_read_by_one_function(self):
        line = "auto f(const std::string& s) { return nlohmann::json::parse(s); }"
        self.assertEqual(self.rule_of(line, "src/lab/a.cpp"), ["json"])
        self.assertEqual(self.rule_of("#pragma once\n" + line, "src/base/json.h"), [])


class Includes(unittest.TestCase):
    HEADERS = {path: "#pragma once\n" for path in (
        "include/flashlab/tensor.h", "src/api/problem.h", "src/runtime/cpu/thread_pool.h",
        "src/cpu/attention.h",
        "src/runtime/kernel_store/cache.h", "src/lab/result.h", "src/lab/lab.h", "src/cli/flags.h",
        "cases/case.h", "src/reference/reference.h",
        "src/cuda/kernels/ptx/mma.h", "src/cuda/kernels/tile/softmax.h",
        "src/cuda/kernels/sm90.h")}

    def rules(self, path, *includes):
        text = "".join(f'#include "{name}"\n' for name in includes)
        text = ("#pragma once\n" if path.endswith(".h") else "") + text
        return [rule for name, _, rule in complaints_of({**self.HEADERS, path: text})
                if name == path]

    def test_arrows_point_one_way(self):
        for path, name in (
                ("src/api/plan.cpp", "lab/result.h"), ("src/api/plan.cpp", "cli/flags.h"),
                ("src/api/plan.cpp", "cpu/attention.h"),
                ("src/api/context.cpp", "cpu/attention.h"), ("src/cpu/a.cpp", "lab/result.h"),
                ("src/runtime/cuda/a.cpp", "api/problem.h"),
                ("src/runtime/cuda/a.cpp", "runtime/kernel_store/cache.h"),
                ("src/cpu/a.cpp", "case.h"), ("src/lab/a.cpp", "cli/flags.h"),
                ("cases/a.cpp", "api/problem.h"), ("src/reference/a.cpp", "api/problem.h"),
                ("src/reference/a.cpp", "cpu/attention.h"), ("src/cli/a.cpp", "api/problem.h"),
                ("src/cli/a.cpp", "lab/result.h"),
                ("include/flashlab/a.h", "api/problem.h"), ("examples/a.cpp", "api/problem.h"),
                ("src/cuda/kernels/ptx/a.h", "cuda/kernels/tile/softmax.h"),
                ("src/cuda/kernels/tile/a.h", "cuda/kernels/sm90.h"),
                ("src/cuda/kernels/tile/a.h", "flashlab/tensor.h")):
            self.assertEqual(self.rules(path, name), ["direction"], (path, name))

    def test_along_the_arrows_is_fine(self):
        for path, name in (
                ("src/api/plan.cpp", "flashlab/tensor.h"), ("src/cpu/a.cpp", "api/problem.h"),
                ("src/lab/a.cpp", "runtime/cpu/thread_pool.h"), ("src/lab/a.cpp", "case.h"),
                ("src/runtime/kernel_store/a.cpp", "runtime/cpu/thread_pool.h"),
                ("src/cli/a.cpp", "lab/lab.h"), ("src/backends/a.cpp", "cpu/attention.h"),
                ("src/cuda/kernels/sm90.h", "cuda/kernels/tile/softmax.h"),
                ("src/cuda/kernels/tile/a.h", "cuda/kernels/ptx/mma.h")):
            self.assertEqual(self.rules(path, name), [], (path, name))

    def circles(self, *arrows):
        """What is said of a tree with these includes, each "FILE NAME"."""
        texts = {}
        for arrow in arrows:
            path, name = arrow.split()
            texts[path] = texts.get(path, "#pragma once\n") + f'#include "{name}"\n'
            texts.setdefault("src/" + name, "#pragma once\n")
        return complaints_of(texts)

    def test_folders_include_one_another_in_no_circle_at_any_depth(self):
        one_way = ("src/lab/report/a.h lab/results/b.h", "src/lab/results/b.h lab/machine/c.h",
                   "src/lab/report/deep/d.h lab/report/a.h")
        self.assertEqual(self.circles(*one_way), [])
        for planted in ("src/lab/machine/c.h lab/report/a.h", "src/lab/report/a.h "
                        "lab/report/deep/d.h"):
            self.assertIn("circle", [r for _, _, r in self.circles(*one_way, planted)], planted)
        # A detour through a third folder, in rooms that no order is written for.
        self.assertEqual([r for _, _, r in self.circles(
            "src/cpu/a/a.h cpu/b/b.h", "src/cpu/b/b.h cpu/c/c.h", "src/cpu/c/c.h cpu/a/z.h")],
            ["circle"])

    def test_sub_rooms_keep_their_order(self):
        self.assertEqual(self.circles("src/lab/report/a.h lab/subjects/b.h"), [])
        self.assertEqual([r for _, _, r in self.circles("src/lab/subjects/b.h lab/report/a.h")],
                         ["circle"])

    def test_a_kernels_planner_and_its_device_sources_are_two_rooms(self):
        room = "src/cuda/kernels/sm90/"
        self.assertEqual(self.circles(room + "forward/tile.h cuda/kernels/sm90/rows.h",
                                      room + "plan.h cuda/kernels/sm90/forward/plan.h"), [])

    def test_public_headers_need_only_the_standard_library(self):
        self.assertEqual(self.rules("include/flashlab/a.h", "fmt/format.h"), ["includes"])

    def test_a_header_guards_itself_and_a_name_must_exist(self):
        self.assertEqual([r for _, _, r in complaints_of({"src/api/a.h": "int x;\n"})],
                         ["includes"])
        self.assertEqual(self.rules("src/api/a.cpp", "api/missing.h"), ["includes"])


class Sizes(unittest.TestCase):
    def test_files_and_functions_stay_short(self):
        long_file = "int x;\n" * 601
        self.assertEqual(complaints_of({"src/api/a.cpp": long_file}), [("src/api/a.cpp", 1,
                                                                        "length")])
        rung = "src/cuda/kernels/ladder/fa1.cu"
        self.assertEqual(complaints_of({rung: "int x;\n" * 150}), [])
        self.assertEqual(complaints_of({rung: "int x;\n" * 151}), [(rung, 1, "length")])
        body = "  ++x;\n" * 125
        text = f"#include <x>\n\nnamespace n {{\nint g(int x) {{ return x; }}\n\n" \
               f"template <class T>\nvoid f(T x) {{\n{body}}}\n}}\n"
        self.assertEqual(complaints_of({"src/api/a.cpp": text}), [("src/api/a.cpp", 6, "length")])
        self.assertEqual(complaints_of({"src/api/a.cpp": text.replace(body, "  ++x;\n" * 90)}), [])

    def test_functions_are_found_and_tables_are_not(self):
        code = """
struct S {
  int get() const {
    return 1;
  }
  S(int a) : a_(a) {
  }
};
const int table[] = {
  f(1),
  2,
};
auto lambda() { return [](int x) {
    if (x) { return 1; }
    return 2;
  };
}
enum E { kA };
"""
        found = {(name, last - first + 1) for name, first, last in source.functions(code)}
        self.assertEqual(found, {("get", 3), ("S", 2), ("lambda", 5)})

    def test_columns_tabs_and_ends(self):
        for text in ("int x;" + " " * 2 + "\n", "int\tx;\n", "int x;", "// " + "x" * 98 + "\n"):
            self.assertEqual([r for _, _, r in complaints_of({"src/api/a.cpp": text})],
                             ["layout"], text)
        self.assertEqual(complaints_of({"src/api/a.cpp": "// " + "é" * 97 + "\n"}), [])


class Built(unittest.TestCase):
    def test_a_source_that_no_list_names_is_reported(self):
        found = complaints_of({"src/CMakeLists.txt": "other_a.cpp\n", "src/api/a.cpp": "int x;\n"})
        self.assertEqual(found, [("src/api/a.cpp", 1, "built")])

    def test_a_test_has_a_name_that_says_its_room(self):
        found = complaints_of({"tests/stuff.cpp": "TEST(A, B) {}\n"})
        self.assertEqual(found, [("tests/stuff.cpp", 1, "built")])


if __name__ == "__main__":
    unittest.main()
