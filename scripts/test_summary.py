#!/usr/bin/env python3
"""What scripts/test.sh ran and how long it took: a table, the failed tests, and the last line
  N passed, N failed, N skipped

  scripts/test_summary.py first|all PRESET,BUILD_SECONDS,BUILD_STATUS,TEST_SECONDS,TEST_STATUS...

Programs of GoogleTest count by case, from the XML that each writes under build/PRESET/test-results; other tests count
as one each, from ctest's build/PRESET/test-results.xml; labels are those of build/PRESET/tests.json. Nothing that went wrong may vanish: the cases of a program
that died without its XML all count as failed, and so does one for a program that ran no case, for one that failed though
its cases passed (as when memory leaked), for a build that failed and for a ctest without a report.
"""
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import namedtuple
from pathlib import Path

Run = namedtuple("Run", "preset build_seconds build_failed test_seconds tests_failed")
# labels: what kvl_test and its like gave it; failed: names.
Result = namedtuple("Result", "name labels seconds n_passed failed n_skipped")
PARTS = (("commands", "commands"), ("fuzz", "fuzz corpora"), ("tree", "source tree"), ("slow", "whole models"))
N_LONGEST = 5


def part_of(labels):
    return next((part for label, part in PARTS if label in labels), "unit tests")


def cases_of(path):
    """(passed, names of failed, skipped) of a file that GoogleTest wrote."""
    n_passed, failed, n_skipped = 0, [], 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None:
            failed.append(f"{case.get('classname')}.{case.get('name')}")
        elif case.get("result") == "completed":
            n_passed += 1
        else:
            n_skipped += 1
    return n_passed, failed, n_skipped


def labels_by_test(path):
    """From what `ctest --show-only=json-v1` wrote."""
    tests = json.loads(path.read_text(encoding="utf-8"))["tests"]
    return {test["name"]: next((entry["value"] for entry in test["properties"] if entry["name"] == "LABELS"), [])
            for test in tests}


def result_of(case, labels, folder):
    """One <testcase> of ctest's report; `folder` holds what programs of GoogleTest wrote."""
    name, status = case.get("name"), case.get("status")
    n_passed, failed, n_skipped = int(status == "run"), [], int(status in ("notrun", "disabled"))
    if "gtest" in labels:
        try:
            n_passed, failed, n_skipped = cases_of(folder / f"{name}.xml")
            if n_passed + len(failed) + n_skipped == 0:
                failed = [f"{name}: no case of this name ran"]
        except (OSError, ElementTree.ParseError):
            count = re.search(r"Running (\d+) tests? from", case.findtext("system-out") or "")
            n_cases = max(1, int(count.group(1)) if count else 1)
            n_passed, n_skipped = 0, 0
            failed = [f"{name}: died, and with it {n_cases} cases"] + [""] * (n_cases - 1)
    if not failed and status not in ("run", "notrun", "disabled"):
        failed = [name]
    return Result(name, labels, float(case.get("time") or 0), n_passed, failed, n_skipped)


def results_of(run, build):
    """Of all tests of a preset, with what went wrong outside of them."""
    if run.build_failed:
        return [Result("build", [], 0, 0, [f"the {run.preset} build"], 0)]
    folder = build / run.preset
    try:
        labels = labels_by_test(folder / "tests.json")
        cases = list(ElementTree.parse(folder / "test-results.xml").getroot().iter("testcase"))
    except (OSError, ValueError, ElementTree.ParseError):
        cases = []
    results = [result_of(case, labels[case.get("name")], folder / "test-results") for case in cases]
    if not cases or (run.tests_failed and not any(result.failed for result in results)):
        results.append(Result("ctest", [], 0, 0, [f"ctest --preset {run.preset}"], 0))
    return results


def table(run, results):
    """Rows (ring, part, tests, seconds); seconds of tests are added up, though several run at a time."""
    rows = {}
    for result in results:
        key = ("second" if "second" in result.labels else "first", f"{run.preset}: {part_of(result.labels)}")
        n_tests, seconds = rows.get(key, (0, 0))
        rows[key] = (n_tests + result.n_passed + len(result.failed) + result.n_skipped, seconds + result.seconds)
    yield "first", f"{run.preset}: build", "", run.build_seconds
    for (ring, part), (n_tests, seconds) in sorted(rows.items()):
        yield ring, part, n_tests, seconds


def main(arguments, build=Path("build")):
    ring, runs = arguments[0], []
    for argument in arguments[1:]:
        preset, *numbers = argument.split(",")
        runs.append(Run(preset, *map(int, numbers)))
    results = {run: results_of(run, build) for run in runs}
    print(f"\n{'ring':<8}{'part':<26}{'tests':>7}{'seconds':>9}")
    for run in runs:
        for of_ring, part, n_tests, seconds in table(run, results[run]):
            print(f"{of_ring:<8}{part:<26}{n_tests:>7}{seconds:>9.0f}")
    elapsed = sum(run.build_seconds + run.test_seconds for run in runs)
    by_run = "; ".join(f"{run.preset} build {run.build_seconds}, tests {run.test_seconds}" for run in runs)
    print(f"seconds by the clock: {by_run}; together {elapsed}")
    everything = [(result, run) for run in runs for result in results[run]]
    longest = sorted(everything, key=lambda entry: -entry[0].seconds)[:N_LONGEST]
    print("longest: " + ", ".join(f"{result.name} ({run.preset}) {result.seconds:.0f}" for result, run in longest))
    if ring == "first":
        print("the second ring did not run: scripts/test.sh --all")
    failed = [f"{run.preset}: {name}" for result, run in everything for name in result.failed if name]
    if failed:
        print("failed:\n  " + "\n  ".join(failed))
    n_failed = sum(len(result.failed) for result, _ in everything)
    n_passed = sum(result.n_passed for result, _ in everything)
    print(f"{n_passed} passed, {n_failed} failed, {sum(result.n_skipped for result, _ in everything)} skipped")
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
