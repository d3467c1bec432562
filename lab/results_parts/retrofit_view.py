"""Retrofitted models as the documents want them: docs/results/retrofit/*.json, written by lab/retrofit.py.

In a document `retrofit/NAME` stands for such a file. Its blocks are `all`, `trained` (the base, DMC, converted and pooled models), `untrained`
(methods that drop entries of the base), `variants`, `lengths` (of training), `on-the-way` (checkpoints of the control and of GQA), `composed` (with
quantizers, beside those alone), `kept` (the smallest that keep the tasks), `seeds` and `provenance`; of a file of speeds, `throughput` and
`provenance`. A figure is `retrofit/NAME text|TASK ROW FIELD`, with the blanks of ROW as hyphens and FIELD size, kl, bits or score.
"""

import json
import statistics

from retrofit_parts import plan, throughput

from .store import ResultsError


def mean_and_deviation(values, digits):
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


class RetrofitView:
    def __init__(self, path, name):
        self.name = name
        self.data = json.loads(path.read_text(encoding="utf-8"))
        self.rows = self.data.get("rows", {})
        self.throughput = self.data.get("throughput", [])

    def size(self, label):
        """Bytes a token over those of the uncompressed base."""
        base = "grouped base" if label.startswith("grouped") else "base"
        return self.rows[label]["text"]["kv_bytes_per_token"] / self.rows[base]["text"]["kv_bytes_per_token"]

    def blocks(self):
        subjects = [subject for subject in plan.subjects() if subject.label in self.rows]
        variants = {f"{run.name} 4" for run in (plan.SHORT_RUN, *plan.VARIANTS)}
        seeds = {subject.label for subject in subjects if " seed " in subject.label}
        dropping = {subject.label for subject in subjects if not subject.run and subject.kv != "none"} - set(plan.ALONE)
        composed = set(plan.ALONE) | {subject.label for subject in subjects if " + " in subject.label}
        steps = {subject.label for subject in subjects if subject.step}
        lengths = {"gqa 4 short", "control short"}
        others = variants | seeds | dropping | composed | steps | lengths
        return {"all": [subject.label for subject in subjects],
                "trained": [subject.label for subject in subjects if subject.label not in others],
                "untrained": ["base", *(subject.label for subject in subjects if subject.label in dropping)],
                "composed": ["base", *(subject.label for subject in subjects if subject.label in composed)],
                "variants": [subject.label for subject in subjects if subject.label in variants],
                "lengths": [label for label in ("control short", "control", "short 4", "dmc 4", "gqa 4 short", "gqa 4")
                            if label in self.rows],
                "on-the-way": [label for trained in ("control", "gqa 4")
                               for label in (*(s.label for s in subjects if s.step and s.label.startswith(trained)), trained)
                               if label in self.rows]}

    def block_lines(self, block):
        if block == "provenance":
            runs = {(run["commit"], run["date"], run["cores"], run["machine"], run["instructions"])
                    for run in (row["run"] for row in (*self.rows.values(), *self.throughput))}
            return [f"Commit {commit}, {date}: {cores} core{'s' if cores > 1 else ''} of {machine} ({instructions})."
                    for commit, date, cores, machine, instructions in sorted(runs)] + [""]
        if block == "throughput" and self.throughput:
            return throughput.table(self.throughput)
        if block == "seeds":
            return self.seed_lines()
        if block == "kept":
            return self.kept_lines()
        blocks = self.blocks()
        if block not in blocks:
            raise ResultsError(f"{self.name} has no block {block}; there are {', '.join([*blocks, 'seeds', 'provenance'])}")
        tasks = [task for task in plan.TASKS if any(task in self.rows[label]["tasks"] for label in blocks[block])]
        lines = ["| model | " + " | ".join(["size %", "KL", "bits/byte", *tasks]) + " |", "|---|" + "---:|" * (3 + len(tasks))]
        for label in blocks[block]:
            row = self.rows[label]
            cells = [f"{100 * self.size(label):.1f}", f"{row['text']['kl']:.4f}", f"{row['text']['bits_per_byte']:.4f}"]
            cells += [f"{100 * row['tasks'][task]['score']:.1f}" if task in row["tasks"] else "-" for task in tasks]
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
        return [*lines, ""]

    def seed_lines(self):
        """Mean and standard deviation over the seeds that are there."""
        lines = ["| model | seeds | KL | bits/byte | mean of the tasks, % |", "|---|---:|---:|---:|---:|"]
        for label in ("control short", "short 4", "gqa 4 short"):
            rows = [self.rows[name] for name in (label, *(f"{label} seed {seed}" for seed in plan.SEEDS[1:])) if name in self.rows]
            if not rows:
                continue
            scores = [statistics.mean(100 * task["score"] for task in row["tasks"].values()) for row in rows]
            lines.append(f"| {label} | {len(rows)} | {mean_and_deviation([row['text']['kl'] for row in rows], 4)} | "
                         f"{mean_and_deviation([row['text']['bits_per_byte'] for row in rows], 4)} | {mean_and_deviation(scores, 1)} |")
        return [*lines, ""]

    def has_all_tasks(self, label):
        return set(plan.TASKS) <= set(self.rows.get(label, {}).get("tasks", ()))

    def kept(self, label):
        """Mean over the tasks of a score over that of the uncompressed base, no task above 1."""
        base = "grouped base" if label.startswith("grouped") else "base"
        tasks, whole = self.rows[label]["tasks"], self.rows[base]["tasks"]
        return statistics.mean(min(1, tasks[task]["score"] / whole[task]["score"]) for task in plan.TASKS)

    def kept_lines(self):
        """Of each kind of cache the smallest one that keeps a share of the tasks."""
        measured = [subject for subject in plan.subjects() if self.has_all_tasks(subject.label)]
        kinds = {"lathe alone": lambda s: s.label.startswith("lathe"), "kivi alone": lambda s: s.label.startswith("kivi"),
                 "DMC alone": lambda s: s.run == "dmc" and s.kv == plan.DMC,
                 "DMC with kivi or lathe": lambda s: " + " in s.label,
                 "GQA": lambda s: s.label in ("gqa 2", "gqa 4"), "pooling, trained": lambda s: s.label.startswith("pool"),
                 "entries dropped": lambda s: s.label.split(" ")[0] in plan.DROPPING}
        lines = ["| caches | keep 99% of the tasks | times smaller | keep 95% | times smaller |", "|---|---|---:|---|---:|"]
        for kind, is_of in kinds.items():
            cells = []
            for share in (0.99, 0.95):
                fit = [s.label for s in measured if is_of(s) and self.kept(s.label) >= share]
                best = min(fit, key=self.size, default=None)
                cells += [f"`{best}`", f"{1 / self.size(best):.1f}"] if best else ["none measured", "-"]
            lines.append(f"| {kind} | " + " | ".join(cells) + " |")
        return [*lines, ""]

    def figure(self, part, label, field):
        label = {name.replace(" ", "-"): name for name in self.rows}.get(label, label)
        row = self.rows.get(label)
        if row is None or (part != "text" and part not in row["tasks"]):
            raise ResultsError(f"{self.name} has no result of {part} with {label}")
        texts = {"size": lambda: f"{100 * self.size(label):.1f}", "kl": lambda: f"{row['text']['kl']:.4f}",
                 "bits": lambda: f"{row['text']['bits_per_byte']:.4f}", "score": lambda: f"{100 * row['tasks'][part]['score']:.1f}"}
        if field not in texts or (field == "score") != (part != "text"):
            raise ResultsError(f"no field {field} of {part}; a text has size, kl and bits, a task score")
        return texts[field]()
