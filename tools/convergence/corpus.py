"""The King James text of Debian's bible-kjv-text, which the program of bible-kjv prints, as numbers of words."""
import collections
import re
import shutil
import subprocess

VERSES = 31102
BLOCK, HELD_OUT = 100, 20  # every 20th block of 100 verses is for the test


class NoCorpus(RuntimeError):
    """It is not installed."""


class DamagedCorpus(RuntimeError):
    pass


def read_verses():
    program = shutil.which("bible")
    if program is None:
        raise NoCorpus("the program bible is not installed (Debian packages bible-kjv and bible-kjv-text)")
    command = [program, "-f", "gen1:1-rev22:21"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        raise DamagedCorpus("bible did not print its text within 120 s; see what it waits for") from None
    verses = [line.partition(" ")[2] for line in done.stdout.splitlines() if re.match(r"\S+\d+:\d+ ", line)]
    if len(verses) != VERSES:
        found = f"bible printed {len(verses)} verses instead of {VERSES}"
        raise DamagedCorpus(f"{found}; install bible-kjv-text again {done.stderr.strip()}")
    return verses


def words_of(verse):
    return re.findall(r"[a-z]+(?:'[a-z]+)?|[.,;:?!]", verse.lower()) + ["<end>"]


def load(vocabulary):
    """Training text and test text as lists of numbers below `vocabulary`; 0 is every rarer word."""
    train, test = [], []
    for i, verse in enumerate(read_verses()):
        (test if i // BLOCK % HELD_OUT == HELD_OUT - 1 else train).extend(words_of(verse))
    common = collections.Counter(train).most_common(vocabulary - 1)
    number = {word: n for n, (word, _) in enumerate(sorted(common, key=lambda item: (-item[1], item[0])), start=1)}
    return [number.get(word, 0) for word in train], [number.get(word, 0) for word in test]
