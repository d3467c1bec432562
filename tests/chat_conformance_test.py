"""Every chat template of the fetched folder and of tests/chat_goldens and share/chat_templates, ten conversations each,
against Python's jinja2 in the environment in which Hugging Face's apply_chat_template runs them: equal wherever Python
renders, but for the templates named below; where Python refuses by raise_exception, kvlathe refuses with its words.

    python3 tests/chat_conformance_test.py PROGRAM    PROGRAM is chat_render (src/chat/chat_render_main.cc)

Ends with a line of counts; exit status 77 (skipped) without jinja2.
"""
import json
import subprocess
import sys
from pathlib import Path

try:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    import jinja2.ext
except ImportError:
    print("jinja2 is not installed")
    sys.exit(77)

HERE = Path(__file__).resolve().parent
# Why each of them may differ: see docs/chat.md.
MAY_DIFFER = {"CohereForAI-c4ai-command-r-plus-tool_use.jinja", "meetkai-functionary-medium-v3.1.jinja"}
NOW = 1767225600  # 2026-01-01, for strftime_now
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}

WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "Tells the weather of a place.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "A place, as \"Zürich\"."},
        "days": {"type": "integer", "description": "How many days.", "enum": [1, 3, 7]}}, "required": ["city"]}}}
ADD = {"type": "function", "function": {
    "name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {
        "numbers": {"type": "array", "items": {"type": "number"}, "description": "What to add."}},
        "required": ["numbers"]}}}


def call(name, arguments, number):
    return {"id": f"callid00{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def user(content):
    return {"role": "user", "content": content}


ROME = call("weather", {"city": "Rome", "days": 3}, 1)
ODD = call("weather", {"city": "a \"b\"\n\tc\\d é <x>"}, 2)
SUM = call("add", {"numbers": [1, 2.5, -3]}, 3)
CONVERSATIONS = {
    "a question": {"messages": [user("Hello?")]},
    "a system message": {"messages": [{"role": "system", "content": "Be brief."}, user("Hello?")]},
    "several turns": {"messages": [user("Hi"), {"role": "assistant", "content": "Hello."}, user(" Who are you?\n")]},
    "tools": {"messages": [{"role": "system", "content": "Be brief."}, user("Rain?")], "tools": [WEATHER, ADD]},
    "a call and its result": {"messages": [
        user("Rain?"), {"role": "assistant", "content": "", "tool_calls": [ROME]},
        {"role": "tool", "content": "{\"rain\": true}", "tool_call_id": "callid001", "name": "weather"},
        {"role": "assistant", "content": "Yes."}, user("Thanks")], "tools": [WEATHER]},
    "two calls with odd arguments": {"messages": [
        user("Rain?"), {"role": "assistant", "content": "I look.", "tool_calls": [ODD, SUM]},
        {"role": "tool", "content": "no", "tool_call_id": "callid002", "name": "weather"},
        {"role": "tool", "content": "0.5", "tool_call_id": "callid003", "name": "add"}], "tools": [WEATHER, ADD]},
    "thoughts": {"messages": [
        user("Hi"), {"role": "assistant", "content": "Hello.", "reasoning_content": "A greeting.", "thinking": "A greeting."},
        user("And?"), {"role": "assistant", "content": "So.", "reasoning_content": "Hm.", "thinking": "Hm."}],
        "add_generation_prompt": False},
    "content in parts": {"messages": [user([{"type": "text", "text": "One "}, {"type": "text", "text": "two?"}])]},
    "nothing said": {"messages": [{"role": "system", "content": ""}, user("")]},
    "other writing": {"messages": [user("你好，世界 — ¿qué? \U0001F600 <|im_end|> {{ x }}")], "enable_thinking": False},
}


def dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    import time

    def raise_exception(message):
        raise TemplateError(message)

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                         extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = dumps
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: time.strftime(form, time.localtime(NOW))
    return made


def variables(conversation):
    return {"messages": conversation["messages"], "tools": conversation.get("tools"), "documents": None,
            "add_generation_prompt": conversation.get("add_generation_prompt", True),
            **({"enable_thinking": False} if "enable_thinking" in conversation else {})}


def of_python(source, conversation):
    """(kind, text): "text", "refused" by the template, or "failed"."""
    try:
        return "text", environment().from_string(source).render(**variables(conversation), **TOKENS)
    except TemplateError as error:
        kind = "refused" if type(error) is TemplateError else "failed"
        return kind, str(error)
    except Exception as error:  # of Python, in the middle of a template
        return "failed", str(error)


def main():
    folders = [HERE.parent / "build/jinja/templates", HERE / "chat_goldens", HERE.parent / "share/chat_templates"]
    paths = [path for folder in folders for path in sorted(folder.glob("*.jinja"))]
    names = list(CONVERSATIONS)
    requests = [{"template": str(path), "now": NOW, "tokens": TOKENS, "globals": variables(CONVERSATIONS[name])}
                for path in paths for name in names]
    lines = "\n".join(json.dumps(request) for request in requests) + "\n"
    answers = subprocess.run([sys.argv[1]], input=lines, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(answers) == len(requests), (len(answers), len(requests))
    equal = refused = beyond = 0
    wrong = {}
    for request, line in zip(requests, answers):
        answer = json.loads(line)
        path, name = Path(request["template"]), names[requests.index(request) % len(names)]
        kind, text = of_python(path.read_text(), CONVERSATIONS[name])
        if kind == "text":
            good = answer.get("text") == text
            equal += good
        elif kind == "refused":
            good = answer.get("error", "") == f"the chat template refuses: {text}"
            refused += good
        else:  # Python gives up where the engine may still know what is meant
            good = True
            beyond += "text" in answer
        if not good:
            wrong.setdefault(path.name, []).append((name, text, answer))
    for template, cases in wrong.items():
        for name, text, answer in cases:
            print(f"{template}: {name}\n  Python: {text[-300:]!r}\n  here:   {str(answer)[-300:]}")
    print(f"{len(paths)} templates, {len(requests)} conversations: {equal} equal, {refused} refused alike, {beyond} rendered "
          f"where Python fails, {len(wrong)} templates differ: {', '.join(sorted(wrong)) or 'none'}")
    sys.exit(bool(set(wrong) - MAY_DIFFER))


if __name__ == "__main__":
    main()
