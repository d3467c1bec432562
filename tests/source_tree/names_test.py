#!/usr/bin/env python3
"""What the tree says of itself: files that comments, pages and scripts name are there, links of pages lead somewhere, and
no folder holds more sources than one can look through.

usage: names_test.py [ROOT]     (without ROOT the checks themselves are tested too, on trees made for them)
"""
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOP = ("apps", "cmake", "deploy", "docs", "examples", "fuzz", "include", "lab", "models", "python", "scripts", "src", "tests")
MOST_SOURCES = 40  # .h and .cc files directly in one folder
CODE, SCRIPTS = {".h", ".cc"}, {".py", ".sh", ".cmake", ".yml"}
ENDINGS = r"(?:h|cc|md|py|sh|cmake|svg|jinja)"
# What is made or fetched, and is not part of the tree.
ELSEWHERE = ("models/fetched/", "build/")
STANDS_FOR_A_NAME = re.compile(r"(?:^|/)(?:NAME|DIR|FILE)\b")
PATH = re.compile(rf"(?<![\w./<*{{}}$~-])((?:[\w.-]+/)+[\w.-]+\.{ENDINGS})(?![\w*/])")
BARE = re.compile(rf"(?<![\w./<*{{}}$~-])([\w-]+\.(?:h|cc|md))(?![\w*/.(])")
FOLDER = re.compile(r"(?<![\w./<*{}$~-])((?:src|apps|lab|tests|docs)/[\w/-]+)(?![\w*{$/-]|\.\w)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


class Tree:
    """The files of a source tree, by their paths below its root."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        folders = [self.root / top for top in TOP]
        found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        found += [path for path in self.root.iterdir() if path.is_file()]
        self.paths = sorted(str(path.relative_to(self.root)) for path in found if "__pycache__" not in path.parts)
        self.known, self.names = set(self.paths), {pathlib.PurePath(path).name for path in self.paths}
        self.folders = {parent.as_posix() for path in self.paths for parent in pathlib.PurePath(path).parents}
        self.src_folders = {path.split("/")[1] for path in self.paths if path.startswith("src/") and path.count("/") > 1}

    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8")

    def has(self, name, page):
        """Whether a path leads to a file: from the root, from src/, where headers are looked for, or from the page's own folder."""
        beside = (pathlib.PurePath(page).parent / name).as_posix()
        return any(path in self.known for path in (name, f"src/{name}", beside)) or any(path.endswith(f"/{name}") for path in self.known)

    def is_ours(self, name):
        """Whether a path means a file of this tree: its first folder is one of the root or of src/."""
        first = name.split("/")[0]
        return (first in TOP or first in self.src_folders) and not name.startswith(ELSEWHERE) and not STANDS_FOR_A_NAME.search(name)


def said(path, text):
    """The lines of a file that are read by people: comments of sources and of tests, all of a page or a script."""
    mark = "//" if pathlib.PurePath(path).suffix in CODE else "#" if path.endswith("_test.py") else ""
    for number, line in enumerate(text.split("\n"), start=1):
        _, _, spoken = line.partition(mark) if mark else ("", "", line)
        yield number, "" if spoken.startswith("include") else spoken


def missing_names(tree):
    for path in tree.paths:
        suffix = pathlib.PurePath(path).suffix
        if suffix not in CODE | SCRIPTS | {".md"} and not path.endswith("CMakeLists.txt"):
            continue
        if path.startswith(("models/fetched/", "tests/golden/", "tests/source_tree/names_test")):
            continue
        for number, line in said(path, tree.text(path)):
            for name in PATH.findall(line):
                if tree.is_ours(name) and not tree.has(name, path):
                    yield f"{path}:{number}: there is no {name}"
            for name in FOLDER.findall(line):
                if not STANDS_FOR_A_NAME.search(name) and name.rstrip("/") not in tree.folders | tree.known:
                    yield f"{path}:{number}: there is no folder {name}"
            for name in BARE.findall(line) if suffix in CODE else ():
                if name not in tree.names:
                    yield f"{path}:{number}: there is no file {name}"


def anchor_of(heading):
    """As GitHub makes them."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def broken_links(tree):
    for path in (path for path in tree.paths if path.endswith(".md") and not path.startswith("models/fetched/")):
        for number, line in enumerate(FENCE.sub(lambda block: "\n" * block[0].count("\n"), tree.text(path)).split("\n"), start=1):
            for link in LINK.findall(line):
                if re.match(r"[a-z]+:", link):
                    continue
                file, _, anchor = link.partition("#")
                target = (tree.root / path).parent / file if file else tree.root / path
                if not target.exists():
                    yield f"{path}:{number}: the link {link} leads nowhere"
                elif anchor and anchor not in map(anchor_of, HEADING.findall(target.read_text(encoding="utf-8"))):
                    yield f"{path}:{number}: {link} has no such heading"


def full_folders(tree):
    sources = [pathlib.PurePath(path).parent.as_posix() for path in tree.paths if pathlib.PurePath(path).suffix in CODE]
    for folder in sorted(set(sources)):
        if sources.count(folder) > MOST_SOURCES:
            yield f"{folder}: {sources.count(folder)} .h and .cc files, more than {MOST_SOURCES}"


def problems(root):
    tree = Tree(root)
    return [*missing_names(tree), *broken_links(tree), *full_folders(tree)]


class MadeTreeTest(unittest.TestCase):
    def problems_of(self, files):
        with tempfile.TemporaryDirectory(prefix="kvlathe_names_") as folder:
            for path, text in files.items():
                at = pathlib.Path(folder) / path
                at.parent.mkdir(parents=True, exist_ok=True)
                at.write_text(text, encoding="utf-8")
            return problems(folder)

    def test_a_comment_that_names_what_is_there(self):
        files = {"src/kv/a.h": "// See kv/b.h, src/kv/b.h, b.h, src/kv and docs/x.md.\n", "src/kv/b.h": "", "docs/x.md": ""}
        self.assertEqual(self.problems_of(files), [])

    def test_a_comment_that_names_what_is_not_there(self):
        found = self.problems_of({"src/kv/a.h": "int x;  // kv/c.h\n// gone.md\n#include \"kv/d.h\"\n"})
        self.assertEqual(found, ["src/kv/a.h:1: there is no kv/c.h", "src/kv/a.h:2: there is no file gone.md"])

    def test_pages_and_scripts(self):
        found = self.problems_of({"docs/x.md": "See `src/kv/c.h` and [y](y.md).\n", "scripts/a.sh": "cat docs/z.md\n"})
        self.assertEqual(found, ["docs/x.md:1: there is no src/kv/c.h", "scripts/a.sh:1: there is no docs/z.md",
                                 "docs/x.md:1: the link y.md leads nowhere"])

    def test_folders(self):
        found = self.problems_of({"src/kv/a.h": "// src/kv/ and src/old\n", "docs/x.md": "`src/kv/old`, `src/kv/*.h`\n"})
        self.assertEqual(found, ["docs/x.md:1: there is no folder src/kv/old", "src/kv/a.h:1: there is no folder src/old"])

    def test_headings(self):
        pages = {"docs/x.md": "[a](y.md#the-one-of-many) [b](y.md#other) [c](#here)\n# Here\n", "docs/y.md": "## The one, of `many`\n"}
        self.assertEqual(self.problems_of(pages), ["docs/x.md:1: y.md#other has no such heading"])

    def test_what_is_made_or_fetched_and_other_projects(self):
        self.assertEqual(self.problems_of({"docs/x.md": "models/fetched/a.md build/b.h torch/c.h docs/results/NAME.md src/*/d.h\n"}), [])

    def test_a_folder_with_too_many_sources(self):
        files = {f"src/kv/f{i}.cc": "" for i in range(MOST_SOURCES)}
        self.assertEqual(self.problems_of(files), [])
        self.assertEqual(self.problems_of({**files, "src/kv/more.h": ""}), ["src/kv: 41 .h and .cc files, more than 40"])


class ThisTreeTest(unittest.TestCase):
    root = ROOT

    def test_says_what_is_so(self):
        found = problems(self.root)
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_a_release_has_one_number(self):
        of = {name: re.search(pattern, (self.root / name).read_text(encoding="utf-8"), re.MULTILINE)[1] for name, pattern in (
            ("CMakeLists.txt", r"project\(kvlathe VERSION ([\d.]+)"), ("CHANGELOG.md", r"^## ([\d.]+),"),
            ("deploy/debian/changelog", r"^kvlathe \(([\d.]+)-"), ("deploy/kubernetes/kvlathe.yaml", r"image: kvlathe:([\d.]+)"))}
        self.assertEqual(len(set(of.values())), 1, of)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        found = problems(sys.argv[1])
        print("\n".join(found))
        sys.exit(1 if found else 0)
    unittest.main()
