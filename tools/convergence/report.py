"""Tables and verdicts from the results of the runs."""
import math
import statistics

import experiments

CERTAIN = 1.0  # points off a bar from which one or two seeds say something
ERRORS = 2  # standard errors of the seeds' differences that noise makes
SAME_BYTES = 0.2  # how far apart the ratios of runs that send as many bytes may be
TOO_FEW = {1: "one seed", 2: "two seeds"}


def deviation(values):
    """Of the sample; NaN where a value is, which statistics.stdev cannot."""
    mean = statistics.fmean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


class Row:
    """What all seeds of one label of a task came to."""

    def __init__(self, label, results):
        self.label = label
        self.by_seed = {result["spec"]["seed"]: result["metric"] for result in results}
        self.mean = statistics.fmean(self.by_seed.values())
        self.spread = deviation(self.by_seed.values()) if len(self.by_seed) > 1 else 0.0
        self.ratio = statistics.fmean(result["ratio"] for result in results)
        self.sent = statistics.fmean(result["ratio_sent"] for result in results)  # with headers: what bars are about
        self.seeds = len(self.by_seed)
        self.spec = results[0]["spec"]
        self.epochs = self.spec["epochs"]
        self.left_out = sum(result["left_out"] for result in results)


def rows_of(runs, results):
    """{task: {label: Row}}"""
    found = {}
    for run in runs:
        result = results.get(run)
        if result is not None:
            found.setdefault(run["spec"]["task"], {}).setdefault(run["label"], []).append(result)
    return {task: {label: Row(label, rs) for label, rs in labels.items()} for task, labels in found.items()}


def common_seeds(*rows):
    return sorted(set.intersection(*(set(row.by_seed) for row in rows)))


def differences(row, other):
    """By seed, where both have it: the same start and the same order of the data. Empty: nothing to compare."""
    seeds = common_seeds(row, other) if row.epochs == other.epochs else ()
    return [row.by_seed[seed] - other.by_seed[seed] for seed in seeds]


def difference(row, other):
    changes = differences(row, other)
    return statistics.fmean(changes) if changes else None


def standard_error(values):
    return deviation(values) / len(values) ** 0.5


def judge(margins, ratio_held=True):
    """`margins`: by how much each seed is better than the bar. Of a ratio, which is steered and hardly depends on the
    seed, the mean alone counts."""
    margin = statistics.fmean(margins)
    if not ratio_held or math.isnan(margin):
        return "MISSED"
    if len(margins) in TOO_FEW:
        if abs(margin) <= CERTAIN:
            return TOO_FEW[len(margins)]
    elif abs(margin) <= ERRORS * standard_error(margins):
        return "within noise"
    return "held" if margin >= 0 else "MISSED"


def shown(values, unit=""):
    error = f" ± {standard_error(values):.2f}" if len(values) not in TOO_FEW else ""
    return f"{statistics.fmean(values):+.2f}{error}{unit}"


class Bars:
    """Rows (what, measured, bar, verdict) of a task; what was not trained is left out."""

    def __init__(self, rows):
        self.rows = rows
        self.lines = []

    def pair(self, label, other):
        """Differences, and the two rows; None where there is nothing to compare."""
        if label not in self.rows or other not in self.rows:
            return None
        row, base = self.rows[label], self.rows[other]
        changes = differences(row, base)
        return (changes, row, base) if changes else None

    def within(self, label, points, least_ratio=0.0):
        if pair := self.pair(label, "none"):
            changes, row, _ = pair
            ratio = f" at {least_ratio:.0f}x or more" if least_ratio else ""
            held = judge([change + points for change in changes], row.sent >= least_ratio)
            measured = f"{shown(changes)} at {row.sent:.2f}x"
            self.lines.append((f"{label} against none", measured, f"-{points:g} or better{ratio}", held))

    def above(self, label, other, points, more_ratio=False, same_bytes=False):
        if pair := self.pair(label, other):
            changes, row, base = pair
            held = judge([change - points for change in changes], not more_ratio or row.sent > base.sent)
            if same_bytes and abs(base.sent / row.sent - 1) > SAME_BYTES:
                held = "other bytes"
            measured = f"{shown(changes)} ({row.sent:.2f}x against {base.sent:.2f}x)"
            bar = f"{points:+g} or better" + (" at a higher ratio" if more_ratio else "")
            bar += " where as many bytes are sent" if same_bytes else ""
            self.lines.append((f"{label} against {other}", measured, bar, held))

    def against_sign(self, label):
        """At its best: tuned, with error feedback or without, by the seeds that both have."""
        others = [name for name in ("sign", "sign, no error feedback") if name in self.rows]
        if others and label in self.rows:
            seeds = common_seeds(self.rows[label], *(self.rows[name] for name in others))
            if seeds:
                mean = {name: statistics.fmean(self.rows[name].by_seed[seed] for seed in seeds) for name in others}
                self.above(label, max(others, key=mean.__getitem__), 1.0, more_ratio=True)

    def against_dropping(self, label):
        """All of them; those that send as many bytes have a verdict."""
        for name in self.rows:
            if name.startswith("dropping"):
                self.above(label, name, 0.0, same_bytes=True)

    def sweep(self):
        rows = {n: self.rows.get(experiments.sweep_label(n)) for n in experiments.SWEEP}
        rows[experiments.BASES["mlp"]["nodes"]] = self.rows.get("laco 1%")
        if None in rows.values() or not (seeds := common_seeds(*rows.values())):
            return
        mean = {n: statistics.fmean(row.by_seed[seed] for seed in seeds) for n, row in rows.items()}
        best, worst = (rows[pick(mean, key=mean.__getitem__)] for pick in (max, min))
        apart = [best.by_seed[seed] - worst.by_seed[seed] for seed in seeds]
        what = f"laco 1%, P = {', '.join(map(str, sorted(rows)))}"
        held = judge([0.4 - width for width in apart])
        self.lines.append((what, f"{shown(apart).lstrip('+')} apart", "0.4 apart at most", held))

    def perplexity(self, label, percent):
        if pair := self.pair(label, "none"):
            _, row, base = pair
            worse = [100 * (row.by_seed[s] / base.by_seed[s] - 1) for s in common_seeds(row, base)]
            held = judge([percent - value for value in worse])
            measured = f"{shown(worse, ' %')} at {row.sent:.2f}x"
            self.lines.append((f"{label} against none", measured, f"+{percent:g} % at most", held))


