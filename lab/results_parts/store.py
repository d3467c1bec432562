"""The results of one model: a JSON file with a record a line, which is whole at every moment.

What many records share is written once and referred to: the command of a part (with {kv} where the spec stands), where
and when it ran, and the specs with all their keys. The file is
  {"model": {...}, "files": {path: command}, "runs": {id: {...}}, "commands": {id: text}, "resolved": {kv: spec},
   "records": [{"part", "kv", "command", "run", "seconds", "result" or "failed"}, ...]}
"""

import json
import os
import pathlib
import shlex


class ResultsError(Exception):
    """A request that cannot be met, in one line."""


def rounded(value):
    """`value` with every number at 6 significant digits."""
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value]


def write_whole(path, text):
    """Readers see the old file or the new one, also after a power failure."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def one_line(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class Store:
    """`path` need not exist."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.model, self.files, self.resolved, self.runs, self.commands = {}, {}, {}, {}, {}
        self.records = {}  # by (part, kv)
        if self.path.exists():
            self.read()

    def read(self):
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            self.model, self.files, self.resolved = data["model"], data["files"], data["resolved"]
            self.runs, self.commands = data["runs"], data["commands"]
            self.records = {(record["part"], record["kv"]): record for record in data["records"]}
        except (ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"{self.path}: not results of this script ({error!r}); move it away") from None

    def command_of(self, record):
        return self.commands[record["command"]].replace("{kv}", shlex.quote(record["kv"]))

    def run_of(self, record):
        return self.runs[record["run"]]

    def result(self, part, kv):
        """The row of the program, or None where there is none (yet)."""
        return self.records.get((part, kv), {}).get("result")

    def resolved_of(self, part, kv):
        row = self.result(part, kv) or {}
        return row.get("kv_resolved", self.resolved.get(kv, kv))

    def measured(self, part):
        """The specs that have a result in `part`."""
        return [kv for (of, kv), record in self.records.items() if of == part and "result" in record]

    def failures(self):
        return [record for record in self.records.values() if "failed" in record]

    def is_done(self, part, kv, template, accepts_dirty):
        """Whether there is a result of this command, of sources that are in a commit unless others are good enough."""
        record = self.records.get((part, kv))
        return (bool(record) and "result" in record and self.commands[record["command"]] == template
                and (accepts_dirty or not self.run_of(record).get("dirty")))

    def add(self, part, kv, template, run, seconds, result=None, failed=None):
        record = {"part": part, "kv": kv, "command": self.number(self.commands, template),
                  "run": self.number(self.runs, run), "seconds": float(f"{seconds:.3g}")}
        if failed is not None:
            record["failed"] = failed
        else:
            row = rounded({key: value for key, value in result.items() if key != "kv"})
            if row.get("kv_resolved") == self.resolved.setdefault(kv, row.get("kv_resolved")):
                row.pop("kv_resolved", None)
            record["result"] = row
        self.records[part, kv] = record

    def drop(self, part, kv):
        self.records.pop((part, kv), None)

    @staticmethod
    def number(table, value):
        for key, known in table.items():
            if known == value:
                return key
        key = str(max(map(int, table), default=0) + 1)
        table[key] = value
        return key

    def text(self):
        records = [self.records[key] for key in sorted(self.records)]
        commands = {record["command"] for record in records}
        runs = {record["run"] for record in records}
        tables = {"files": dict(sorted(self.files.items())),
                  "runs": {key: run for key, run in self.runs.items() if key in runs},
                  "commands": {key: command for key, command in self.commands.items() if key in commands},
                  "resolved": dict(sorted(self.resolved.items()))}
        lines = ["{", f'"model": {one_line(self.model)},']
        for name, table in tables.items():
            lines += [f'"{name}": {{', *commas(f"{one_line(key)}: {one_line(value)}" for key, value in table.items()), "},"]
        lines += ['"records": [', *commas(one_line(record) for record in records), "]", "}"]
        return "\n".join(lines) + "\n"

    def save(self):
        write_whole(self.path, self.text())


def commas(lines):
    lines = list(lines)
    return [line + "," for line in lines[:-1]] + lines[-1:]
