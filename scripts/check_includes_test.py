#!/usr/bin/env python3
"""check_includes.py must accept a clean tree and find each kind of violation in a damaged one."""
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import check_includes  # noqa: E402

CLEAN = {
    "src/base/CMakeLists.txt": "kvl_library(NAME base SRCS a.cc)\n"
                               "kvl_test(NAME base_test SRCS a_test.cc DEPS base)",
    "src/base/a.h": "",
    "src/base/a.cc": '#include "base/a.h"\n#include "absl/status/status.h"\n',
    "src/base/a_test.cc": '#include "base/a.h"\n',
    "src/io/CMakeLists.txt": "kvl_library(NAME io  # reads\n  SRCS b.cc\n  DEPS base)",
    "src/io/b.h": '#include "base/a.h"\n',
    "src/io/b.cc": '#include "io/b.h"\n',
    "src/machine/CMakeLists.txt": "kvl_library(NAME machine SRCS k.cc DEPS base)",
    "src/machine/k.h": "",
    "src/machine/k.cc": '#include "machine/k.h"\n',
    "src/kv/CMakeLists.txt": "kvl_library(NAME kv SRCS c.cc DEPS machine)\n"
                             "kvl_test(NAME kv_test SRCS c_test.cc DEPS kv io)",
    "src/kv/c.h": '#include "machine/k.h"\n',
    "src/kv/c.cc": '#include "kv/c.h"\n',
    "src/kv/c_test.cc": '#include "io/b.h"\n#include "machine/k.h"\n',
    "tests/CMakeLists.txt": "add_library(kvlathe_models STATIC m.cc)\n"
                            "target_link_libraries(kvlathe_models PUBLIC kvlathe_io fmt::fmt)\n"
                            "kvl_test(NAME whole_test SRCS whole_test.cc DEPS models kv)",
    "tests/m.h": "",
    "tests/m.cc": '#include "m.h"\n#include "io/b.h"\n',
    "tests/whole_test.cc": '#include "m.h"\n#include "kv/c.h"\n',
}


def problems_of(changes):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in {**CLEAN, **changes}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return check_includes.check(root)[1]


