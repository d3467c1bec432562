#!/usr/bin/env python3
"""Generates text with a compressed cache.

usage: generate.py MODEL [CACHE [PROMPT]]
    generate.py models/lathe-nano 'lathe(ratio=4)' 'It was a dark'
"""

import sys

import kvlathe


def main(model: str, kv: str = "lathe(ratio=4)", prompt: str = "It was a dark") -> None:
    with kvlathe.LLM(model, kv=[kv, "none"]) as llm:
        params = kvlathe.SamplingParams(temperature=0, max_tokens=32)

        # A batch: all prompts are computed together.
        for output in llm.generate([prompt, "The doctor said"], params):
            print(f"{output.prompt}{output.text}")

        # What a long prompt's cache takes. Of a short one most is a block of 64 positions that is not full.
        output = llm.generate(prompt + " and stormy night." * 150, params)[0]
        print(f"the cache of {len(output.prompt_token_ids)} tokens took {output.kv_fraction:.1%} of 16 bits")

        # As it comes, with the uncompressed cache.
        print(prompt, end="")
        for piece in llm.stream(prompt, params, kv="none"):
            print(piece, end="", flush=True)
        print()

        # Three answers that are drawn, each token with its log-probability.
        drawn = kvlathe.SamplingParams(n=3, temperature=0.8, seed=1, max_tokens=12, logprobs=0)
        for answer in llm.generate(prompt, drawn)[0].outputs:
            print(f"{answer.cumulative_logprob:8.2f} {answer.text!r}")

        # A session goes on behind what it has read and written.
        with llm.session() as session:
            for part in (prompt, " In the morning"):
                print(part + llm.generate(part, params, session=session)[0].text)


if __name__ == "__main__":
    main(*sys.argv[1:])
