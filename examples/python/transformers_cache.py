#!/usr/bin/env python3
"""Hugging Face transformers on a compressed cache: generates a text, and says what the cache took.

    transformers_cache.py MODEL CACHE PROMPT [TEXT]
    transformers_cache.py HuggingFaceTB/SmolLM2-135M 'kivi(bits=4)' 'It was a dark'
    transformers_cache.py HuggingFaceTB/SmolLM2-135M 'zack(rate=0.3)' 'It was a dark' share/calibration.txt

TEXT is what a method that learns from a model's queries, keys and values reads.
"""

import pathlib
import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

import kvlathe.hf


def main(name: str, spec: str, prompt: str, text: str | None = None) -> None:
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name).eval()
    statistics = None
    if text is not None:
        statistics = kvlathe.hf.calibrate(model, tokenizer, pathlib.Path(text).read_text(encoding="utf-8"))

    cache = kvlathe.hf.LatheCache(model, spec, basis=statistics)
    inputs = tokenizer(prompt, return_tensors="pt")
    answer = model.generate(**inputs, cache=cache, max_new_tokens=32, do_sample=False)
    print(tokenizer.decode(answer[0], skip_special_tokens=True))
    print(f"{cache.nbytes} bytes, {cache.fraction:.1%} of rows in 16 bits")

    # The same for every call within a context, also where others call generate.
    with kvlathe.hf.press(model, spec, basis=statistics) as pressed:
        again = model.generate(**inputs, max_new_tokens=32, do_sample=False)
    assert pressed.cache is not None and pressed.cache.nbytes == cache.nbytes
    assert again.equal(answer)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(f"usage: {sys.argv[0]} MODEL CACHE PROMPT [TEXT]")
    main(*sys.argv[1:])