def bars(task, rows):
    check = Bars(rows)
    if task == "lm":
        check.perplexity("l8", 1)
        check.perplexity("laco 1%", 3)
        return check.lines
    check.within("l8", 0.2)
    check.within("l8, direct", 0.2)
    check.within("laco 10%", 0.3)
    check.within("laco 1%", 0.35, 70)
    check.within("laco 1%, direct", 0.35, 70)
    check.within("laco 1%, brief warm start", 0.5, 100)
    check.within("laco 0.75%, brief warm start", 0.5, 100)
    check.within("laco 0.1%", 0.8)
    check.against_sign("laco 1%")
    check.against_dropping("laco 1%")
    check.above("laco 1%", "laco 1%, no error feedback", 1.5)
    check.sweep()
    return check.lines


def table(head, lines):
    text = "| " + " | ".join(head) + " |\n|" + "---|" * len(head) + "\n"
    return text + "".join("| " + " | ".join(line) + " |\n" for line in lines)


def settings_text(spec):
    """The codec's settings, its rules, and what of the task is not as in the title."""
    settings = dict(spec["settings"])
    words = [str(settings.pop("codec", "")), *(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())]
    for rule in spec.get("rules", ()):
        others = (f"{name.replace('_', ' ')} {value}" for name, value in rule.items() if name not in ("match", "codec"))
        words.append(f"`{rule['match']}` " + " ".join([str(rule.get("codec", "")), *others]).strip())
    base = experiments.BASES[spec["task"]]
    words += [f"{name} {spec[name]}" for name in base if spec[name] != base[name]]
    return ", ".join(words)


def task_tables(task, rows):
    lines = []
    for label, row in rows.items():
        change = difference(row, rows["none"]) if "none" in rows and label != "none" else None
        left_out = f" ({row.left_out} steps left out)" if row.left_out else ""
        against = "" if change is None else f"{change:+.2f}"
        spread = f"{row.spread:.2f}" if row.seeds > 1 else ""
        figures = (f"{row.mean:.2f}", spread, against, f"{row.ratio:.2f}", f"{row.sent:.2f}", str(row.seeds))
        lines.append((label + left_out, settings_text(row.spec), *figures))
    text = f"{experiments.TITLES[task]}:\n\n"
    text += table(("run", "settings", "mean", "spread", "against none", "ratio", "with headers", "seeds"), lines)
    verdicts = bars(task, rows)
    return text + ("\n" + table(("what", "measured", "bar", ""), verdicts) if verdicts else "")


def tables(runs, results):
    """Empty where nothing was trained."""
    found = rows_of(runs, results)
    return "\n".join(task_tables(task, rows) for task, rows in found.items())


def short_verdicts(runs, results):
    """Prints a line each; returns how many bounds were missed. What was not trained missed its bound."""
    missed = 0
    found = rows_of(runs, results)
    for task in dict.fromkeys(run["spec"]["task"] for run in runs):
        rows = found.get(task, {})
        for label, bound in experiments.SHORT_BOUNDS[task].items():
            unit = " %" if task == "lm" else ""
            if label not in rows or "none" not in rows:
                missed += 1
                print(f"{task} {label}: not trained, or none was not: MISSED")
                continue
            value, base = rows[label].mean, rows["none"].mean
            worse = 100 * (value / base - 1) if task == "lm" else base - value
            held = worse <= bound
            missed += not held
            verdict = "held" if held else "MISSED"
            print(f"{task} {label}: {value:.2f}, none {base:.2f}, bound {bound:g}{unit} worse: {verdict}")
    return missed
