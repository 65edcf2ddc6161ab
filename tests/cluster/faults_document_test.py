"""docs/faults.md names tests: each of them must exist, and each line must have one or a reason."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOOGLE = re.compile(r"TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)")


def google_tests():
    names = set()
    for source in (ROOT / "tests").rglob("*_test.cc"):
        names.update(f"{suite}.{name}" for suite, name in GOOGLE.findall(source.read_text(encoding="utf-8")))
    return names


class FaultsDocument(unittest.TestCase):
    def setUp(self):
        text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
        self.rows = [[cell.strip() for cell in line.strip().strip("|").split("|")]
                     for line in text.splitlines() if re.match(r"\|\s*\d+\s*\|", line)]

    def test_every_test_that_is_named_exists(self):
        known = google_tests()
        missing = []
        for number, *_, held in self.rows:
            for name in re.findall(r"`([^`]+)`", held):
                path, found, function = name.partition("::")
                if found:
                    file = ROOT / "tests" / path
                    there = file.is_file() and re.search(rf"\bdef {re.escape(function)}\(",
                                                         file.read_text(encoding="utf-8"))
                else:
                    there = name in known
                if not there:
                    missing.append(f"{number}: {name}")
        self.assertEqual(missing, [])

    def test_every_line_has_a_test_or_a_reason(self):
        self.assertGreater(len(self.rows), 20, "the table is not read")
        self.assertEqual([int(row[0]) for row in self.rows], list(range(1, len(self.rows) + 1)))
        for row in self.rows:
            self.assertEqual(len(row), 3, row)
            self.assertRegex(row[2], r"`[^`]+`|^Not yet: \w", row)


if __name__ == "__main__":
    unittest.main()
