"""What the OpenAI Python package makes of `kvlathe serve`: scripts/real_clients.sh installs it and calls
openai_client_test.py KVLATHE MODEL_DIRECTORY [TEST...]."""

import asyncio
import json
import pathlib
import sys
import time
import unittest

import openai

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from server_under_test import Server  # noqa: E402

KVLATHE, MODEL = sys.argv[1], pathlib.Path(sys.argv[2])
KEY = "sk-of-the-test"
PROMPT = "Once upon a time there was"
LEVEL = "kivi(bits=4)"
MESSAGES = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "What is in the garden?"}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string", "enum": ["Paris", "Oslo"]}},
                   "required": ["place"], "additionalProperties": False}}}


def serve(*arguments):
    return Server(KVLATHE, "-m", MODEL, "-a", "nano", "--chat-template", "hermes", "--kv", "none", "--kv", LEVEL,
                  "--deterministic", *arguments, environment={"KVLATHE_API_KEY": KEY})


def client_of(server, kind=openai.OpenAI, **options):
    return kind(base_url=f"http://127.0.0.1:{server.port}/v1", **{"api_key": KEY, "max_retries": 0, **options})


def greedy(**changes):
    return {"model": "nano", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, **changes}


class OneServerCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve()
        cls.client = client_of(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()


class EmbeddingsTest(OneServerCase):
    def test_both_encodings_are_the_same_numbers(self):
        # The package asks for base64 unless it is told otherwise.
        two = self.client.embeddings.create(model="nano", input=["rain", "snow"])
        plain = self.client.embeddings.create(model="nano", input="rain", encoding_format="float")
        self.assertEqual(len(two.data), 2)
        for a, b in zip(two.data[0].embedding, plain.data[0].embedding, strict=True):
            self.assertAlmostEqual(a, b, places=6)
        with self.assertRaises(openai.BadRequestError):
            self.client.embeddings.create(model="nano", input="rain", dimensions=8)


class CompletionsTest(OneServerCase):
    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["nano"])
        self.assertEqual(self.client.models.retrieve("nano").object, "model")

    def test_a_whole_answer_and_its_stream_are_the_same(self):
        whole = self.client.completions.create(**greedy())
        self.assertEqual(whole.usage.completion_tokens, 24)
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + 24)
        self.assertEqual(whole.choices[0].finish_reason, "length")
        chunks = list(self.client.completions.create(**greedy(), stream=True, stream_options={"include_usage": True}))
        self.assertGreater(len(chunks), 5)
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks if chunk.choices), whole.choices[0].text)
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage, whole.usage)

    def test_n_seed_and_stop(self):
        draws = [self.client.completions.create(**greedy(temperature=1, seed=7, n=3)) for _ in range(2)]
        texts = [[choice.text for choice in draw.choices] for draw in draws]
        self.assertEqual(texts[0], texts[1])
        self.assertEqual([choice.index for choice in draws[0].choices], [0, 1, 2])
        self.assertGreater(len(set(texts[0])), 1)
        text = self.client.completions.create(**greedy()).choices[0].text
        stop = text.split()[2]
        stopped = self.client.completions.create(**greedy(stop=[stop])).choices[0]
        self.assertEqual((stopped.text, stopped.finish_reason), (text[: text.index(stop)], "stop"))

    def test_lists_of_prompts_and_of_token_ids(self):
        answer = self.client.completions.create(**greedy(prompt=[PROMPT, "In the morning"]))
        alone = [self.client.completions.create(**greedy(prompt=prompt)).choices[0].text
                 for prompt in (PROMPT, "In the morning")]
        self.assertEqual([choice.text for choice in answer.choices], alone)
        _, tokens, _ = self.server.post("/tokenize", {"prompt": PROMPT}, Authorization=f"Bearer {KEY}")
        by_ids = self.client.completions.create(**greedy(prompt=tokens["tokens"]))
        self.assertEqual(by_ids.choices[0].text, alone[0])

    def test_logprobs_of_an_answer_and_of_an_echoed_prompt(self):
        choice = self.client.completions.create(**greedy(logprobs=3)).choices[0]
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        for own, top in zip(choice.logprobs.token_logprobs, choice.logprobs.top_logprobs):
            self.assertGreaterEqual(len(top), 3)
            self.assertLessEqual(own, 0)
            self.assertAlmostEqual(own, max(top.values()), places=5)  # greedy
        echoed = self.client.completions.create(**greedy(logprobs=1, echo=True, max_tokens=1)).choices[0]
        self.assertTrue(echoed.text.startswith(PROMPT), echoed.text)
        self.assertIsNone(echoed.logprobs.token_logprobs[0])
        self.assertEqual(len(echoed.logprobs.token_logprobs), len(echoed.logprobs.tokens))
        self.assertEqual(len(echoed.logprobs.text_offset), len(echoed.logprobs.tokens))

    def test_a_level_by_name(self):
        fine = self.client.completions.create(**greedy(max_tokens=200))
        coarse = self.client.completions.create(**greedy(max_tokens=200), extra_body={"kv": LEVEL})
        self.assertEqual(coarse.usage.completion_tokens, fine.usage.completion_tokens)
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client.completions.create(**greedy(), extra_body={"kv": "kivi(bits=2)"})
        self.assertEqual(refused.exception.param, "kv")

    def test_a_stream_that_is_closed_frees_its_blocks(self):
        stream = self.client.completions.create(**greedy(max_tokens=900), stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        deadline = time.monotonic() + 20
        while self.blocks_in_use():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def blocks_in_use(self):
        text = self.server.ask("GET", "/metrics", headers={"Authorization": f"Bearer {KEY}"})[1]
        [line] = [line for line in text.splitlines() if line.startswith("kvlathe_kv_bytes_used")]
        return float(line.rpartition(" ")[2])

    def test_64_at_once(self):
        prompts = [f"{PROMPT} {number}" for number in range(64)]

        async def ask_all():
            async with client_of(self.server, openai.AsyncOpenAI) as client:
                return await asyncio.gather(*(client.completions.create(**greedy(prompt=prompt)) for prompt in prompts))

        answers = asyncio.run(ask_all())
        for prompt, answer in list(zip(prompts, answers))[::9]:
            alone = self.client.completions.create(**greedy(prompt=prompt))
            self.assertEqual(answer.choices[0].text, alone.choices[0].text)
        self.assertEqual({answer.usage.completion_tokens for answer in answers}, {24})

    def test_64_streams_at_once(self):
        async def read(client, number):
            stream = await client.completions.create(**greedy(prompt=f"{PROMPT} {number}"), stream=True)
            return [chunk.choices[0].finish_reason async for chunk in stream if chunk.choices][-1]

        async def read_all():
            async with client_of(self.server, openai.AsyncOpenAI) as client:
                return await asyncio.gather(*(read(client, number) for number in range(64)))

        self.assertEqual(set(asyncio.run(read_all())), {"length"})


class ChatTest(OneServerCase):
    def create(self, **changes):
        try:
            return self.client.chat.completions.create(
                **{"model": "nano", "messages": MESSAGES, "max_completion_tokens": 20, "temperature": 0, **changes})
        except openai.BadRequestError as error:
            # Tools and grammars are an optional part, which is refused by name where it was left out.
            if error.param in changes and "this build has no grammars" in error.message:
                self.skipTest(error.message)
            raise

    def test_a_whole_answer_and_its_stream_are_the_same(self):
        whole = self.create()
        self.assertEqual(whole.choices[0].message.role, "assistant")
        self.assertLessEqual(whole.usage.completion_tokens, 20)
        chunks = list(self.create(stream=True, stream_options={"include_usage": True}))
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        self.assertEqual("".join(pieces), whole.choices[0].message.content)
        self.assertEqual(chunks[-1].usage, whole.usage)

    def test_logprobs(self):
        content = self.create(logprobs=True, top_logprobs=4).choices[0].logprobs.content
        self.assertEqual({len(token.top_logprobs) for token in content}, {4})
        for token in content:
            self.assertAlmostEqual(token.logprob, token.top_logprobs[0].logprob, places=5)
            self.assertIsInstance(token.bytes, list)

    def test_a_tool_that_must_be_called_is(self):
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            answer = self.create(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False, max_completion_tokens=200).choices[0]
            self.assertEqual(answer.finish_reason, "tool_calls")
            [call] = answer.message.tool_calls
            self.assertEqual(call.function.name, "get_weather")
            self.assertIn(json.loads(call.function.arguments)["place"], ("Paris", "Oslo"))
            # The answer of the tool goes on in the same conversation.
            turns = [*MESSAGES, answer.message.model_dump(exclude_none=True),
                     {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
            self.assertEqual(self.create(messages=turns, tools=[WEATHER]).choices[0].message.role, "assistant")

    def test_tool_calls_of_a_stream_add_up_to_the_whole(self):
        whole = self.create(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_completion_tokens=200).choices[0].message
        deltas = [call for chunk in self.create(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_completion_tokens=200, stream=True)
                  if chunk.choices for call in chunk.choices[0].delta.tool_calls or []]
        self.assertEqual({call.index for call in deltas}, {0})
        self.assertEqual(deltas[0].function.name, whole.tool_calls[0].function.name)
        self.assertEqual("".join(call.function.arguments or "" for call in deltas), whole.tool_calls[0].function.arguments)

    def test_an_answer_of_a_schema(self):
        schema = {"type": "object", "properties": {"colour": {"type": "string", "enum": ["red", "green"]},
                                                   "count": {"type": "integer", "minimum": 0, "maximum": 9}},
                  "required": ["colour", "count"], "additionalProperties": False}
        answer = self.create(max_completion_tokens=200, response_format={
            "type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": schema}}).choices[0]
        self.assertEqual(answer.finish_reason, "stop")
        thing = json.loads(answer.message.content)
        self.assertIn(thing["colour"], ("red", "green"))
        self.assertIn(thing["count"], range(10))


class ResponsesTest(OneServerCase):
    def test_a_whole_answer_and_its_stream_are_the_same(self):
        request = {"model": "nano", "input": "What is in the garden?", "max_output_tokens": 20, "temperature": 0,
                   "store": False}
        whole = self.client.responses.create(**request)
        self.assertIn(whole.status, ("completed", "incomplete"))
        self.assertTrue(whole.output_text)
        events = list(self.client.responses.create(**request, stream=True))
        self.assertEqual(events[0].type, "response.created")
        self.assertIn(events[-1].type, ("response.completed", "response.incomplete"))
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)
        self.assertEqual(events[-1].response.output_text, whole.output_text)
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))

    def test_stored_responses_are_refused_clearly(self):
        with self.assertRaises(openai.APIStatusError) as refused:
            self.client.responses.create(model="nano", input="Go on.", previous_response_id="resp_1")
        self.assertIn("previous_response_id", str(refused.exception))


