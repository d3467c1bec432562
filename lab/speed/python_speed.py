#!/usr/bin/env python3
"""How fast kvlathe.LLM decodes beside `kvlathe bench model`, in one run: both alternate, round by round, on the same
model, cache and depth, and the medians of the rounds are compared.

usage: python_speed.py KVLATHE MODEL [--kv SPEC]... [-d DEPTH] [-n TOKENS] [-t THREADS] [--parallel N] [--rounds R]

Of LLM the tokens after the first count, over the time of the whole call less that to the first token, so what Python
adds at the end counts too. With several sequences it is the time from the last of their first tokens. Streams, which
take a turn of Python for each token, are a column of their own.
"""
import argparse
import json
import random
import statistics
import subprocess
import time

import kvlathe


def benched(arguments: argparse.Namespace, kv: str) -> float:
    """Tokens per second of all sequences, as the program measures them."""
    command = [arguments.program, "bench", "model", "-m", arguments.model, "--kv", kv, "-p", "0"]
    command += ["-n", str(arguments.tokens), "-d", str(arguments.depth), "--parallel", str(arguments.parallel)]
    command += ["-r", "1", "--no-bandwidth", "--json", *(["-t", str(arguments.threads)] if arguments.threads else [])]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return float(next(row["avg_ts"] for row in said["rows"] if row["n_gen"] > 0))


def prompts(llm: kvlathe.LLM, arguments: argparse.Namespace) -> list[list[int]]:
    """Random tokens, other ones for each sequence."""
    draw = random.Random(1)
    return [
        [draw.randrange(16, llm.vocab_size - 16) for _ in range(max(1, arguments.depth))] for _ in range(arguments.parallel)
    ]


def generated(llm: kvlathe.LLM, arguments: argparse.Namespace, kv: str) -> float:
    """The same of LLM.generate."""
    params = kvlathe.SamplingParams(temperature=0, max_tokens=arguments.tokens, ignore_eos=True)
    began = time.perf_counter()
    outputs = llm.generate(prompts(llm, arguments), params, kv=kv)
    seconds = time.perf_counter() - began - max(output.metrics.first_token_seconds for output in outputs)
    return float(arguments.parallel * (arguments.tokens - 1) / seconds)


def streamed(llm: kvlathe.LLM, arguments: argparse.Namespace, kv: str) -> float:
    """The same of LLM.stream, one sequence."""
    params = kvlathe.SamplingParams(temperature=0, max_tokens=arguments.tokens, ignore_eos=True)
    began = time.perf_counter()
    with llm.stream(prompts(llm, arguments)[0], params, kv=kv) as stream:
        for _ in stream:
            pass
    assert stream.output is not None
    seconds = time.perf_counter() - began - stream.output.metrics.first_token_seconds
    return float((arguments.tokens - 1) / seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--kv", action="append")
    parser.add_argument("-d", "--depth", type=int, default=512)
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    kvs = arguments.kv or ["none", "lathe(ratio=8)"]
    print("| cache | bench model | generate | ratio | stream |\n|---|---|---|---|---|")
    with kvlathe.LLM(arguments.model, kv=kvs, n_threads=arguments.threads) as llm:
        for kv in kvs:
            generated(llm, arguments, kv)  # warms up, as the bench does
            rounds = [
                (benched(arguments, kv), generated(llm, arguments, kv), streamed(llm, arguments, kv))
                for _ in range(arguments.rounds)
            ]
            bench, whole, pieces = (statistics.median(of) for of in zip(*rounds, strict=True))
            ratio = statistics.median(of[1] / of[0] for of in rounds)
            print(f"| {kv} | {bench:.1f} | {whole:.1f} | {ratio:.3f} | {pieces:.1f} |", flush=True)


if __name__ == "__main__":
    main()
