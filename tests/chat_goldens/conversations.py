"""The conversations of goldens.json, as requests of the OpenAI API have them."""

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a place: \"now\", in °C.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "A town, such as Zürich"},
        "days": {"type": "integer", "minimum": 1, "maximum": 1e2},
        "unit": {"type": "string", "enum": ["c", "f"], "description": "  "}}, "required": ["place"]}}}
SHAPES = {"type": "function", "function": {
    "name": "draw", "description": "Draws.\nNothing else.",
    "parameters": {"type": "object", "properties": {
        "points": {"type": "array", "items": {"type": "number"}, "description": "x and y"},
        "style": {"type": "object", "additionalProperties": {"type": "number"}},
        "size": {"type": ["integer", "string"]}, "free": {"type": "object"}, "any": {}},
        "additionalProperties": False}}}
PLAIN = {"type": "function", "function": {
    "name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}}

SYSTEM = {"role": "system", "content": " Be brief. "}
USER = {"role": "user", "content": "Wie warm ist es in Zürich?\n"}
THANKS = {"role": "user", "content": "Thanks. And \"Bern\"?"}
DONE = {"role": "assistant", "content": "  It is 21 °C.\n"}


def call(name, arguments, content="", more=()):
    calls = [{"id": f"call_{i}", "type": "function", "function": {"name": n, "arguments": a}}
             for i, (n, a) in enumerate([(name, arguments), *more])]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def answer(content, name="get_weather"):
    return {"role": "tool", "content": content, "name": name, "tool_call_id": "call_0"}


NUMBERS = ('{"a": 1.0, "b": 1e-7, "c": 1e20, "d": 12345678901234567, "e": -0.5, "f": 1e15, "g": 123456.789, "h": 1e16,'
           ' "i": [true, false, null, [], {}], "j": "tab\\t \\u0001 \\u007f \\u2028 \\" \\\\ / é", "k": {"l": [1, {"m": 2}]}}')

CONVERSATIONS = [
    {"name": "tools", "tools": [WEATHER], "messages": [USER]},
    {"name": "three tools and a system message", "tools": [WEATHER, SHAPES, PLAIN], "messages": [SYSTEM, USER]},
    {"name": "a call and its answer", "tools": [WEATHER],
     "messages": [USER, call("get_weather", '{"place":"Zürich"}'), answer('{"c": 21}')]},
    {"name": "an answer, then a question", "tools": [WEATHER],
     "messages": [SYSTEM, USER, call("get_weather", '{"place": "Zürich"}'), answer("21 \"°C\"\n"), DONE, THANKS]},
    {"name": "two calls, two answers", "tools": [WEATHER, PLAIN],
     "messages": [USER, call("get_weather", '{"place": "Zürich", "days": 2}', "", [("now", "{}")]),
                  answer("21"), answer("12:00", "now")]},
    {"name": "two calls, two answers, and on", "tools": [WEATHER, PLAIN],
     "messages": [USER, call("get_weather", '{"place": "Zürich"}', "Both.", [("now", "{}")]),
                  answer("21"), answer("12:00", "now"), DONE, THANKS]},
    {"name": "a call with content", "tools": [PLAIN],
     "messages": [USER, call("now", "{}", "Let me look."), answer("12:00", "now")]},
    {"name": "numbers and strings", "tools": [PLAIN],
     "messages": [USER, call("now", NUMBERS), answer("ok", "now")]},
    {"name": "thoughts of earlier turns", "tools": [WEATHER], "messages": [
        USER, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nIt is warm."}, THANKS]},
    {"name": "thoughts behind the last question", "tools": [WEATHER], "messages": [
        USER, call("get_weather", '{"place": "Bern"}', "<think>\n\nI need it.\n</think>\n\nOne moment."), answer("9"),
        call("get_weather", '{"place": "Chur"}', "<think>\n\n</think>\n\n"), answer("8")]},
    {"name": "thoughts not asked for", "tools": [WEATHER], "enable_thinking": False, "messages": [USER]},
    {"name": "no tools, no thoughts", "enable_thinking": False, "messages": [SYSTEM, USER]},
    {"name": "no tools, with thoughts", "messages": [
        USER, {"role": "assistant", "content": "<think>A</think>B</think>\n\nC"}, THANKS]},
    {"name": "no tools", "messages": [SYSTEM, USER, DONE, THANKS]},
    {"name": "calls of tools that are gone", "messages": [
        USER, call("get_weather", '{"place": "Zürich"}'), answer("21"), DONE, THANKS]},
]
