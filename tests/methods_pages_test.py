#!/usr/bin/env python3
"""docs/methods against `kvlathe specs`: every stage has a page, and its table of options is what the program has.

Called as methods_pages_test.py KVLATHE.
"""
import json
import pathlib
import re
import subprocess
import sys
import unittest

METHODS = pathlib.Path(__file__).resolve().parent.parent / "docs/methods"
CODE = re.compile(r"`([^`]+)`")


def stages_of(kvlathe):
    """The axis of every stage, and its options with their defaults."""
    text = subprocess.run([kvlathe, "specs", "--json"], check=True, capture_output=True, text=True).stdout
    return {stage["name"]: {"axis": stage["axis"], "options": {key["name"]: key["default"] for key in stage["keys"]}}
            for stage in json.loads(text)["stages"]}


def pages_of(index):
    """The page of every stage, from the two tables of the index: `| [x.md](x.md) | `x`, `y` | ...` and, of presets, the page last.

    And from tables that name stages in their links: `| [`x`, `y`](methods/x.md)`(options)` | ...`.
    """
    pages = {}
    for line in index.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        links = re.findall(r"\((methods/)?([\w-]+\.md)\)", line)
        if not line.startswith("|") or len(cells) < 3 or len(links) != 1:
            continue
        folder, page = links[0]
        names = cells[1] if cells[0].startswith("[") and not folder else cells[0].partition("](")[0]
        for code in CODE.findall(names):
            pages.setdefault(code.partition("(")[0], page)
    return pages


def section_of(page, title="## Options"):
    found = re.search(rf"^{title}\n(.*?)(?=^## |\Z)", (METHODS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def options_of(page):
    """What the table of a page says: the default of each option. A row may have several, with as many defaults."""
    section, options = section_of(page), {}
    for other in re.findall(r"Those of \[[\w-]+\]\(([\w-]+\.md)#options\)", section):
        options.update(options_of(other))
    for line in section.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0].startswith("`"):
            names = CODE.findall(cells[0])
            defaults = cells[1].split(", ") if len(names) > 1 else [cells[1]]
            options.update(zip(names, defaults, strict=True))
    return options


class MethodsPagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stages = stages_of(KVLATHE)
        indexes = [METHODS / "README.md", METHODS.parent / "quantization.md"]
        cls.pages = pages_of("\n".join(path.read_text(encoding="utf-8") for path in indexes))

    def test_every_stage_has_a_page_and_every_page_is_listed(self):
        self.assertGreater(len(self.stages), 25)
        self.assertEqual(sorted(set(self.stages) - set(self.pages)), [])
        self.assertEqual(sorted(set(self.pages) - set(self.stages) - {"none"}), [])
        self.assertEqual(sorted(path.name for path in METHODS.glob("*.md")), sorted({*self.pages.values(), "README.md"}))

    def test_options_and_defaults_are_those_of_the_program(self):
        for name, stage in self.stages.items():
            if stage["axis"] == "preset":
                continue
            options = options_of(self.pages[name])
            for option, default in stage["options"].items():
                with self.subTest(stage=name, option=option):
                    self.assertIn(option, options)
                    self.assertEqual(options[option].partition(";")[0], default)

    def test_presets_name_their_options(self):
        for name, stage in self.stages.items():
            page = self.pages[name] if stage["axis"] == "preset" else None
            named = set(CODE.findall(section_of(page))) if page else set()
            if page and "The presets take the other options of their stages" in section_of(page):
                named |= {"run", "buffer", "newest", "sink"}
            for option in stage["options"] if page else ():
                with self.subTest(preset=name, option=option):
                    self.assertIn(option, named)

    def test_no_page_has_options_that_no_stage_of_it_has(self):
        for page in sorted(set(self.pages.values())):
            known = {option for name, at in self.pages.items() if at == page and name != "none" for option in self.stages[name]["options"]}
            with self.subTest(page=page):
                self.assertEqual(sorted(set(options_of(page)) - known), [])


if __name__ == "__main__":
    KVLATHE = sys.argv.pop(1)
    unittest.main()