class ErrorsTest(OneServerCase):
    def test_errors_are_those_that_the_package_has_classes_for(self):
        with self.assertRaises(openai.AuthenticationError):
            client_of(self.server, api_key="wrong").models.list()
        with self.assertRaises(openai.NotFoundError) as unknown:
            self.client.completions.create(**greedy(model="gpt-17"))
        self.assertIn("gpt-17", unknown.exception.message)
        with self.assertRaises(openai.BadRequestError) as wrong:
            self.client.completions.create(**greedy(max_tokens=-5))
        self.assertEqual(wrong.exception.param, "max_tokens")
        with self.assertRaises(openai.BadRequestError) as long:
            self.client.completions.create(**greedy(prompt=[5] * 5000))
        self.assertTrue(long.exception.message)
        with self.assertRaises(openai.APIStatusError) as absent:
            self.client.embeddings.create(model="nano", input="word")
        self.assertIn(absent.exception.status_code, (404, 501))

    def test_a_full_queue_is_429_with_retry_after_and_the_package_gets_through(self):
        async def ask_all(client):
            long = greedy(max_tokens=300)
            return await asyncio.gather(*(client.completions.create(**long, extra_body={"ignore_eos": True})
                                          for _ in range(8)), return_exceptions=True)

        async def both(server):
            async with client_of(server, openai.AsyncOpenAI) as client:
                impatient = await ask_all(client)
            async with client_of(server, openai.AsyncOpenAI, max_retries=20) as client:
                return impatient, await ask_all(client)

        with serve("--max-num-seqs", 1, "--max-waiting", 1) as server:
            impatient, patient = asyncio.run(both(server))
        refused = [error for error in impatient if isinstance(error, openai.RateLimitError)]
        self.assertGreater(len(refused), 0)
        for error in refused:
            self.assertGreaterEqual(int(error.response.headers["retry-after"]), 1)
        for answer in patient:
            self.assertNotIsInstance(answer, Exception)
            self.assertEqual(answer.usage.completion_tokens, 300)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
