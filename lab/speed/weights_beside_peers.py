#!/usr/bin/env python3
"""Decoding and prompts with weights in blocks, kvlathe and llama-bench in turns on the same files.

  lab/speed/weights_beside_peers.py --kvlathe build/release/bin/kvlathe --llama-bench .../llama-bench --rounds 5 \\
      --model models/fetched/smollm2.gguf:512:64 --model models/fetched/qwen2.5-coder-1.5b.gguf:256:32 \\
      --depth 4096 --out docs/speed/weights.json

A model is FILE:PROMPT TOKENS:GENERATED TOKENS. llama-bench runs with flash attention on and off, at --depth also with
caches of q8_0 and with keys of q8_0 alone. Every round runs every test of both programs once; the file has the
tokens per second of each round, and the measured read bandwidth.
"""

import argparse
import json
import pathlib
import subprocess
import sys

# Name, and what llama-bench is told; those beyond the first two at depth alone.
LLAMA_CACHES = [("fa", ["-fa", "1"]), ("no fa", ["-fa", "0"]), ("fa, q8_0", ["-fa", "1", "-ctk", "q8_0", "-ctv", "q8_0"]),
                ("no fa, keys q8_0", ["-fa", "0", "-ctk", "q8_0"])]
KVLATHE_CACHES = ["none", "kivi(bits=4,group=64)", "kivi(bits=2,group=64)"]


def output_of(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr.decode()}")
    return json.loads(done.stdout)


def kvlathe_speed(options, model, test, kv):
    command = [options.kvlathe, "bench", "model", "-m", model, "-t", str(options.threads), "-r", "1", "--kv", kv,
               "--no-bandwidth", "--json", *test]
    row = output_of(command)["rows"][0]
    return row["avg_ts"], row["weight_bytes"], row["kv_bytes"]


def llama_speed(options, model, test, flags):
    command = [options.llama_bench, "-m", model, "-t", str(options.threads), "-r", "1", "-o", "json", *flags, *test]
    return output_of(command)[0]["avg_ts"]


def tests_of(n_prompt, n_generated, depth):
    yield f"pp{n_prompt}", ["-p", str(n_prompt), "-n", "0"], False
    yield f"tg{n_generated}", ["-p", "0", "-n", str(n_generated)], False
    if depth:
        yield f"tg{n_generated} at {depth}", ["-p", "0", "-n", str(n_generated), "-d", str(depth)], True


def run_round(options, rows):
    for model in options.model:
        path, n_prompt, n_generated = model.split(":")
        name = pathlib.Path(path).stem
        for test, arguments, is_deep in tests_of(n_prompt, n_generated, options.depth):
            for kv in KVLATHE_CACHES if is_deep else KVLATHE_CACHES[:1]:
                speed, weight_bytes, kv_bytes = kvlathe_speed(options, path, arguments, kv)
                row = rows.setdefault((name, test, "kvlathe", kv), [])
                row.append(speed)
                print(f"{name} {test} kvlathe {kv}: {speed:.1f} ({weight_bytes} bytes of weights, {kv_bytes} of the cache)",
                      flush=True)
            for cache, flags in LLAMA_CACHES if is_deep else LLAMA_CACHES[:2]:
                speed = llama_speed(options, path, arguments, flags)
                rows.setdefault((name, test, "llama.cpp", cache), []).append(speed)
                print(f"{name} {test} llama.cpp {cache}: {speed:.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvlathe", required=True)
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--machine", default="", help="what stands in the file as the machine")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    rows = {}
    for _ in range(options.rounds):
        run_round(options, rows)
        listed = [{"model": model, "test": test, "program": program, "cache": cache, "tokens_per_s": speeds}
                  for (model, test, program, cache), speeds in rows.items()]
        text = json.dumps({"machine": options.machine, "threads": options.threads, "rows": listed}, indent=1)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
