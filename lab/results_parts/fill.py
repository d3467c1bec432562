"""Tables and figures of results in any Markdown file, and the check that all of them are what the results say.

A table stands between two lines, and is written anew:
    <!-- results: NAME BLOCK -->
    <!-- end -->
NAME is that of docs/results/NAME.json; BLOCK is kept, beaten, provenance, tasks, needle or a part (quality, tasks/piqa). A table of
chosen caches, a row each, with the columns FIELD of every PART:
    <!-- results: NAME PART,PART... FIELD,FIELD... KV KV... -->
A figure stands in a cell of a table, and in no sentence:
    | KL | <!--= NAME PART KV FIELD -->0.0022<!-- --> |
with FIELD one of those in view.py: size, smaller, perplexity, change, kl, score and so on. What NAME is for serving experiments,
serving_view.py says, for retrofitted models retrofit_view.py, for times speed_view.py, and for accuracy first accuracy_view.py.
"""

import pathlib
import re

from wrap_markdown import wrapped

from . import papers
from .accuracy_view import AccuracyView
from .page import GENERATED, block_lines, page_texts
from .retrofit_view import RetrofitView
from .serving_view import ServingView
from .speed_view import SpeedView
from .store import ResultsError, Store, write_whole
from .view import View, code, markdown_table

N_MOST_ROWS = 20
SPECIAL_VIEWS = {"accuracy": AccuracyView, "serving": ServingView, "retrofit": RetrofitView, "speed": SpeedView}  # by the folder of docs/results
BLOCK = re.compile(r"^<!-- results: (\S+) (\S+)(?: (\S+) (\S.*))? -->$")
TITLES = {"size": "KV size %", "smaller": "times smaller", "change": "perplexity change %", "kl": "KL", "top1": "top-1 %", "score": "score %",
          "relative": "rate, in that of `none`", "qk_kept": "QK kept %", "v_kept": "V kept %", "qk_lost": "QK lost", "v_lost": "V lost",
          **{f"{side}_{what}{rank}": f"{side.upper()}, {title} {rank}" for side in ("k", "v") for rank in (1, 2, 4, 8, 16)
             for what, title in (("rank", "rank"), ("white", "noise, rank"))}}
END = "<!-- end -->"
FIGURE = re.compile(r"<!--= ([^>]*?) -->(.*?)<!-- -->")
SOURCES = ("*.md", "docs/**/*.md", "lab/*.md", "models/*.md")


class Views:
    """Those of a tree, each read once."""

    def __init__(self, root):
        self.root, self.by_name = pathlib.Path(root), {}

    def __getitem__(self, name):
        if name not in self.by_name:
            path = self.root / "docs/results" / f"{name}.json"
            if not path.exists():
                raise ResultsError(f"there is no docs/results/{name}.json")
            special = SPECIAL_VIEWS.get(name.partition("/")[0]) if "/" in name else None
            self.by_name[name] = special(path, name) if special else View(Store(path))
        return self.by_name[name]


def figure_of(views, words):
    words = words.split()
    if len(words) != 4:
        raise ResultsError(f"a figure is NAME PART KV FIELD, not {' '.join(words)}")
    name, part, kv, field = words
    return views[name].figure(part, kv, field)


def chosen_table(view, parts, fields, kvs):
    """A row for each cache, with a dash where it was not measured, and a column for each field that a part has. A cache, a part or a
    field of which nothing was measured is an error."""
    def cell(part, kv, field):
        try:
            return view.figure(part, kv, field)
        except ResultsError:
            return "-"
    cells = {(part, field): [cell(part, kv, field) for kv in kvs] for part in parts for field in fields}
    columns = {key: column for key, column in cells.items() if set(column) != {"-"}}
    rows = dict(zip(kvs, zip(*columns.values())))
    known = {*(name for key in columns for name in key), *(kv for kv, row in rows.items() if set(row) != {"-"})}
    for name in (*parts, *fields, *kvs):
        if name not in known:
            raise ResultsError(f"there are no results of {name} in this table")
    titles = [(f"`{part}`: " if len(parts) > 1 else "") + TITLES.get(field, field) for part, field in columns]
    return markdown_table(["cache", *titles], [[code(kv), *row] for kv, row in rows.items()])


def table_of(view, block):
    if block[3]:
        return chosen_table(view, block[2].split(","), block[3].split(","), block[4].split())
    lines = block_lines(view, block[2]) if isinstance(view, View) else view.block_lines(block[2])
    return wrapped("\n".join(lines)).split("\n")


