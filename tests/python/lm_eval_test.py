#!/usr/bin/env python3
"""kvlathe in lm-evaluation-harness, in process: the harness' own tasks and evaluator on a file of questions give the
log-likelihoods, picks, accuracies and texts that `kvlathe eval` gives on the same file, with and without a cache.

usage: lm_eval_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_harness_"))
# Nothing is looked for on the network, and what the harness keeps lies in a folder of the test's own.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=str(FOLDER / "home"), TQDM_DISABLE="1")
try:
    import lm_eval
    from lm_eval.api.instance import Instance
    from lm_eval.tasks import TaskManager
except ImportError as error:
    print(f"lm-evaluation-harness is not there ({error})")
    sys.exit(77)

import kvlathe
import kvlathe.lm_eval

KVLATHE, MODEL = (pathlib.Path(argument) for argument in sys.argv[1:3])
SMOLLM2 = MODEL.parent / "fetched" / "smollm2.gguf"
LATHE = "lathe(ratio=4)"
CHOICES = [" see the horse", " know her", " go to the door", " speak of it"]
# As the harness' own tasks have it: choices without the space before them, which is no character of theirs in acc_norm.
CHOICE_TASK = """
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
TEXT_TASK = """
task: kvlathe_texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{reference}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 24, do_sample: false}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""


def write_task(name, template, lines):
    """A file of questions that both programs read, and the harness' task of it."""
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / f"{name}.yaml").write_text(template.format(file=file))
    return file


def prompts(n, n_characters):
    """Beginnings of one text, long enough that a cache has sealed blocks behind them."""
    text = (MODEL / "sample.txt").read_text()
    return [text[200 * i : 200 * i + n_characters + 7 * i].rsplit(" ", 1)[0] + f" . He said {i} times that he could not"
            for i in range(n)]


