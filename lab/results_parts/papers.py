"""The claims of published papers beside what was measured here: docs/results/papers/claims.json, written by hand, and the pages that are
made of it, docs/results/papers.md and docs/results/papers/NAME.md.

A paper has a name, a title, its source, the setting of its experiments, the page of its method, and claims. A claim has
    where     the table, figure or section
    claim     what is said there, in words of our own
    answer    one of ANSWERS
    why       what stands behind the answer
    measured  tables of results: {"of": NAME, "part": PART, "caches": [KV...], "fields": [FIELD...]}, NAME that of docs/results/NAME.json
    see       [title, link] of a page that has it
    command   what would measure it, or more of it
    takes     what it would take, where it cannot run here
Figures of ours come from results alone; the sentences of claims hold those of the papers.
"""

import json
import pathlib

from wrap_markdown import wrapped

from .store import ResultsError
from .view import View, command_lines, markdown_table

CLAIMS = "docs/results/papers/claims.json"
PAGE = "docs/results/papers.md"
# What an answer has to bring: the first three something that was measured, the others what would.
ANSWERS = {"reproduced": ("measured", "see"), "in part": ("measured", "see"), "not reproduced": ("measured", "see", "takes", "why"),
           "not measured": ("command",), "cannot run here": ("takes",)}
NOTE = f"<!-- Written by lab/results.py page {CLAIMS}; change that file or the script. -->"
FIELDS = ("size", "kl")
INTRODUCTION = """What the four papers that kvlathe implements claim, each table and figure of theirs that says something about a cache, beside what was
measured here. *Reproduced* means that the claim held on the models that this project measures; *in part*, that its direction did or a part
of it; *not reproduced*, that it did not on these models, which are much smaller than those of the papers, and why. What was not measured
has the command that measures it."""


def checked(paper, claim):
    """The claim, or an error that says what it lacks."""
    place = f"{CLAIMS}: {paper['name']}, {claim.get('where', 'a claim without a place')}"
    for key in ("where", "claim", "answer", "why"):
        if not claim.get(key):
            raise ResultsError(f"{place}: no {key}")
    if claim["answer"] not in ANSWERS:
        raise ResultsError(f"{place}: the answer {claim['answer']} is none of {', '.join(ANSWERS)}")
    needs = ANSWERS[claim["answer"]]
    if not any(claim.get(key) for key in needs):
        raise ResultsError(f"{place}: {claim['answer']} needs one of {', '.join(needs)}")
    return claim


def read(root):
    path = pathlib.Path(root) / CLAIMS
    if not path.exists():
        return []
    try:
        papers = json.loads(path.read_text(encoding="utf-8"))["papers"]
    except (ValueError, KeyError) as error:
        raise ResultsError(f"{CLAIMS}: {error}") from None
    papers = [{**paper, "claims": [checked(paper, claim) for claim in paper["claims"]]} for paper in papers]
    for paper in papers:
        places = [claim["where"] for claim in paper["claims"]]
        twice = next((place for place in places if places.count(place) > 1), None)
        if twice:
            raise ResultsError(f"{CLAIMS}: {paper['name']} has two claims of {twice}")
    return papers


def measured_lines(views, chosen_table, table):
    """A table of results, with the command of its rows."""
    view = views[table["of"]]
    lines = [f"`{table['of']}`, {table['part']}:", "", *chosen_table(view, [table["part"]], table.get("fields", FIELDS), table["caches"])]
    if isinstance(view, View):
        lines += command_lines(view.commands(view.part(table["part"])))
    return lines


def claim_lines(views, chosen_table, claim):
    lines = [f"## {claim['where']}: {claim['answer']}", "", f"**Claimed:** {claim['claim']}", "", f"**Here:** {claim['why']}"]
    if claim.get("see"):
        lines[-1] += f" ([{claim['see'][0]}]({claim['see'][1]}))"
    lines.append("")
    for table in claim.get("measured", ()):
        lines += measured_lines(views, chosen_table, table)
    if claim.get("command"):
        lines += ["What measures it, or more of it:", "", *command_lines([claim["command"]])]
    if claim.get("takes"):
        lines += [f"**What it would take:** {claim['takes']}", ""]
    return lines


def paper_page(views, chosen_table, paper):
    lines = [NOTE, f"# {paper['title']}, claim by claim", "", f"{paper['source']}. Measured there: {paper['setting']}. How it works and what "
             f"it costs: [{paper['name']}]({paper['method']}). [All papers](../papers.md).", ""]
    for claim in paper["claims"]:
        lines += claim_lines(views, chosen_table, claim)
    return lines


def counts_table(papers):
    rows = [[f"[{paper['title']}](papers/{paper['name']}.md)", str(len(paper["claims"])),
             *(str(sum(claim["answer"] == answer for claim in paper["claims"])) for answer in ANSWERS)] for paper in papers]
    return markdown_table(["paper", "claims", *ANSWERS], rows)


def main_page(papers):
    lines = [NOTE, "# The papers, claim by claim", "", INTRODUCTION.replace("\n", " "), "", *counts_table(papers)]
    for paper in papers:
        lines += [f"## {paper['title']}", "", *markdown_table(["where", "claim", "answer"], [
            [claim["where"], claim["claim"].replace("|", "\\|"), claim["answer"]] for claim in paper["claims"]])]
    return lines


def page_texts(root, views, chosen_table):
    """{path: text} of all pages; nothing where no claims are kept."""
    root, papers = pathlib.Path(root), read(root)
    if not papers:
        return {}
    pages = {root / PAGE: main_page(papers)}
    pages |= {root / f"docs/results/papers/{paper['name']}.md": paper_page(views, chosen_table, paper) for paper in papers}
    return {path: wrapped("\n".join(lines).rstrip("\n") + "\n") for path, lines in pages.items()}