def filled(text, views):
    """The text with all its tables and figures as they are to be; errors begin with the number of the line."""
    lines, out, at = text.split("\n"), [], 0
    while at < len(lines):
        block = BLOCK.match(lines[at])
        try:
            if block:
                try:
                    end = lines.index(END, at)
                except ValueError:
                    raise ResultsError(f"no line {END} behind it") from None
                if any(BLOCK.match(line) for line in lines[at + 1:end]):
                    raise ResultsError(f"no line {END} before the next block")
                out += [lines[at], "", *table_of(views[block[1]], block), END]
                at = end
            else:
                if FIGURE.search(lines[at]) and not lines[at].lstrip().startswith("|"):
                    raise ResultsError("a figure stands in a sentence; put it into a table")
                out.append(FIGURE.sub(lambda found: f"<!--= {found[1]} -->{figure_of(views, found[1])}<!-- -->", lines[at]))
        except ResultsError as error:
            raise ResultsError(f"{at + 1}: {error}") from None
        at += 1
    return "\n".join(out)


def fill_files(root, paths, say):
    views = Views(root)
    for path in map(pathlib.Path, paths):
        text = path.read_text(encoding="utf-8")
        try:
            after = filled(text, views)
        except ResultsError as error:
            raise ResultsError(f"{path}:{error}") from None
        if after != text:
            write_whole(path, after)
        say(f"{path}: {'written' if after != text else 'as it was'}")
    return 0


def first_difference(is_text, should_be):
    """The number of the first line that differs, or None."""
    ours, theirs = is_text.split("\n"), should_be.split("\n")
    for number, (a, b) in enumerate(zip(ours, theirs), start=1):
        if a != b:
            return number
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs)) + 1


def long_table(lines):
    """The line where a table of more rows than a reader takes in begins, or None."""
    begin, rule = None, re.compile(r"^\|[ :|-]+\|$")
    for number, line in enumerate([*lines, ""], start=1):
        if line.startswith("|"):
            begin = begin or number
            continue
        if begin and number - begin - any(rule.match(row) for row in lines[begin - 1:number - 1]) - 1 > N_MOST_ROWS:
            return begin
        begin = None
    return None


def blocks_of(text):
    """The lines of the text that stand in blocks; others are empty, so that numbers stay."""
    inside, lines = False, []
    for line in text.split("\n"):
        inside = bool(BLOCK.match(line)) or (inside and line != END)
        lines.append(line if inside else "")
    return lines


def sources_of_pages(root, views):
    """Each file that pages are made of, with {page: text}."""
    for source in sorted((root / "docs/results").glob("*.json")):
        yield source, page_texts(views[source.stem])
    yield root / papers.CLAIMS, papers.page_texts(root, views, chosen_table)


def write_pages(root, paths, say):
    root = pathlib.Path(root)
    for path in map(pathlib.Path, paths):
        is_claims = path.resolve() == (root / papers.CLAIMS).resolve()
        texts = papers.page_texts(root, Views(root), chosen_table) if is_claims else page_texts(View(Store(path)))
        for page, text in texts.items():
            write_whole(page, text)
            say(str(page))
    return 0


def problems(root):
    """One line each, with a file and a line."""
    root, views = pathlib.Path(root), Views(root)
    pages = {}
    for source, expected_pages in sources_of_pages(root, views):
        for page, expected in expected_pages.items():
            pages[page] = source
            text = page.read_text(encoding="utf-8") if page.exists() else ""
            number = first_difference(text, expected)
            if number:
                yield f"{page.relative_to(root)}:{number}: not what {source.name} says; lab/results.py page {source.relative_to(root)}"
    for path in sorted(set((root / "docs/results").glob("*.md")) - set(pages)):
        if GENERATED in path.read_text(encoding="utf-8").split("\n", 1)[0]:
            yield f"{path.relative_to(root)}:1: a page that no results file has any more; delete it"
    for path in sorted({path for pattern in SOURCES for path in root.glob(pattern)}):
        shown, text = path.relative_to(root), path.read_text(encoding="utf-8")
        try:
            number = None if path in pages else first_difference(text, filled(text, views))
        except ResultsError as error:
            yield f"{shown}:{error}"
            continue
        if number:
            yield f"{shown}:{number}: not what the results say; lab/results.py fill {shown}"
        is_generated = path.parent == root / "docs/results"
        number = long_table(text.split("\n") if is_generated else blocks_of(text))
        if number:
            yield f"{shown}:{number}: a table of more than {N_MOST_ROWS} rows"


def check(root, say):
    found = list(problems(root))
    for problem in found:
        say(problem)
    return 1 if found else 0
