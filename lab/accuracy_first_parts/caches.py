"""The smallest cache of every method that keeps an accuracy, by `kvlathe tune`, and how unlike the ranks of its heads are."""

import json
import os
import pathlib
import statistics
import subprocess
import time

from results_parts.program import CallFailed, end
from results_parts.store import Store

BASES = ("zack", "fdc", "palu", "eigen", "keyformer-z", "kf-f", "kvquant-z", "kvq-f", "kvq-p", "kf-p", "lathe")


def variation(values):
    """The coefficient of variation."""
    mean = statistics.fmean(values)
    return statistics.pstdev(values) / mean if mean else 0.0


def rank_facts(report):
    """Of `kvlathe inspect --json` of a cache with a basis: how the ranks vary from head to head, and the largest singular values."""
    basis = report["basis"]
    facts = {f"cv_{side}": variation([head[f"rank_{side}"] for head in basis["heads"]]) for side in ("k", "v")}
    facts |= {f"mean_{side}": statistics.fmean(head[f"rank_{side}"] for head in basis["heads"]) for side in ("k", "v")}
    return {**facts, "cv_largest_qk": basis["cv_largest_qk"], "cv_largest_v": basis["cv_largest_v"]}


def make_text(prepared, program):
    path = pathlib.Path(program.root) / prepared.path
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name("part-" + path.name)
    prepared.make(program, part)
    os.replace(part, path)


class Search:
    def __init__(self, book, program, facts, options, say):
        self.book, self.program, self.facts, self.options, self.say = book, program, facts, options, say

    def profile_path(self, task_set):
        beside = f"-{self.options.beside}" if self.options.beside else ""
        return pathlib.Path(self.options.work) / f"tune-{task_set.name}{beside}.json"

    def command(self, task_set, accuracy, methods):
        return ["tune", *self.options.model_arguments, "-c", str(self.options.context), *task_set.arguments, "--accuracy", f"{accuracy:g}",
                "-o", str(self.profile_path(task_set)), *(word for method in methods for word in ("--kv", method))]

    def run(self, task_set, accuracy, methods):
        """Searches what is missing; the profile keeps every cache as it is measured, so that an interrupted search goes on."""
        self.take(task_set, methods)
        missing = [method for method in methods if self.book.found(task_set.name, accuracy, method) is None]
        if not missing:
            return
        if task_set.text is not None:
            make_text(task_set.text, self.program)
        self.say(f"{task_set.name} at {accuracy:g}: {', '.join(missing)}")
        begin = time.monotonic()
        child = subprocess.Popen([str(self.program.path), *self.command(task_set, accuracy, missing), *self.threads()], cwd=self.program.root,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            status = self.wait(child, task_set, methods)
        finally:
            if child.poll() is None:
                end(child)
            self.take(task_set, methods)
        if status != 0:
            raise CallFailed(f"tune of {task_set.name} ended with {status}; the same command goes on")
        self.say(f"{task_set.name} at {accuracy:g}: {time.monotonic() - begin:.0f} s")

    def threads(self):
        return ["-t", str(self.options.threads)] if self.options.threads else []

    def wait(self, child, task_set, methods):
        """Its status; what it finds is taken as it comes."""
        while True:
            try:
                return child.wait(self.options.poll)
            except subprocess.TimeoutExpired:
                self.take(task_set, methods)

    def take(self, task_set, methods):
        """What the profile says, as far as it goes."""
        path = pathlib.Path(self.program.root) / self.profile_path(task_set)
        if not path.exists():
            return
        profile = json.loads(path.read_text(encoding="utf-8"))
        points = {point["kv"]: point for point in profile["points"]}
        baseline = profile["points"][0] if profile["points"] else None
        if baseline is None:
            return
        goals = [{**goal, "baseline": score["value"], "standard_error": score["standard_error"]}
                 for goal, score in zip(profile["goals"], baseline["scores"])]
        if task_set.name not in self.book.sets:
            self.book.sets[task_set.name] = {"title": task_set.title, "run": Store.number(self.book.runs, self.facts),
                                             "command": self.program.shown(self.command(task_set, 0.99, ["{kv}"]))}
            if self.options.basis:
                self.book.sets[task_set.name]["command"] = self.book.sets[task_set.name]["command"].replace(self.options.basis, "BASIS")
        self.book.sets[task_set.name] |= {"goals": [{key: goal[key] for key in ("name", "baseline", "standard_error")} for goal in goals],
                                          "points": len(profile["points"])}
        for target in profile["targets"]:
            for found in target["methods"]:
                if found["name"] not in methods or self.book.found(task_set.name, target["accuracy"], found["name"]) is not None:
                    continue
                self.keep(task_set, target["accuracy"], found, points)
        self.book.save()

    def keep(self, task_set, accuracy, found, points):
        kv = found["kv"] or ""
        row = {"set": task_set.name, "accuracy": accuracy, "method": found["name"], "kv": kv}
        if kv:
            point = points[kv]
            row |= {"kv_fraction": point["kv_fraction"], "kept": point["accuracy"], "scores": [score["value"] for score in point["scores"]]}
        self.book.add("caches", row, self.facts)

    def inspect(self, caches):
        """The ranks of those that have a basis."""
        for kv in dict.fromkeys(caches):
            if kv in self.book.ranks or not kv.startswith(BASES):
                continue
            command = ["inspect", *self.options.model_arguments, "-c", str(self.options.context), "--kv", kv, "--json"]
            report = json.loads(self.program.output(command))
            if "basis" in report:
                self.book.ranks[kv] = rank_facts(report)
                self.book.save()
                self.say(f"ranks of {kv}")

