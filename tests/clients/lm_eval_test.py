"""lm-evaluation-harness's `local-completions` on `kvlathe serve` against `kvlathe eval --task` on the same file:
scripts/real_clients.sh installs it and calls lm_eval_test.py KVLATHE MODEL_DIRECTORY [TEST...]."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from server_under_test import Server  # noqa: E402

KVLATHE, MODEL = sys.argv[1], pathlib.Path(sys.argv[2])
CONTEXTS = ["He said {} times that in the morning, when he had seen the house and the garden, he could not",
            "There were {} men on the road, and each of them had come to", "She had {} reasons to think that he would"]
CHOICES = [" see the horse", " know her", " go to the door", " speak of it"]
# As the harness's own tasks have it: choices without the space before them, which is no character of theirs in acc_norm.
TASK = """
task: kvlathe_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{prompt}}}}"
doc_to_choice: "{{{{choices | map('trim') | list}}}}"
doc_to_target: "{{{{choices.index(reference)}}}}"
target_delimiter: " "
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""


class HarnessTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_harness_"))
        self.addCleanup(shutil.rmtree, self.folder)
        # The harness gives token ids without BOS, `kvlathe eval` the model's own beginning: the same where there is none.
        self.model = self.folder / "model"
        shutil.copytree(MODEL, self.model)
        settings = self.model / "tokenizer_config.json"
        settings.write_text(json.dumps(dict(json.loads(settings.read_text()), add_bos_token=False)))
        self.task = self.folder / "choices.jsonl"
        self.task.write_text("".join(
            json.dumps({"prompt": CONTEXTS[i % 3].format(i), "choices": CHOICES, "reference": CHOICES[i % 4]}) + "\n"
            for i in range(48)))
        (self.folder / "choices.yaml").write_text(TASK.format(file=self.task))

    def run_harness(self, port):
        arguments = ",".join((f"base_url=http://127.0.0.1:{port}/v1/completions", "model=nano", "tokenizer_backend=auto",
                              "num_concurrent=8", "max_length=1024"))
        done = subprocess.run(
            [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", arguments,
             "--tasks", "kvlathe_choices", "--include_path", self.folder, "--log_samples", "--output_path",
             self.folder / "out"],
            env=dict(os.environ, HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", HF_HOME=str(self.folder / "home")),
            capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-4000:])
        self.assertIn("Auto-detected remote tokenizer", done.stdout + done.stderr)
        [results] = (self.folder / "out").rglob("results_*.json")
        [samples] = (self.folder / "out").rglob("samples_*.jsonl")
        scores = json.loads(results.read_text())["results"]["kvlathe_choices"]
        lines = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda line: line["doc_id"])
        return scores, [[float(answer[0]) for answer in line["filtered_resps"]] for line in lines]

    def test_the_scores_are_those_of_eval(self):
        predictions = self.folder / "predictions.jsonl"
        done = subprocess.run([KVLATHE, "eval", "-m", self.model, "--dtype", "f32", "--task", self.task, "--kv", "none",
                               "--predictions", predictions, "--json"], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        ours = json.loads(done.stdout)
        ours_likelihoods = [json.loads(line)["loglikelihoods"] for line in predictions.read_text().splitlines()]
        with Server(KVLATHE, "-m", self.model, "-a", "nano", "--dtype", "f32", "--kv", "none") as server:
            scores, likelihoods = self.run_harness(server.port)
        self.assertEqual(len(likelihoods), 48)
        difference = max(abs(a - b) for own, other in zip(ours_likelihoods, likelihoods) for a, b in zip(own, other))
        self.assertLess(difference, 0.002)
        self.assertEqual(scores["acc,none"], ours["acc"])
        self.assertEqual(scores["acc_norm,none"], ours["acc_norm"])
        print(f"acc {ours['acc']}, acc_norm {ours['acc_norm']}; log-likelihoods differ by at most {difference:.6f}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
