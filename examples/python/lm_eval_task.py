"""Asks a task of lm-evaluation-harness with two caches: lm_eval_task.py MODEL CACHE [QUESTIONS.jsonl]

    lm_eval_task.py models/lathe-nano 'lathe(ratio=4)'

Each line of the file is a question: {"prompt", "choices": [...], "answer": 0}. Without a file there are four of our own.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
from typing import Any

import kvlathe.lm_eval  # registers the model "kvlathe"
import lm_eval
from lm_eval.tasks import TaskManager

TASK = """
task: questions
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{prompt}}}}"
doc_to_choice: choices
doc_to_target: answer
"""
PROMPTS = [
    "The horse was tired, so he led it into the",
    "She opened the letter and began to",
    "In the morning the sun came up and the birds began to",
    "He closed the door of the house and walked down the",
]
CHOICES = [["stable", "teapot"], ["read", "boil"], ["sing", "cook"], ["road", "spoon"]]


def ask(model: str, kv: str, folder: pathlib.Path) -> dict[str, Any]:
    """The row of results of one cache."""
    results = lm_eval.simple_evaluate(
        model="kvlathe",
        model_args={"pretrained": model, "kv": kv},
        tasks=["questions"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )
    return {**results["config"], **results["results"]["questions"]}


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(f"usage: {sys.argv[0]} MODEL CACHE [QUESTIONS.jsonl]")
    model, kv = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        file = folder / "questions.jsonl"
        lines = [
            json.dumps({"prompt": prompt, "choices": choices, "answer": 0})
            for prompt, choices in zip(PROMPTS, CHOICES, strict=True)
        ]
        file.write_text(pathlib.Path(sys.argv[3]).read_text() if len(sys.argv) == 4 else "\n".join(lines) + "\n")
        (folder / "questions.yaml").write_text(TASK.format(file=file))
        for cache in ("none", kv):
            row = ask(model, cache, folder)
            print(f"{cache:30} {100 * row['kv_fraction']:5.1f}% of 16 bits, accuracy {row['acc,none']:.2f}")


if __name__ == "__main__":
    main()
