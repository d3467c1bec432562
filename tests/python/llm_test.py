#!/usr/bin/env python3
"""kvlathe.LLM gives what the program gives, and an exception for what it is given wrong.

usage: llm_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import warnings

import kvlathe
from kvlathe import LLM, SamplingParams, errors

KVLATHE, MODEL = (pathlib.Path(argument) for argument in sys.argv[1:3])
SPECS = ["none", "kivi(bits=4)", "lathe(ratio=4)", "snapkv(budget=50)"]
PROMPTS = ["It was a dark", "Once upon a time there was", "The doctor said"]
GREEDY = SamplingParams(temperature=0, max_tokens=24)


def program(*arguments: str) -> dict:
    """What the program prints with --json."""
    done = subprocess.run(
        [KVLATHE, *arguments, "--json"], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


class WithModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        warnings.simplefilter("ignore", kvlathe.KvlatheWarning)  # small models lose much
        cls.llm = LLM(MODEL, kv=SPECS, n_threads=2)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.llm.close()


class GenerateTest(WithModel):
    def test_greedy_text_is_the_programs(self):
        for kv in SPECS:
            with self.subTest(kv):
                said = program("run", "-m", str(MODEL), "--kv", kv, "-p", PROMPTS[0], "-n", "24", "--temp", "0", "-t", "2")
                output = self.llm.generate(PROMPTS[0], GREEDY, kv=kv)[0]
                self.assertEqual(output.text, said["text"])
                self.assertEqual(output.outputs[0].token_ids, said["ids"])
                self.assertEqual(output.kv_bytes, said["kv_bytes"])
                self.assertEqual(output.outputs[0].finish_reason, said["finish_reason"])

    def test_a_batch_gives_what_its_prompts_give_alone(self):
        with LLM(MODEL, deterministic=True, n_threads=2) as llm:
            alone = [llm.generate(prompt, GREEDY)[0].text for prompt in PROMPTS]
            together = llm.generate(PROMPTS, GREEDY)
            self.assertEqual([output.text for output in together], alone)
            self.assertEqual([output.prompt for output in together], PROMPTS)
            by_ids = llm.generate([llm.encode(prompt) for prompt in PROMPTS], [GREEDY] * 3)
            self.assertEqual([output.text for output in by_ids], alone)

    def test_streams_give_the_same_text_in_pieces(self):
        whole = self.llm.generate(PROMPTS[1], GREEDY)[0]
        with self.llm.stream(PROMPTS[1], GREEDY) as stream:
            pieces = list(stream)
        self.assertGreater(len(pieces), 3)
        self.assertEqual("".join(map(str, pieces)), whole.text)
        self.assertEqual(sum((piece.token_ids for piece in pieces), []), whole.outputs[0].token_ids)
        self.assertEqual(pieces[-1].finish_reason, "length")
        self.assertEqual(stream.output.text, whole.text)
        last = {}
        for output in self.llm.generate(PROMPTS, GREEDY, stream=True):
            last[output.prompt] = output
        self.assertEqual(set(last), set(PROMPTS))
        self.assertTrue(all(output.finished for output in last.values()))
        self.assertEqual(last[PROMPTS[1]].text, whole.text)

    def test_a_stream_that_is_closed_ends_its_request(self):
        stream = self.llm.stream(PROMPTS[0], SamplingParams(temperature=0, max_tokens=500))
        next(stream)
        stream.close()
        self.assertEqual(list(stream), [])
        self.assertIsNone(stream.output)
        self.assertEqual(len(self.llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].token_ids), 24)

    def test_stops_end_the_text(self):
        whole = self.llm.generate(PROMPTS[0], GREEDY)[0]
        stop = whole.text[10:14]
        output = self.llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=24, stop=stop))[0].outputs[0]
        self.assertEqual(output.text, whole.text[: whole.text.index(stop)])
        self.assertEqual((output.finish_reason, output.stop_reason), ("stop", stop))
        with_stop = SamplingParams(temperature=0, max_tokens=24, stop=[stop], include_stop_str_in_output=True)
        self.assertEqual(self.llm.generate(PROMPTS[0], with_stop)[0].text, output.text + stop)
        token = whole.outputs[0].token_ids[5]
        ended = self.llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=24, stop_token_ids=[token]))[0].outputs[0]
        first = whole.outputs[0].token_ids.index(token)
        self.assertEqual(ended.token_ids, whole.outputs[0].token_ids[:first])
        self.assertEqual((ended.finish_reason, ended.stop_reason), ("stop", token))

    def test_log_probabilities_have_the_shape_of_vllm(self):
        asked = SamplingParams(temperature=0, max_tokens=6, logprobs=3, prompt_logprobs=1)
        output = self.llm.generate(PROMPTS[0], asked)[0]
        answer = output.outputs[0]
        self.assertEqual(len(answer.logprobs), 6)
        for token, of in zip(answer.token_ids, answer.logprobs):
            self.assertEqual(of[token].rank, 1)  # greedy
            self.assertEqual(len(of), 3)
            self.assertEqual(max(of.values(), key=lambda one: one.logprob), of[token])
            self.assertEqual(sorted(one.rank for one in of.values()), [1, 2, 3])
        self.assertAlmostEqual(answer.cumulative_logprob, sum(of[t].logprob for t, of in zip(answer.token_ids, answer.logprobs)))
        self.assertIsNone(output.prompt_logprobs[0])
        self.assertEqual(len(output.prompt_logprobs), len(output.prompt_token_ids))
        for token, of in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:]):
            better = [other for other in of if other != token]
            self.assertEqual(of[token].rank == 1, not better)
        self.assertEqual("".join(of[t].decoded_token for t, of in zip(answer.token_ids, answer.logprobs)), answer.text)

    def test_seeds_decide_what_is_drawn(self):
        drawn = SamplingParams(temperature=1, max_tokens=12, n=3, seed=5)
        first = self.llm.generate(PROMPTS[0], drawn)[0]
        self.assertEqual([output.index for output in first.outputs], [0, 1, 2])
        self.assertGreater(len({output.text for output in first.outputs}), 1)
        again = self.llm.generate(PROMPTS[0], drawn)[0]
        self.assertEqual([o.text for o in again.outputs], [o.text for o in first.outputs])
        one = self.llm.generate(PROMPTS[0], SamplingParams(temperature=1, max_tokens=12, seed=6))[0]
        self.assertEqual(one.text, first.outputs[1].text)
        said = program("run", "-m", str(MODEL), "-p", PROMPTS[0], "-n", "12", "--temp", "1", "--top-p", "1", "--repeat-penalty", "1", "-s", "5", "-t", "2")
        self.assertEqual(said["text"], first.outputs[0].text)

    def test_defaults_are_the_models(self):
        given = json.loads((MODEL / "generation_config.json").read_text()) if (MODEL / "generation_config.json").exists() else {}
        params = self.llm.get_default_sampling_params()
        self.assertEqual(params.temperature, given.get("temperature", 0.8))
        self.assertEqual(params.top_p, given.get("top_p", 1.0))
        self.assertEqual(params.max_tokens, 16)
        self.assertEqual(len(self.llm.generate(PROMPTS[0])[0].outputs[0].token_ids), 16)

    def test_max_tokens_none_goes_to_the_end_of_the_context(self):
        with LLM(MODEL, max_model_len=40, n_threads=2) as llm:
            self.assertEqual(llm.max_model_len, 40)
            output = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))[0]
            self.assertEqual(len(output.prompt_token_ids) + len(output.outputs[0].token_ids), 40)
            with self.assertRaisesRegex(errors.InvalidArgumentError, "context is 40"):
                llm.generate([[5] * 40], GREEDY)

    def test_drafts_change_no_text(self):
        text = "a b c d a b c d a b c d a b"
        with LLM(MODEL, deterministic=True, n_threads=2) as llm:
            plain = llm.generate(text, GREEDY)[0]
            drafted = llm.generate(text, SamplingParams(temperature=0, max_tokens=24, draft="ngram"))[0]
        self.assertEqual(drafted.text, plain.text)
        self.assertGreater(drafted.metrics.n_drafted, 0)

    def test_prefixes_are_read_once(self):
        prompt = [7 + i % 90 for i in range(200)]
        with LLM(MODEL, prefix_bytes=1 << 24, n_threads=2) as llm:
            first = llm.generate(prompt, GREEDY)[0]
            second = llm.generate([*prompt, 9, 11], GREEDY)[0]
        self.assertEqual(first.metrics.n_cached_tokens, 0)
        self.assertGreater(second.metrics.n_cached_tokens, 100)

    def test_hidden_states_have_a_row_for_each_token(self):
        ids = self.llm.encode(PROMPTS[0])
        rows = self.llm.embed_tokens([ids, PROMPTS[1]])
        self.assertEqual(rows[0].shape[0], len(ids))
        mean = self.llm.embed_tokens(PROMPTS[0], pooling="mean")[0]
        last = self.llm.embed_tokens(PROMPTS[0], pooling="last")[0]
        self.assertLess(abs(rows[0].mean(axis=0) - mean).max(), 1e-4)
        self.assertEqual((rows[0][-1] == last).all(), True)


class SessionTest(WithModel):
    def test_a_session_goes_on_as_the_programs_does(self):
        for kv in ("none", "kivi(bits=4)"):
            with self.subTest(kv), tempfile.TemporaryDirectory() as folder:
                mine, theirs = f"{folder}/mine.kvl", f"{folder}/theirs.kvl"
                common = ["run", "-m", str(MODEL), "--kv", kv, "-n", "24", "--temp", "0", "-t", "2", "--repeat-penalty", "1"]
                first = program(*common, "-p", PROMPTS[0], "--save-session", theirs)
                second = program(*common, "-p", " and then", "--load-session", theirs)
                with self.llm.session(kv) as session:
                    self.assertEqual(self.llm.generate(PROMPTS[0], GREEDY, session=session)[0].text, first["text"])
                    session.save(mine)
                    output = self.llm.generate(" and then", GREEDY, session=session)[0]
                    self.assertEqual(output.text, second["text"])
                    self.assertGreater(output.metrics.n_cached_tokens, 24)
                    self.assertEqual(session.kv_bytes, second["kv_bytes"])
                loaded = self.llm.load_session(theirs, kv)
                self.assertEqual(self.llm.generate(" and then", GREEDY, session=loaded)[0].text, second["text"])
                self.assertEqual(program(*common, "-p", " and then", "--load-session", mine)["text"], second["text"])
                with self.assertRaisesRegex(errors.DataLossError, "not with"):
                    self.llm.load_session(mine, "snapkv(budget=50)")

    def test_a_refused_request_leaves_the_session(self):
        session = self.llm.session()
        self.llm.generate(PROMPTS[0], GREEDY, session=session)
        before = session.token_ids
        with self.assertRaises(errors.InvalidArgumentError):
            self.llm.generate([10**6], GREEDY, session=session)
        self.assertEqual(session.token_ids, before)
        self.assertEqual(len(self.llm.generate(" and", GREEDY, session=session)[0].outputs[0].token_ids), 24)
        session.close()
        with self.assertRaises(errors.FailedPreconditionError):
            self.llm.generate(" and", GREEDY, session=session)


class ChatTest(unittest.TestCase):
    def test_a_conversation_is_rendered_and_goes_on(self):
        with LLM(MODEL, chat_template="chatml", n_threads=2) as llm, llm.session() as session:
            messages = [{"role": "user", "content": "Hi"}]
            first = llm.chat(messages, GREEDY, session=session)[0]
            self.assertIn("Hi", first.prompt)
            again = llm.chat(messages, GREEDY)[0]
            self.assertEqual(again.text, first.text)
            self.assertEqual([o.text for o in llm.chat([messages, messages], GREEDY)], [first.text] * 2)
            with self.assertRaisesRegex(errors.InvalidArgumentError, "role"):
                llm.chat([{"content": "x"}])
        with LLM(MODEL, n_threads=2) as llm:
            with self.assertRaisesRegex(errors.InvalidArgumentError, "chat_template"):
                llm.chat([{"role": "user", "content": "Hi"}])


class MeasureTest(WithModel):
    def test_compare_is_the_programs(self):
        with tempfile.TemporaryDirectory() as folder, LLM(MODEL, max_model_len=256, n_threads=2) as llm:
            text = pathlib.Path(folder) / "text.txt"
            text.write_text((MODEL / "sample.txt").read_text()[:6000])
            kvs = [word for kv in SPECS for word in ("--kv", kv)]
            said = program("compare", "-m", str(MODEL), "-c", "256", "--text", str(text), "--no-latency", "-t", "2", *kvs)
            comparison = llm.compare(SPECS, text)
            self.assertEqual(comparison.n_tokens, said["tokens"])
            for row, expected in zip(comparison, said["rows"], strict=True):
                self.assertEqual(dict(row.fields), expected)
            short = llm.compare(["kivi(bits=4)"], "It was a dark night and nothing moved. " * 60, n_windows=1)
            self.assertEqual(short.n_tokens, 128)
            self.assertEqual(short["kivi(bits=4)"].kv, "kivi(bits=4)")
            self.assertIn("kivi(bits=4)", str(short))

    def test_scores_are_those_of_eval(self):
        task = {"prompt": "It was a dark", "choices": [" night", " and stormy day"], "reference": " night", "metric": "choice"}
        with tempfile.TemporaryDirectory() as folder:
            file, predictions = pathlib.Path(folder) / "task.jsonl", pathlib.Path(folder) / "predictions.jsonl"
            file.write_text(json.dumps(task) + "\n")
            prompt = self.llm.encode(task["prompt"])
            continuations = [self.llm.encode(task["prompt"] + choice)[len(prompt) :] for choice in task["choices"]]
            for kv in SPECS:
                with self.subTest(kv):
                    program("eval", "-m", str(MODEL), "--kv", kv, "--task", str(file), "--predictions", str(predictions), "-t", "2")
                    expected = json.loads(predictions.read_text())["loglikelihoods"]
                    scores = self.llm.score([prompt, prompt], continuations, kv=kv)
                    self.assertEqual([score.logprob for score in scores], expected)
                    self.assertEqual([len(score.logprobs) for score in scores], [len(c) for c in continuations])
        ids = self.llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].token_ids
        self.assertTrue(self.llm.score([prompt], [ids[:4]])[0].is_greedy)
        self.assertFalse(self.llm.score([prompt], [[*ids[:3], (ids[3] + 1) % 4096]])[0].is_greedy)

    def test_costs_and_inspection_are_the_programs(self):
        for kv in ("kivi(bits=4)", "lathe(ratio=4)"):
            with self.subTest(kv):
                said = program("inspect", "-m", str(MODEL), "--kv", kv, "-t", "2")
                found = self.llm.inspect(kv)
                said.pop("subspace_overlap", None)
                self.assertEqual(found, said)
                cost = self.llm.cost(kv)
                self.assertEqual(cost.resolved, said["kv_resolved"])
                self.assertEqual(cost.predicted_kl, said.get("predicted_kl"))
        self.assertGreater(len(found["basis"]["heads"][0]["singular_values_qk"]), 8)

    def test_a_calibration_is_one_that_the_program_reads(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text.txt"
            text.write_text("The ship sailed at dawn, and nobody on the shore said a word. " * 200)
            self.llm.calibrate(text, f"{folder}/basis.safetensors")
            said = program("inspect", "-m", str(MODEL), "--kv", "lathe(ratio=4)", "--basis", f"{folder}/basis.safetensors")
            self.assertEqual(said["kv"], "lathe(ratio=4)")

    def test_tune_finds_a_cache(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text.txt"
            text.write_text("The ship sailed at dawn, and nobody on the shore said a word. " * 60)
            profile = self.llm.tune(["kivi"], accuracy=0.9, text=text, output=f"{folder}/profile.json")
            self.assertEqual(profile.points[0]["kv"], "none")
            self.assertIn("kivi", profile.best(0.9))
            kept = json.loads(pathlib.Path(profile.path).read_text())
            self.assertEqual(kept["points"], profile.points)

    def test_frames_where_pandas_is(self):
        try:
            import pandas
        except ImportError:
            self.skipTest("no pandas")
        frame = self.llm.compare(["none", "kivi(bits=4)"], window_tokens=64, n_windows=2).to_frame()
        self.assertIsInstance(frame, pandas.DataFrame)
        self.assertEqual(list(frame["kv"]), ["none", "kivi(bits=4)"])


class ExampleTest(unittest.TestCase):
    def test_examples_run(self):
        folder = pathlib.Path(__file__).resolve().parent.parent.parent / "examples/python"
        for name, expected in {"generate.py": "It was a dark", "compare.py": "the smallest with a KL below 0.1"}.items():
            with self.subTest(name):
                done = subprocess.run([sys.executable, folder / name, MODEL], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn(expected, done.stdout)


class InterruptTest(WithModel):
    def interrupted(self, work) -> float:
        """Seconds from a signal to KeyboardInterrupt in the middle of some work."""
        sent = []

        def send() -> None:
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.3, send)
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            while True:
                work()
        return time.monotonic() - sent[0]

    def test_ctrl_c_ends_what_is_computed_and_the_model_goes_on(self):
        long = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text.txt"
            text.write_text("The ship sailed at dawn, and nobody on the shore said a word. " * 3000)
            works = {
                "generate": lambda: self.llm.generate(PROMPTS * 4, long),
                "stream": lambda: list(self.llm.stream(PROMPTS[0], long)),
                "score": lambda: self.llm.score([[5, 6]] * 400, [[i % 90 + 7, 8, 9] for i in range(400)]),
                "compare": lambda: self.llm.compare(SPECS, text),
                "calibrate": lambda: self.llm.calibrate(text, f"{folder}/basis.safetensors"),
            }
            for name, work in works.items():
                with self.subTest(name):
                    self.assertLess(self.interrupted(work), 5)
                    self.assertEqual(len(self.llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].token_ids), 24)

    def test_ctrl_c_ends_a_calibration_that_opening_takes(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=folder):
            self.assertLess(self.interrupted(lambda: LLM(MODEL, kv="lathe(ratio=3)", n_threads=2).close()), 5)
            self.assertEqual(list(pathlib.Path(folder).rglob("basis*.safetensors")), [])

    def test_other_threads_run_meanwhile_and_join_the_batch(self):
        long = SamplingParams(temperature=0, max_tokens=800, ignore_eos=True)
        done = []
        threads = [threading.Thread(target=lambda: done.append(self.llm.generate(PROMPTS[0], GREEDY)[0].text)) for _ in range(3)]
        stream = self.llm.stream(PROMPTS[1], long)
        next(stream)
        ticks = 0
        for thread in threads:
            thread.start()
        for _ in stream:
            ticks += 1
        for thread in threads:
            thread.join()
        self.assertEqual(done, [self.llm.generate(PROMPTS[0], GREEDY)[0].text] * 3)
        self.assertGreater(ticks, 100)


class EndTest(WithModel):
    def test_a_refused_batch_leaves_nothing_running(self):
        with self.assertRaisesRegex(errors.InvalidArgumentError, r"prompts\[1\]: token id"):
            self.llm.generate([[5, 6], [10**6]], GREEDY)
        self.assertEqual(len(self.llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].token_ids), 24)

    def test_a_closed_model_says_so(self):
        llm = LLM(MODEL, n_threads=2)
        session = llm.session()
        llm.generate(PROMPTS[0], GREEDY, session=session)
        stream = llm.stream(PROMPTS[0], SamplingParams(max_tokens=300))
        next(stream)
        llm.close()
        llm.close()
        calls = [
            lambda: llm.generate("a", GREEDY),
            lambda: next(stream),
            lambda: llm.encode("a"),
            lambda: llm.score([[5]], [[6]]),
            lambda: llm.compare(["none"]),
            lambda: llm.cost("none"),
            lambda: llm.session(),
            lambda: llm.max_model_len,
            lambda: session.token_ids,
            lambda: session.save("/tmp/session"),
        ]
        for call in calls:
            with self.assertRaises(errors.FailedPreconditionError):
                call()
        stream.close()
        session.close()

    def test_a_child_of_fork_gets_an_exception(self):
        self.llm.generate(PROMPTS[0], GREEDY)
        child = os.fork()
        if child == 0:
            try:
                self.llm.generate(PROMPTS[0], GREEDY)
                os._exit(1)
            except errors.FailedPreconditionError:
                os._exit(0)
            except BaseException:
                os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(len(self.llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].token_ids), 24)

    def test_nothing_is_printed(self):
        script = f"""if True:
            import kvlathe
            llm = kvlathe.LLM({str(MODEL)!r}, kv="kivi(bits=4)", n_threads=2)
            llm.generate(["a", "b"]); llm.compare(["kivi(bits=4)"], n_windows=1)
            kept = llm.stream("a")
            next(kept)
        """
        said = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
        self.assertEqual((said.returncode, said.stdout, said.stderr), (0, "", ""))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