class CheckIncludes(unittest.TestCase):
    def assert_problem(self, changes, expected):
        problems = problems_of(changes)
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(expected, problems[0])

    def test_accepts_a_clean_tree(self):
        self.assertEqual(problems_of({}), [])

    def test_finds_an_include_that_deps_lacks(self):
        self.assert_problem({"src/kv/c.cc": '#include "io/b.h"\n'},
                            "src/kv/c.cc: includes src/io/b.h, but DEPS lacks io")

    def test_kernels_of_a_gpu_include_little(self):
        cuda = {
            "src/cuda/CMakeLists.txt": "kvl_library(NAME cuda SRCS d.cc kernels/k.cu DEPS machine base)",
            "src/cuda/d.cc": '#include "machine/k.h"\n#include "cuda/kernels/k.h"\n',
            "src/cuda/kernels/k.h": '#include "base/a.h"\n',
            "src/cuda/kernels/k.cu": '#include "cuda/kernels/k.h"\n',
        }
        self.assertEqual(problems_of(cuda), [])
        for path in ("src/cuda/kernels/k.h", "src/cuda/kernels/k.cu"):
            problem = f"{path}: includes src/machine/k.h; kernels of a GPU"
            self.assert_problem({**cuda, path: '#include "machine/k.h"\n'}, problem)

    def test_installed_headers_include_each_other_alone(self):
        header = '#include <absl/status/status.h>\n#include "kvlathe/b.h"\n'
        self.assertEqual(problems_of({"include/kvlathe/a.h": header, "include/kvlathe/b.h": ""}), [])
        self.assert_problem({"include/kvlathe/a.h": '#include "base/a.h"\n'},
                            "include/kvlathe/a.h: includes base/a.h, which is not installed")

    def test_finds_host_code_that_knows_the_cpu(self):
        files = {
            "src/cpu/CMakeLists.txt": "kvl_library(NAME cpu SRCS d.cc DEPS machine base)",
            "src/cpu/d.h": '#include "machine/k.h"\n',
            "src/cpu/d.cc": '#include "cpu/d.h"\n',
            "src/kv/CMakeLists.txt": "kvl_library(NAME kv SRCS c.cc DEPS cpu machine)\n"
                                     "kvl_test(NAME kv_test SRCS c_test.cc DEPS kv io cpu)",
            "src/kv/c_test.cc": '#include "cpu/d.h"\n',
        }
        self.assertEqual(problems_of(files), [])
        self.assert_problem({**files, "src/kv/c.cc": '#include "cpu/d.h"\n'},
                            "src/kv/c.cc: includes src/cpu/d.h, which belongs to the CPU")

    def test_does_not_follow_deps_of_deps(self):
        self.assert_problem({"src/kv/c.h": '#include "base/a.h"\n'}, "DEPS lacks base")

    def test_finds_it_in_a_test_and_in_the_tests_folder(self):
        self.assert_problem({"src/base/a_test.cc": '#include "io/b.h"\n'}, "points up from base")
        self.assert_problem({"tests/whole_test.cc": '#include "base/a.h"\n'}, "DEPS lacks base")

    def test_finds_an_upward_include(self):
        self.assert_problem({"src/base/a.h": '#include "kv/c.h"\n'}, "points up from base")

    def test_finds_upward_deps(self):
        self.assert_problem({"src/base/CMakeLists.txt":
                             "kvl_library(NAME base SRCS a.cc DEPS io)\n"
                             "kvl_test(NAME t SRCS a_test.cc DEPS base)"}, "DEPS points up to io")

    def test_finds_unknown_deps(self):
        self.assert_problem({"src/io/CMakeLists.txt":
                             "kvl_library(NAME io SRCS b.cc DEPS base bsae)"}, "no library")

    def test_finds_a_cycle_inside_a_folder(self):
        self.assert_problem({"src/io/b.h": '#include "io/d.h"\n', "src/io/d.h":
                             '#include "io/b.h"\n'}, "include cycle: ")

    def test_finds_subfolders_that_hold_each_other(self):
        files = {"src/kv/spec/s.h": "", "src/kv/codes/c.h": '#include "kv/spec/s.h"\n', "src/kv/seal/e.h": ""}
        self.assertEqual(problems_of(files), [])
        self.assert_problem({**files, "src/kv/spec/t.h": '#include "kv/codes/c.h"\n'},
                            "src/kv: subfolders hold each other: codes -> spec -> codes (src/kv/codes/c.h includes "
                            "src/kv/spec/s.h; src/kv/spec/t.h includes src/kv/codes/c.h)")
        self.assert_problem({**files, "src/kv/spec/t.h": '#include "kv/seal/e.h"\n',
                             "src/kv/seal/f.h": '#include "kv/codes/c.h"\n'}, "subfolders hold each other")

    def test_lets_a_folder_and_its_subfolder_hold_each_other_and_tests_look_sideways(self):
        self.assertEqual(problems_of({
            "src/kv/spec/s.h": '#include "kv/d.h"\n', "src/kv/d.h": "", "src/kv/c.h": '#include "kv/spec/s.h"\n',
            "src/kv/codes/c.h": '#include "kv/spec/s.h"\n', "src/kv/spec/s_fixture.h": '#include "kv/codes/c.h"\n'}), [])

    def test_finds_a_source_without_target_and_a_folder_without_place(self):
        self.assert_problem({"src/io/orphan.cc": ""}, "src/io/orphan.cc: belongs to no target")
        self.assert_problem({"src/misc/x.h": ""}, "no place in the order")

    def test_finds_uses_of_precompiled_headers_that_nothing_includes(self):
        use = 'std::vector<int> v;  // of fmt::x\n'
        self.assert_problem({"src/io/b.cc": '#include "io/b.h"\n' + use}, "src/io/b.cc: uses <vector>")
        self.assertEqual(problems_of({"src/io/b.cc": '#include "io/b.h"\n#include <vector>\n' + use}), [])
        self.assertEqual(problems_of({"src/base/a.h": "#include <vector>\n",
                                      "src/io/b.cc": '#include "io/b.h"\n' + use}), [])
        self.assert_problem({"src/io/b.cc": "#include <algorithm>\nauto x = nlohmann::json(std::max(1, 2));"},
                            "uses <nlohmann/json.hpp>")


if __name__ == "__main__":
    unittest.main()
