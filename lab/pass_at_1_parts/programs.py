"""HumanEval's problems, the answers of a model to them, and the programs that they make together."""

import gzip
import json
import pathlib
import re
from dataclasses import dataclass

# The first line that belongs to no function any more: one that begins, without a space, with a word, a decorator, a comment or
# the end of a block of Markdown. The first line of an answer follows the prompt's last one, and is its own matter.
END_OF_FUNCTION = re.compile(r"\n(?=[A-Za-z_@#`])")


class ProgramsError(Exception):
    """Problems or answers that are not what they should be, in one line."""


@dataclass(frozen=True)
class Problem:
    name: str  # HumanEval/0
    prompt: str
    solution: str
    test: str
    entry_point: str

    def program(self, answer):
        """Comes to its end where the answer, from its beginning to the end of its function, passes all tests."""
        return f"{self.prompt}{function_of(answer)}\n{self.test}\ncheck({self.entry_point})\n"


def function_of(answer):
    """The answer up to where its function ends."""
    return END_OF_FUNCTION.split(answer, maxsplit=1)[0]


def objects(path):
    """The objects of a file of one a line, and the numbers of the lines."""
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except ValueError:
                raise ProgramsError(f"{path}:{number}: not a JSON object") from None


def read_problems(path):
    """HumanEval.jsonl, or the same packed with gzip."""
    try:
        problems = [Problem(of["task_id"], of["prompt"], of["canonical_solution"], of["test"], of["entry_point"]) for _, of in objects(path)]
    except (KeyError, TypeError) as error:
        raise ProgramsError(f"{path}: not HumanEval's problems ({error!r})") from None
    if not problems:
        raise ProgramsError(f"{path}: no problems")
    return problems


def read_answers(paths, problems):
    """The answers by cache, each a list in the order of the problems, as `kvlathe eval --predictions` wrote them."""
    answers = {}
    for path in map(pathlib.Path, paths):
        for number, line in objects(path):
            if not isinstance(line, dict) or not {"kv", "task", "index", "prompt", "output"} <= line.keys():
                raise ProgramsError(f"{path}:{number}: no prediction; write them with kvlathe eval --predictions FILE")
            if not str(line["task"]).startswith("humaneval"):
                continue
            index = line["index"]
            if index not in range(len(problems)) or problems[index].prompt != line["prompt"]:
                raise ProgramsError(f"{path}:{number}: the prompt is not that of problem {index} of these {len(problems)}")
            of_cache = answers.setdefault(line["kv"], {})
            if index in of_cache:
                raise ProgramsError(f"{path}:{number}: {line['kv']} answers problem {index} once more")
            of_cache[index] = line["output"]
    if not answers:
        raise ProgramsError(f"{', '.join(map(str, paths))}: no answers to HumanEval; kvlathe eval --task humaneval:FILE writes them")
    n = max(len(of_cache) for of_cache in answers.values())
    for kv, of_cache in answers.items():
        if sorted(of_cache) != list(range(n)):
            raise ProgramsError(f"{kv} has answers to {len(of_cache)} problems, where another has {n}; give the same --task-count")
    return {kv: [of_cache[index] for index in range(n)] for kv, of_cache in answers.items()}
