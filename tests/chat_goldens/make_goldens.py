"""Renders the conversations of conversations.py with the templates of this folder, in the environment in which Hugging
Face's apply_chat_template runs them, and writes goldens.json. Needs Python's jinja2.

    python3 tests/chat_goldens/make_goldens.py            writes goldens.json
    python3 tests/chat_goldens/make_goldens.py FOLDER     renders templates of the same names in FOLDER in place of
                                                          ours (the models' own) and says what differs
"""
import copy
import json
import sys
from pathlib import Path

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from conversations import CONVERSATIONS

HERE = Path(__file__).resolve().parent
BOS = {"qwen2.5": "", "qwen3": "", "hermes": "<|begin_of_text|>", "llama3.1": "<|begin_of_text|>", "gemma3": "<bos>"}
GEMMA_HEAD = """You have access to functions. If you decide to invoke any of the function(s),
you MUST put it in the format of
{"name": function name, "parameters": dictionary of argument name and its value}

You SHOULD NOT include any other text in the response if you call a function
"""


def dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    def raise_exception(message):
        raise TemplateError(message)
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    made.filters["tojson"] = dumps
    made.globals["raise_exception"] = raise_exception
    return made


def for_gemma(messages, tools):
    """Gemma's template knows no tools: what docs/decisions/gemma-tools-in-the-user-turn.md says, as plain turns."""
    turns = []
    for message in messages:
        if message["role"] == "tool":
            line = dumps({"name": message["name"], "response": message["content"]})
            if turns[-1].get("is_answer"):
                turns[-1]["content"] += "\n" + line
            else:
                turns.append({"role": "user", "content": line, "is_answer": True})
        elif "tool_calls" in message:
            calls = [dumps({"name": c["function"]["name"], "parameters": c["function"]["arguments"]})
                     for c in message["tool_calls"]]
            turns.append({"role": "assistant", "content": "\n".join(filter(None, [message["content"].strip()] + calls))})
        else:
            turns.append(dict(message))
    if tools:
        first = next(turn for turn in turns if turn["role"] == "user")
        first["content"] = GEMMA_HEAD + dumps([t["function"] for t in tools], indent=2) + "\n\n" + first["content"].strip()
    return turns


def render(template, name, conversation):
    messages = copy.deepcopy(conversation["messages"])
    for message in messages:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    tools = conversation.get("tools")
    if name == "gemma3":
        messages, tools = for_gemma(messages, tools), None
    arguments = {"enable_thinking": False} if conversation.get("enable_thinking") is False else {}
    try:
        return template.render(messages=messages, tools=tools, bos_token=BOS[name], add_generation_prompt=True, **arguments)
    except TemplateError:
        return None


def render_all(folder):
    """By template: a text for each conversation, or null where the template refuses it."""
    texts = {}
    for name in BOS:
        template = environment().from_string((folder / f"{name}.jinja").read_text())
        # The template of Hermes is that of conversations with tools.
        texts[name] = [render(template, name, c) if name != "hermes" or c.get("tools") else None for c in CONVERSATIONS]
    return texts


def main():
    if len(sys.argv) == 1:
        goldens = {"bos": BOS, "conversations": CONVERSATIONS, "texts": render_all(HERE)}
        (HERE / "goldens.json").write_text(json.dumps(goldens, indent=1, ensure_ascii=False) + "\n")
        return 0
    texts = render_all(Path(sys.argv[1]))
    ours = json.loads((HERE / "goldens.json").read_text())["texts"]
    differing = [f"{name}: {conversation['name']}" for name in BOS
                 for conversation, a, b in zip(CONVERSATIONS, texts[name], ours[name], strict=True) if a != b]
    print("\n".join(differing) or f"all {len(BOS) * len(CONVERSATIONS)} are alike")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
