"""The results of one model: docs/results/accuracy/NAME.json, whole at every moment, a record a line.

{"model": {...}, "runs": {id: {...}}, "sets": {name: {"title", "command", "goals"}},
 "caches": [{"set", "accuracy", "method", "kv", "kv_fraction", "kept", "cut", "ranks"}], "times": [...], "steps": [...]}
A cache has `kv` "" where nothing of the method keeps the accuracy. A row of times is one cache in one process beside `none`.
"""

import json
import pathlib

from results_parts.store import ResultsError, Store, commas, one_line, rounded, write_whole

LISTS = {"caches": ("set", "accuracy", "method"), "times": ("round", "schedule", "kv", "test"), "steps": ("kv",)}


class Book:
    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.model, self.runs, self.sets, self.ranks = {}, {}, {}, {}
        self.lists = {name: {} for name in LISTS}
        if self.path.exists():
            self.read()

    def read(self):
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            self.model, self.runs, self.sets, self.ranks = data["model"], data["runs"], data["sets"], data["ranks"]
            for name, key in LISTS.items():
                self.lists[name] = {tuple(row[of] for of in key): row for row in data[name]}
        except (ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"{self.path}: not results of this script ({error!r}); move it away") from None

    def add(self, name, row, facts):
        row = {**rounded(row), "run": Store.number(self.runs, facts)}
        self.lists[name][tuple(row[of] for of in LISTS[name])] = row

    def rows(self, name, **wanted):
        return [row for row in self.lists[name].values() if all(row[key] == value for key, value in wanted.items())]

    def found(self, task_set, accuracy, method):
        """The smallest cache of a method, "" where nothing keeps the accuracy, None where it was not searched."""
        row = self.lists["caches"].get((task_set, accuracy, method))
        return None if row is None else row["kv"]

    def text(self):
        used = {row["run"] for rows in self.lists.values() for row in rows.values()} | {of["run"] for of in self.sets.values()}
        lines = ["{", f'"model": {one_line(self.model)},', f'"runs": {one_line({key: run for key, run in self.runs.items() if key in used})},']
        for name, table in (("sets", self.sets), ("ranks", self.ranks)):
            lines += [f'"{name}": {{', *commas(f"{one_line(key)}: {one_line(rounded(value))}" for key, value in table.items()), "},"]
        for name in LISTS:
            lines += [f'"{name}": [', *commas(one_line(row) for row in self.lists[name].values()), "]" + ("," if name != list(LISTS)[-1] else "")]
        return "\n".join([*lines, "}"]) + "\n"

    def save(self):
        write_whole(self.path, self.text())
