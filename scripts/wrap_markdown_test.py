#!/usr/bin/env python3
"""Tests of wrap_markdown.py."""
import unittest

import wrap_markdown

LONG = "A sentence of words, " * 6 + "and its end."


class WrapTest(unittest.TestCase):
    def test_a_paragraph_is_wrapped_and_keeps_its_words(self):
        text = f"# Title\n\n{LONG}\nIts second line.\n\nAnother\nparagraph.\n"
        after = wrap_markdown.wrapped(text)
        self.assertEqual(after.split(), text.split())
        self.assertLessEqual(max(map(len, after.split("\n"))), 100)
        self.assertTrue(after.endswith("\n\nAnother\nparagraph.\n"))  # it was short
        self.assertEqual(wrap_markdown.wrapped(after), after)

    def test_items_keep_their_indent(self):
        after = wrap_markdown.wrapped(f"- {LONG}\n- short\n  1. {LONG}\n")
        lines = after.split("\n")
        self.assertEqual([line[:5] for line in lines if not line.startswith("  ")], ["- A s", "- sho", ""])
        self.assertTrue(lines[1].startswith("  ") and not lines[1].startswith("   "))
        self.assertTrue(lines[-2].startswith("     "))
        self.assertEqual(wrap_markdown.long_lines(after), [])

    def test_tables_code_headings_and_comments_stay(self):
        for text in (f"| {LONG} |\n|---|\n", f"```\n{LONG}\n```\n", f"    {LONG}\n", f"## {LONG}\n", f"<!-- {LONG} -->\n"):
            self.assertEqual(wrap_markdown.wrapped(text), text)
            self.assertEqual(wrap_markdown.long_lines(text), [])

    def test_what_cannot_be_broken_is_not_counted(self):
        code, link = "`" + LONG + "`", "[a](" + 120 * "b" + ")"
        for word in (code, link):
            self.assertEqual(wrap_markdown.long_lines(f"{word}\n"), [])
            self.assertEqual(wrap_markdown.wrapped(f"See {word} now.\n"), f"See\n{word}\nnow.\n")

    def test_long_lines_are_counted_where_they_stand(self):
        self.assertEqual(wrap_markdown.long_lines(f"short\n\n{LONG}\n- {LONG}\n"), [3, 4])

    def test_no_line_begins_with_what_would_be_markup(self):
        for mark in ("-", "+", "1.", "#"):
            text = "x" * 98 + f" {mark} y " + LONG
            self.assertTrue(all(not line.startswith(mark) for line in wrap_markdown.wrapped(text).split("\n")), mark)


if __name__ == "__main__":
    unittest.main()
