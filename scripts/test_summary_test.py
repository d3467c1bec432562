#!/usr/bin/env python3
"""The summary of scripts/test.sh counts everything, above all what went wrong."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import test_summary


def entry(name, status="run", labels="", output="", seconds=1):
    """One test as ctest lists it and as it reports it."""
    return ({"name": name, "properties": [{"name": "LABELS", "value": labels.split(";")}]},
            f'<testcase name="{name}" classname="{name}" time="{seconds}" status="{status}">'
            f'<system-out>{output}</system-out></testcase>')


def case(name, inside="", result="completed"):
    """One case as GoogleTest reports it."""
    return f'<testcase name="{name}" classname="Suite" status="run" result="{result}">{inside}</testcase>'


class Summary(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        self.results = self.build / "release" / "test-results"
        self.results.mkdir(parents=True)

    def write(self, *entries, **cases):
        listed, reported = zip(*entries)
        (self.build / "release" / "tests.json").write_text(json.dumps({"tests": listed}))
        (self.build / "release" / "test-results.xml").write_text(f"<testsuite>{''.join(reported)}</testsuite>")
        for name, lines in cases.items():
            (self.results / f"{name}.xml").write_text(
                f'<testsuites><testsuite name="Suite">{"".join(lines)}</testsuite></testsuites>')

    def summary(self, run="release,60,0,5,0", ring="first"):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = test_summary.main([ring, run], self.build)
        lines = output.getvalue().splitlines()
        self.assertEqual(status == 0, " 0 failed" in lines[-1])
        return lines

    def test_counts_cases_and_not_programs(self):
        self.write(entry("a_test", labels="gtest"), entry("check", labels="tree"),
                   a_test=[case("A"), case("B"), case("C", result="skipped")])
        self.assertEqual(self.summary()[-1], "3 passed, 0 failed, 1 skipped")

    def test_parts_have_their_tests_and_seconds_by_ring(self):
        self.write(entry("a_test", labels="gtest", seconds=2), entry("a_test.second", labels="gtest;second", seconds=3),
                   entry("b_test", labels="gtest;slow", seconds=4),
                   **{"a_test": [case("A")], "a_test.second": [case("B"), case("C")], "b_test": [case("D")]})
        rows = [line.split() for line in self.summary(ring="all")]
        self.assertIn(["first", "release:", "build", "60"], rows)
        self.assertIn(["first", "release:", "unit", "tests", "1", "2"], rows)
        self.assertIn(["first", "release:", "whole", "models", "1", "4"], rows)
        self.assertIn(["second", "release:", "unit", "tests", "2", "3"], rows)

    def test_failed_cases_are_named(self):
        self.write(entry("a_test", "fail", "gtest"), a_test=[case("A"), case("B", "<failure/>")])
        lines = self.summary("release,60,0,5,1")
        self.assertIn("  release: Suite.B", lines)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")

    def test_all_cases_of_a_program_that_died_failed(self):
        self.write(entry("a_test", "fail", "gtest", "[==========] Running 12 tests from 3 test suites."))
        self.assertEqual(self.summary("release,60,0,5,1")[-1], "0 passed, 12 failed, 0 skipped")

    def test_a_program_that_died_at_once_failed(self):
        self.write(entry("a_test", "fail", "gtest"))
        self.assertEqual(self.summary("release,60,0,5,1")[-1], "0 passed, 1 failed, 0 skipped")

    def test_a_program_that_failed_behind_its_cases_failed(self):
        self.write(entry("a_test", "fail", "gtest"), a_test=[case("A")])
        self.assertEqual(self.summary("release,60,0,5,1")[-1], "1 passed, 1 failed, 0 skipped")

    def test_a_program_without_a_case_failed(self):
        self.write(entry("a_test", labels="gtest"), a_test=[])
        self.assertEqual(self.summary()[-1], "0 passed, 1 failed, 0 skipped")

    def test_a_failed_build_counts_as_one(self):
        self.assertEqual(self.summary("release,60,1,0,1")[-1], "0 passed, 1 failed, 0 skipped")

    def test_a_missing_report_counts_as_one(self):
        self.assertEqual(self.summary()[-1], "0 passed, 1 failed, 0 skipped")

    def test_a_failure_of_ctest_alone_counts_as_one(self):
        self.write(entry("check"))
        self.assertEqual(self.summary("release,60,0,5,1")[-1], "1 passed, 1 failed, 0 skipped")


if __name__ == "__main__":
    unittest.main(verbosity=2)
