#!/usr/bin/python3
"""skipped.py LOG: what was skipped in a ctest run, and why, from its LastTest.log; a line for each reason.

Python's unittest says it with -v, GoogleTest always, other programs in a line "skipped: TEST: WHY".
"""
import ast
import collections
import re
import sys

HEADER = re.compile(r"(\w+) \(([\w.]+)\).* \.\.\. ")
UNITTEST = re.compile(r"skipped ('.*'|\".*\")$")
SENTENCE = re.compile(r"skipped: (\S+(?: \(\w+\))?): (.+)")
GOOGLE_WHY = re.compile(r"\S+:\d+: Skipped$")
GOOGLE_END = re.compile(r"\[  SKIPPED \] (\S+) \(\d+ ms\)$")


def skipped(lines):
    """(test, reason) pairs."""
    test, why = "", None
    for line in map(str.rstrip, lines):
        if header := HEADER.match(line):
            method, place = header.groups()
            test = place if place.endswith(f".{method}") else f"{place}.{method}"
        if found := UNITTEST.search(line):  # on a line of its own where the test has printed something
            yield test, ast.literal_eval(found[1])
        elif found := SENTENCE.match(line):
            yield found[1], found[2]
        elif GOOGLE_WHY.match(line):
            why = []
        elif found := GOOGLE_END.match(line):
            yield found[1], " ".join(why or ["no reason given"])
            why = None
        elif why is not None and line:
            why.append(line)


def main():
    with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
        tests = collections.defaultdict(list)
        for test, reason in skipped(log):
            tests[reason].append(test)
    for reason, names in tests.items():
        print(f"skipped: {', '.join(names)}: {reason}")


if __name__ == "__main__":
    main()
