#!/usr/bin/env python3
"""Wraps Markdown at 100 columns.

  scripts/wrap_markdown.py            rewrites paragraphs and items that have a longer line, in every page of the tree
  scripts/wrap_markdown.py --check    names longer lines, and exits with 1 if there are any
  scripts/wrap_markdown.py FILE...    only in these files

Tables, code, headings and comments stay as they are, and so does what has no place to break: a code span or a link.
"""
import pathlib
import re
import sys

WIDTH = 100
ROOT = pathlib.Path(__file__).resolve().parent.parent
NO_PAGES = ("build", ".cache", ".git", "fetched")
ITEM = re.compile(r"^( *)([-*+]|\d+[.)]) +(?=\S)")
AS_IT_IS = re.compile(r"^\s*($|#|\||<!--|>|!\[|\[[^]]*\]:)")
# A code span or the target of a link is one word, with what touches it.
WORD = re.compile(r"(?:`[^`]*`|\]\([^)]*\)|\S)+")
MARKUP = re.compile(r"^([-*+>#]+|\d+[.)]|\|.*|<!--.*)$")  # means something else at the beginning of a line


def words_of(text):
    words = []
    for word in WORD.findall(text):
        if words and MARKUP.match(word):
            words[-1] += " " + word
        else:
            words.append(word)
    return words


def lines_of(first, rest, words):
    """Words as lines; `first` stands before those of the first, `rest` before those of all others."""
    lines, line = [], first + words[0]
    for word in words[1:]:
        if len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = rest + word
        else:
            line += " " + word
    return [*lines, line]


def paragraphs(lines):
    """(number of the first line, lines, prefix of the first, prefix of the rest) of what may be wrapped."""
    is_fenced, begin, found = False, None, []
    for number, line in enumerate([*lines, ""]):
        is_fence = line.lstrip().startswith("```")
        is_fenced ^= is_fence
        is_item = ITEM.match(line)
        is_code = begin is None and line.startswith("    ") and not is_item
        ends = is_fence or is_fenced or is_code or AS_IT_IS.match(line) or is_item
        if ends and begin is not None:
            found.append((begin, lines[begin:number]))
            begin = None
        if begin is None and not (is_fence or is_fenced or is_code or AS_IT_IS.match(line)):
            begin = number
    for begin, part in found:
        first = (ITEM.match(part[0]) or re.match(" *", part[0]))[0]
        yield begin, part, first, " " * len(first)


def wrapped(text):
    lines = text.split("\n")
    for begin, part, first, rest in reversed(list(paragraphs(lines))):
        if any(len(line) > WIDTH for line in part):
            joined = " ".join([part[0][len(first):], *part[1:]])
            lines[begin:begin + len(part)] = lines_of(first, rest, words_of(joined))
    return "\n".join(lines)


def long_lines(text):
    """Numbers of the lines that could be shorter."""
    return [begin + at + 1 for begin, part, _, rest in paragraphs(text.split("\n")) for at, line in enumerate(part)
            if len(line) > WIDTH and len(lines_of("", rest, words_of(line))) > 1]


def pages():
    return sorted(path for path in ROOT.rglob("*.md") if not any(folder in NO_PAGES for folder in path.relative_to(ROOT).parts))


def main(arguments):
    paths = [pathlib.Path(name) for name in arguments if name != "--check"] or pages()
    n_long = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if "--check" in arguments:
            for number in long_lines(text):
                print(f"{path}:{number}: longer than {WIDTH} characters; scripts/wrap_markdown.py {path}")
                n_long += 1
        elif (after := wrapped(text)) != text:
            path.write_text(after, encoding="utf-8")
    return int(n_long > 0 or not paths)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
