"""What kvlathe eval --task says of a cache against the uncompressed model: rows, predictions, baselines."""

import json
import math

import cli_support
from cli_support import MODEL, CommandLineCase

ENDINGS = [" see the horse", " know her", " go to the door", " speak of it"]
CHANGES = ("flips", "score_change", "score_change_stderr")


class TaskCase(CommandLineCase):
    def write_choices(self, n=6, name="choices.jsonl"):
        lines = [{"prompt": f"He said {i} times that in the morning, when he had seen the house and the "
                            f"garden, he {'did' if i % 2 else 'could'} not",
                  "reference": ENDINGS[i % 4], "choices": ENDINGS} for i in range(n)]
        path = self.folder / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def predict(self, task, *arguments):
        path = self.folder / "predictions.jsonl"
        answer = self.json_of("eval", "-m", MODEL, "--task", task, "--predictions", path, *arguments)
        return answer, [json.loads(line) for line in path.read_text().splitlines()]

    def assert_baseline_refused(self, needle, task, baseline, *arguments):
        path = self.folder / "baseline.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in baseline))
        status = self.assert_refused(2, needle, "eval", "-m", MODEL, "--task", task, "--baseline", path, *arguments)
        self.assertIn("baseline.jsonl", status)

    def test_choices_have_both_accuracies_and_their_predictions(self):
        row, lines = self.predict(self.write_choices())
        self.assertEqual([line["index"] for line in lines], list(range(6)))
        right = {"picked": 0, "picked_norm": 0}
        for line in lines:
            sums = line["loglikelihoods"]
            norms = [value / (len(choice) - 1) for value, choice in zip(sums, ENDINGS)]
            self.assertEqual(line["picked"], sums.index(max(sums)))
            self.assertEqual(line["picked_norm"], norms.index(max(norms)))
            self.assertEqual(line["output"], ENDINGS[line["picked"]])
            for field in right:
                right[field] += ENDINGS[line[field]] == line["reference"]
        for field, share in (("acc", right["picked"] / 6), ("acc_norm", right["picked_norm"] / 6)):
            self.assertAlmostEqual(row[field], share)
            self.assertAlmostEqual(row[field + "_stderr"], math.sqrt(share * (1 - share) / 5))
        self.assertEqual(row["score"], row["acc"])
        self.assertEqual([row[field] for field in CHANGES], [0, 0, 0])
        self.assertIs(row["decides"], row["score"] - 0.25 >= 3 * row["score_stderr"])

    def test_a_call_with_none_is_its_own_baseline_and_so_is_a_file(self):
        task = self.write_choices(12)
        kvs = ["--kv", "kivi(bits=2,run=64)", "--kv", "pool(n=8,sink=0)", "--kv", "none"]
        together, lines = self.predict(task, *kvs)
        none = [line for line in lines if line["kv"] == "none"]
        self.assertEqual(len(none), 12)
        self.assertEqual([together["rows"][2][field] for field in CHANGES], [0, 0, 0])
        for row in together["rows"]:
            changed = [line for line in lines if line["kv"] == row["kv"]]
            differences = [b["score"] - a["score"] for a, b in zip(none, changed)]
            mean = sum(differences) / 12
            self.assertAlmostEqual(row["score_change"], mean)
            self.assertAlmostEqual(row["score_change_stderr"],
                                   math.sqrt(sum((d - mean) ** 2 for d in differences) / 11 / 12))
            self.assertAlmostEqual(row["flips"], sum(a["picked"] != b["picked"] for a, b in zip(none, changed)) / 12)
        self.assertGreater(together["rows"][1]["flips"], 0)
        # The file has lines of other caches too, which are passed over.
        baseline = self.folder / "predictions.jsonl"
        apart = self.json_of("eval", "-m", MODEL, "--task", task, *kvs[:4], "--baseline", baseline)
        self.assertEqual(apart["rows"], together["rows"][:2])
        # Without a baseline nothing is said of changes.
        alone = self.json_of("eval", "-m", MODEL, "--task", task, *kvs[:2])
        self.assertEqual([alone[field] for field in CHANGES], [None, None, None])
        header = self.run_verb("eval", "-m", MODEL, "--task", task, *kvs[:2]).stdout.decode().splitlines()[0]
        self.assertNotIn("flips", header)
        table = self.run_verb("eval", "-m", MODEL, "--task", task, *kvs[:2], "--baseline", baseline).stdout.decode()
        header, line = table.splitlines()
        self.assertRegex(header, "score +change from none +flips +chance")
        self.assertRegex(line, r"[+-]\d\.\d{4} \+- +\d\.\d{4} +\d+\.\d%")
        self.assertEqual(len(header), len(line))

    def test_other_texts_are_flips(self):
        arguments = ["--task-length", 200, "--task-count", 3]
        row, none = self.predict("summary", *arguments, "--kv", "none")
        self.assertNotIn("acc", row)
        self.assertNotIn("picked", none[0])
        baseline = self.folder / "none.jsonl"
        (self.folder / "predictions.jsonl").rename(baseline)
        row, pooled = self.predict("summary", *arguments, "--kv", "pool(n=5)", "--baseline", baseline)
        self.assertAlmostEqual(row["flips"], sum(a["output"] != b["output"] for a, b in zip(none, pooled)) / 3)
        self.assertGreater(row["flips"], 0)
        alike = [next((i for i, (x, y) in enumerate(zip(a["tokens"], b["tokens"])) if x != y),
                      min(len(a["tokens"]), len(b["tokens"]))) for a, b in zip(none, pooled)]
        self.assertAlmostEqual(row["parted_at"], sum(alike) / 3)
        self.assertEqual(row["parted_at_median"], sorted(alike)[1])
        self.assertAlmostEqual(row["never_parted_share"], sum(a["tokens"] == b["tokens"] for a, b in zip(none, pooled)) / 3)
        # Files from before predictions had tokens say nothing of it.
        for line in none:
            del line["tokens"]
        baseline.write_text("".join(json.dumps(line) + "\n" for line in none))
        old = self.json_of("eval", "-m", MODEL, "--task", "summary", *arguments, "--kv", "pool(n=5)", "--baseline", baseline)
        self.assertEqual(old["flips"], row["flips"])
        self.assertIsNone(old["parted_at"])

    def test_big_bench_hard_is_asked_with_its_chains(self):
        set_file, shots = self.folder / "counting.json", self.folder / "counting.txt"
        set_file.write_text(json.dumps({"examples": [{"input": f"{i} hens. How many?", "target": str(i)} for i in range(2, 5)]}))
        shots.write_text("canary\n-----\nCount.\n\nQ: A hen?\nA: Let's think step by step.\nSo the answer is 1.\n")
        row, lines = self.predict(f"bbh:{set_file}", "--shots", shots, "--task-count", 2)
        self.assertEqual((row["task"], row["metric"], row["shots"], row["count"]), ("bbh/counting", "stated_answer", 1, 2))
        self.assertTrue(lines[1]["prompt"].endswith("answer is 1.\n\nQ: 3 hens. How many?\nA: Let's think step by step.\n"))
        self.assertEqual(lines[1]["reference"], "So the answer is 3.")
        row, lines = self.predict(f"bbh:{set_file}", "--shots", 2, "--task-count", 1)
        self.assertEqual(lines[0]["prompt"].count("So the answer is "), 2)
        run = ["eval", "-m", MODEL, "--task", f"bbh:{set_file}"]
        self.assert_refused(2, "counting.json: has no line", *run, "--shots", set_file)
        self.assert_refused(2, "2 shots at most", *run, "--shots", 3)
        set_file.write_text('{"examples": [{"input": "a"}]}')
        self.assert_refused(2, "counting.json: example 1 has no \"target\"", *run)

    def test_longbench_loses_the_middle_of_a_long_prompt(self):
        path = self.folder / "news.jsonl"
        words = " ".join(f"word{i}" for i in range(3000))
        line = {"input": "", "context": words, "answers": ["It was so."], "dataset": "multi_news"}
        path.write_text(json.dumps(line) + "\n")
        for length, most in ((["--task-length", 300], 300), ([], 1024 - 512)):
            row, lines = self.predict(f"longbench:{path}", *length)
            self.assertEqual((row["task"], row["metric"], row["length"]),
                             ("longbench/multi_news", "rouge_l_union", length[1] if length else None))
            self.assertLessEqual(row["prompt_tokens"], most)
            self.assertGreater(row["prompt_tokens"], most - 40)
            self.assertTrue(lines[0]["prompt"].startswith("You are given several news passages."))
            self.assertTrue(lines[0]["prompt"].endswith("Summary:"))
        run = ["eval", "-m", MODEL, "--task", f"longbench:{path}"]
        self.assert_refused(2, "takes no shots", *run, "--shots", 1)
        path.write_text(json.dumps({**line, "dataset": "lcc"}))
        self.assert_refused(2, "news.jsonl:1: LongBench's set \"lcc\" is not scored here; there are multi_news", *run)

    def test_baselines_that_do_not_fit(self):
        task = self.write_choices()
        _, lines = self.predict(task, "--kv", "none", "--kv", "int8")
        none, int8 = lines[:6], lines[6:]
        self.assert_baseline_refused("baseline.jsonl:5: has example 4, but the task runs 4", task, none,
                                     "--task-count", 4)
        self.assert_baseline_refused("has 4 predictions of task choices, but the task runs 6", task, none[:4])
        self.assert_baseline_refused("no predictions of task choices with --kv none (6 of others)", task, int8)
        self.assert_baseline_refused("no predictions of task other", self.write_choices(6, "other.jsonl"), none)
        self.assert_baseline_refused("baseline.jsonl:7: has example 0 once more", task, none + none)
        self.assert_baseline_refused("baseline.jsonl:2: ", task, [none[0], {"task": "choices"}])
        changed = self.write_choices()
        changed.write_text(changed.read_text().replace("He said 2", "She said 2"))
        self.assert_baseline_refused("baseline.jsonl:3: example 2 is another than this run's", changed, none)
        run = ["eval", "-m", MODEL, "--task", task, "--baseline"]
        self.assert_refused(1, "nowhere.jsonl", *run, self.folder / "nowhere.jsonl")
        self.assert_refused(2, "--task", "eval", "-m", MODEL, "--baseline", task, "--kl", task)
        damaged = self.folder / "damaged.jsonl"
        damaged.write_text("{\n")
        self.assert_refused(2, "damaged.jsonl:1: ", *run, damaged)


if __name__ == "__main__":
    cli_support.main()