def predict(model, file, *arguments):
    """The row and the predictions of `kvlathe eval`."""
    predictions = FOLDER / "predictions.jsonl"
    done = subprocess.run([KVLATHE, "eval", "-m", model, "--task", file, "--predictions", predictions, "--json",
                           *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout), [json.loads(line) for line in predictions.read_text().splitlines()]


def request(kind, *arguments):
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


class HarnessCase(unittest.TestCase):
    def run_harness(self, task, **arguments):
        """The row and the samples, in the order of the file."""
        results = lm_eval.simple_evaluate(
            model="kvlathe", model_args=arguments, tasks=[task], bootstrap_iters=0,
            task_manager=TaskManager(include_path=str(FOLDER), include_defaults=False))
        samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
        return results["results"][task], samples, results["config"]


class ChoicesTest(HarnessCase):
    def assert_agree(self, model, kv, n, n_characters, **arguments):
        file = write_task("kvlathe_choices", CHOICE_TASK, [
            {"prompt": prompt, "choices": CHOICES, "reference": CHOICES[i % 4]}
            for i, prompt in enumerate(prompts(n, n_characters))])
        ours, lines = predict(model, file, "--kv", kv, *(["-c", str(arguments["max_length"])] if arguments else []))
        theirs, samples, config = self.run_harness("kvlathe_choices", pretrained=str(model), kv=kv, **arguments)
        self.assertEqual(config["kv_resolved"], ours["kv_resolved"])
        self.assertEqual(theirs["acc,none"], ours["acc"])
        self.assertEqual(theirs["acc_norm,none"], ours["acc_norm"])
        largest = 0.0
        for line, sample in zip(lines, samples, strict=True):
            self.assertEqual(sample["arguments"][0][0] if isinstance(sample["arguments"], list)
                             else sample["arguments"]["gen_args_0"]["arg_0"], line["prompt"])
            for expected, response in zip(line["loglikelihoods"], sample["resps"], strict=True):
                largest = max(largest, abs(expected - float(response[0][0])))
        self.assertLessEqual(largest, 1e-4)
        return lines

    def test_same_as_eval_without_a_cache(self):
        self.assert_agree(MODEL, "none", 12, 900)

    def test_same_as_eval_with_lathe(self):
        lathe = self.assert_agree(MODEL, LATHE, 12, 900)
        none = self.assert_agree(MODEL, "none", 12, 900)
        # The cache was at work: it moved the log-likelihoods.
        self.assertNotEqual([line["loglikelihoods"] for line in lathe], [line["loglikelihoods"] for line in none])

    @unittest.skipUnless(SMOLLM2.exists(), "models/fetched/smollm2.gguf is not there")
    def test_same_as_eval_on_smollm2(self):
        self.assert_agree(SMOLLM2, LATHE, 4, 1200, max_length=2048)

    def test_batches_change_nothing(self):
        file = write_task("kvlathe_choices", CHOICE_TASK, [
            {"prompt": prompt, "choices": CHOICES, "reference": CHOICES[0]} for prompt in prompts(3, 300)])
        self.assertTrue(file.exists())
        rows = [self.run_harness("kvlathe_choices", pretrained=str(MODEL), batch_size=size)[1] for size in (1, 3, "auto")]
        for row in rows[1:]:
            for one, other in zip(rows[0], row, strict=True):
                for a, b in zip(one["resps"], other["resps"], strict=True):
                    self.assertAlmostEqual(float(a[0][0]), float(b[0][0]), delta=1e-4)


class TextsTest(HarnessCase):
    def test_generated_texts_are_those_of_eval(self):
        lines = [{"prompt": prompt, "reference": " see the horse and the house, and the garden", "stop": "."}
                 for prompt in prompts(6, 700)]
        file = write_task("kvlathe_texts", TEXT_TASK, lines)
        for kv in ("none", LATHE):
            _, ours = predict(MODEL, file, "--kv", kv)
            _, samples, _ = self.run_harness("kvlathe_texts", pretrained=str(MODEL), kv=kv)
            for line, sample in zip(ours, samples, strict=True):
                theirs = sample["resps"][0][0]
                # They differ in how many tokens they may have where no full stop comes.
                n = min(len(theirs), len(line["output"]))
                self.assertEqual(theirs[:n], line["output"][:n])
                self.assertGreater(n, 0)
                self.assertNotIn(".", theirs)


class ModelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lm = kvlathe.lm_eval.KvlatheLM(str(MODEL), max_length=256)
        cls.addClassCleanup(cls.lm.llm.close)

    def test_settings_of_generation(self):
        text = "There was a man in the house and he"
        greedy, long, drawn, again = self.lm.generate_until([
            request("generate_until", text, {"until": ["\n\n"], "max_gen_toks": 4, "temperature": 0.0}),
            request("generate_until", text, {"max_new_tokens": 8}),
            request("generate_until", text, {"until": "\n\n", "max_gen_toks": 8, "do_sample": True, "temperature": 1.5,
                                             "top_k": 50, "seed": 3}),
            request("generate_until", text, {"until": "\n\n", "max_gen_toks": 8, "do_sample": True, "temperature": 1.5,
                                             "top_k": 50, "seed": 3})])
        self.assertEqual(len(self.lm.tok_encode(text + greedy)) - len(self.lm.tok_encode(text)), 4)
        self.assertTrue(long.startswith(greedy))
        self.assertEqual(drawn, again)
        self.assertNotEqual(drawn, long)
        own = self.lm.llm.generate(text, kvlathe.SamplingParams(temperature=0, max_tokens=8))[0]
        self.assertEqual(long, own.outputs[0].text)

    def test_texts_end_before_the_first_stop(self):
        text = "There was a man in the house and he"
        whole = self.lm.generate_until([request("generate_until", text, {"max_gen_toks": 16})])[0]
        stop = whole.split()[2]
        cut = self.lm.generate_until([request("generate_until", text, {"until": [stop, ""], "max_gen_toks": 16})])[0]
        self.assertEqual(cut, whole[: whole.index(stop)])

    def test_unknown_settings_are_refused(self):
        with self.assertRaisesRegex(ValueError, "num_beams"):
            self.lm.generate_until([request("generate_until", "a", {"num_beams": 4})])
        with self.assertRaisesRegex(ValueError, "batch_size"):
            kvlathe.lm_eval.KvlatheLM(str(MODEL), batch_size=0)

    def test_rolling_windows_predict_every_token_once(self):
        text = (MODEL / "sample.txt").read_text()[:3000]
        tokens = self.lm.tok_encode(text, add_special_tokens=False)
        self.assertGreater(len(tokens), 2 * 256)
        rolled = self.lm.loglikelihood_rolling([request("loglikelihood_rolling", text)])[0]
        # By hand: a first window of 255 tokens behind BOS, then whole windows of 255, of which the last looks back as
        # far as it can.
        expected, begin = 0.0, 0
        while begin < len(tokens):
            end = min(begin + 255, len(tokens))
            context = ([self.lm.prefix_token_id] + tokens)[max(0, end - 255) : begin + 1]
            expected += self.lm.llm.score([context], [tokens[begin:end]])[0].logprob
            begin = end
        self.assertAlmostEqual(rolled, expected, delta=1e-3)
        # A short text is one window.
        short = self.lm.loglikelihood_rolling([request("loglikelihood_rolling", "the house and the garden")])[0]
        ids = self.lm.tok_encode("the house and the garden", add_special_tokens=False)
        self.assertAlmostEqual(short, self.lm.llm.score([[self.lm.prefix_token_id]], [ids])[0].logprob, delta=1e-4)

    def test_log_likelihoods_are_whole(self):
        pairs = [("the house and the", " garden"), ("", "the house"), ("the house and the", " horse")]
        scores = self.lm.loglikelihood([request("loglikelihood", *pair) for pair in pairs])
        for (context, continuation), (log_likelihood, is_greedy) in zip(pairs, scores, strict=True):
            whole = self.lm.tok_encode(context + continuation)
            n = len(self.lm.tok_encode(context)) or 1
            score = self.lm.llm.score([whole[:n]], [whole[n:]])[0]
            self.assertAlmostEqual(log_likelihood, score.logprob, delta=1e-4)
            self.assertIs(is_greedy, score.is_greedy)

    def test_contexts_that_are_too_long_lose_their_beginning(self):
        words = " the house" * 400
        (long, _), = self.lm.loglikelihood([request("loglikelihood", words, " and the garden")])
        ids = self.lm.tok_encode(words + " and the garden")
        n = len(ids) - len(self.lm.tok_encode(words))
        self.assertAlmostEqual(long, self.lm.llm.score([ids[-256:-n]], [ids[-n:]])[0].logprob, delta=1e-4)
        with self.assertRaisesRegex(ValueError, "no room"):
            self.lm.loglikelihood([request("loglikelihood", "a", words)])

    def test_arguments_as_a_string(self):
        lm = kvlathe.lm_eval.KvlatheLM.create_from_arg_string(
            f"pretrained={MODEL},kv=kivi(bits=4,group=64),max_length=128", {"batch_size": 2, "device": None})
        self.addCleanup(lm.llm.close)
        self.assertEqual((lm.max_length, lm.batch_size), (128, 2))
        self.assertIn("bits=4", lm.get_model_info()["kv_resolved"])
        self.assertLess(lm.get_model_info()["kv_fraction"], 0.5)

    @unittest.skipUnless(SMOLLM2.exists(), "models/fetched/smollm2.gguf is not there")
    def test_chat_templates(self):
        lm = kvlathe.lm_eval.KvlatheLM(str(SMOLLM2), max_length=512)
        self.addCleanup(lm.llm.close)
        question = [{"role": "user", "content": "What is the capital of France?"}]
        text = lm.apply_chat_template(question)
        self.assertIn("<|im_start|>user\nWhat is the capital of France?<|im_end|>", text)
        self.assertTrue(text.endswith("<|im_start|>assistant\n"))
        begun = lm.apply_chat_template(question + [{"role": "assistant", "content": "It is"}], add_generation_prompt=False)
        self.assertEqual(begun, text + "It is")
        # The harness gives the text back, and it is what a conversation reads.
        answer, = lm.generate_until([request("generate_until", text, {"max_gen_toks": 12})])
        chat = lm.llm.chat(question, kvlathe.SamplingParams(temperature=0, max_tokens=12))[0]
        self.assertEqual(lm.tok_encode(text), chat.prompt_token_ids)
        self.assertEqual(answer, chat.outputs[0].text)
        self.assertIn("im_start", lm.chat_template(True))
        self.assertIsNone(lm.chat_template(False))
        self.assertIn("smollm2", lm.tokenizer_name)


class CommandTest(unittest.TestCase):
    def test_the_harness_own_command(self):
        write_task("kvlathe_choices", CHOICE_TASK, [
            {"prompt": prompt, "choices": CHOICES, "reference": CHOICES[i % 4]} for i, prompt in enumerate(prompts(4, 300))])
        done = subprocess.run(
            [sys.executable, "-m", "kvlathe.lm_eval", "--model", "kvlathe", "--model_args",
             f"pretrained={MODEL},kv=kivi(bits=4,group=64)", "--tasks", "kvlathe_choices", "--include_path", FOLDER,
             "--output_path", FOLDER / "out"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("kvlathe_choices", done.stdout)
        results = json.loads(next((FOLDER / "out").rglob("results_*.json")).read_text())
        self.assertIn("acc,none", results["results"]["kvlathe_choices"])
        self.assertIn("group=64", results["config"]["kv_resolved"])

    def test_the_example(self):
        example = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python" / "lm_eval_task.py"
        done = subprocess.run([sys.executable, "-B", example, MODEL, LATHE], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        none, lathe = done.stdout.splitlines()[-2:]
        self.assertRegex(none, r"none +100\.0% of 16 bits, accuracy \d\.\d\d")
        self.assertRegex(lathe, r"lathe\(ratio=4\) +2\d\.\d% of 16 bits, accuracy \d\.\d\d")


if __name__ == "__main__":
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    try:
        unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
