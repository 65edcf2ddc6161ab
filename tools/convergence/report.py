"""Tables and verdicts from the results of the runs."""
import statistics

import experiments


class Row:
    """What all seeds of one label of a task came to."""

    def __init__(self, label, results):
        self.label = label
        self.by_seed = {result["spec"]["seed"]: result["metric"] for result in results}
        self.mean = statistics.fmean(self.by_seed.values())
        self.spread = statistics.stdev(self.by_seed.values()) if len(self.by_seed) > 1 else 0.0
        self.ratio = statistics.fmean(result["ratio"] for result in results)
        self.seeds = len(self.by_seed)
        self.lr = results[0]["spec"]["lr"]
        self.epochs = results[0]["spec"]["epochs"]
        self.left_out = sum(result["left_out"] for result in results)


def rows_of(runs, results):
    """{task: {label: Row}}"""
    found = {}
    for run in runs:
        result = results.get(run)
        if result is not None:
            found.setdefault(run["spec"]["task"], {}).setdefault(run["label"], []).append(result)
    return {task: {label: Row(label, rs) for label, rs in labels.items()} for task, labels in found.items()}


def difference(row, other):
    """Mean over the seeds that both have: the same start and the same order of the data. None: nothing to compare."""
    seeds = row.by_seed.keys() & other.by_seed.keys() if row.epochs == other.epochs else ()
    return statistics.fmean(row.by_seed[s] - other.by_seed[s] for s in seeds) if seeds else None


def verdict(held):
    return "within noise" if held is None else "held" if held else "MISSED"


class Bars:
    """Rows (what, measured, bar, verdict) of a task; what was not trained is left out."""

    def __init__(self, rows):
        self.rows = rows
        self.lines = []

    def add(self, what, measured, bar, held):
        self.lines.append((what, measured, bar, verdict(held)))

    def within(self, label, points, least_ratio=0.0):
        if label in self.rows and "none" in self.rows:
            row = self.rows[label]
            change = difference(row, self.rows["none"])
            if change is not None:
                ratio = f" at {least_ratio:.0f}x or more" if least_ratio else ""
                measured = f"{change:+.2f} at {row.ratio:.0f}x"
                held = change >= -points and row.ratio >= least_ratio
                self.add(f"{label} against none", measured, f"-{points:g} or better{ratio}", held)

    def above(self, label, other, points, more_ratio=False):
        if label in self.rows and other in self.rows:
            row, base = self.rows[label], self.rows[other]
            change = difference(row, base)
            if change is not None:
                held = change >= points and (not more_ratio or row.ratio > base.ratio)
                if not held and points == 0 and self.is_noise(row, base, change):
                    held = None
                measured = f"{change:+.2f} ({row.ratio:.0f}x against {base.ratio:.0f}x)"
                bar = f"{points:+g} or better" + (" at a higher ratio" if more_ratio else "")
                self.add(f"{label} against {other}", measured, bar, held)

    def against_sign(self, label):
        """At its best: tuned, with error feedback or without."""
        others = [name for name in ("sign", "sign, no error feedback") if name in self.rows]
        if others:
            self.above(label, max(others, key=lambda name: self.rows[name].mean), 1.0, more_ratio=True)

    @staticmethod
    def is_noise(row, other, change):
        """Whether a difference is within twice the standard error of the seeds' differences."""
        changes = [row.by_seed[s] - other.by_seed[s] for s in row.by_seed.keys() & other.by_seed.keys()]
        return len(changes) > 2 and abs(change) <= 2 * statistics.stdev(changes) / len(changes) ** 0.5

    def against_dropping(self, label):
        """At the same bytes: the one of the nearest ratio."""
        others = [name for name in self.rows if name.startswith("dropping")]
        if label in self.rows and others:
            ratio = self.rows[label].ratio
            self.above(label, min(others, key=lambda name: abs(self.rows[name].ratio - ratio)), 0.0)

    def sweep(self):
        rows = {n: self.rows.get(experiments.sweep_label(n)) for n in experiments.SWEEP}
        rows[experiments.BASES["mlp"]["nodes"]] = self.rows.get("laco 1%")
        means = [row.mean for row in rows.values() if row]
        if len(means) == len(rows):
            width = max(means) - min(means)
            what = f"laco 1%, P = {', '.join(map(str, sorted(rows)))}"
            self.add(what, f"{width:.2f} apart", "0.4 apart at most", width <= 0.4)

    def perplexity(self, label, per_cent):
        if label in self.rows and "none" in self.rows:
            row, base = self.rows[label], self.rows["none"]
            change = 100 * (row.mean / base.mean - 1)
            measured = f"{change:+.2f} % at {row.ratio:.0f}x"
            self.add(f"{label} against none", measured, f"+{per_cent} % at most", change <= per_cent)


def bars(task, rows):
    check = Bars(rows)
    if task == "lm":
        check.perplexity("l8", 1)
        check.perplexity("laco 1%", 3)
        return check.lines
    check.within("l8", 0.2)
    check.within("laco 10%", 0.3)
    check.within("laco 1%", 0.35, 70)
    check.within("laco 1%, brief warm start", 0.5, 100)
    check.within("laco 0.1%", 0.8)
    check.against_sign("laco 1%")
    check.against_dropping("laco 1%")
    check.above("laco 1%", "laco 1%, no error feedback", 1.5)
    check.sweep()
    return check.lines


def table(head, lines):
    text = "| " + " | ".join(head) + " |\n|" + "---|" * len(head) + "\n"
    return text + "".join("| " + " | ".join(line) + " |\n" for line in lines)


def task_tables(task, rows):
    lines = []
    for label, row in rows.items():
        change = difference(row, rows["none"]) if "none" in rows and label != "none" else None
        lr = f", lr {row.lr:g}" if label.startswith("sign") and ", lr " not in label else ""
        left_out = f" ({row.left_out} steps left out)" if row.left_out else ""
        against = "" if change is None else f"{change:+.2f}"
        spread = f"{row.spread:.2f}" if row.seeds > 1 else ""
        figures = (f"{row.mean:.2f}", spread, against, f"{row.ratio:.1f}", str(row.seeds))
        lines.append((label + lr + left_out, *figures))
    text = f"{experiments.TITLES[task]}:\n\n"
    text += table(("codec", "mean", "spread", "against none", "ratio", "seeds"), lines)
    verdicts = bars(task, rows)
    return text + ("\n" + table(("what", "measured", "bar", ""), verdicts) if verdicts else "")


def tables(runs, results):
    found = rows_of(runs, results)
    return "\n".join(task_tables(task, rows) for task, rows in found.items()) or "nothing was trained yet"


def short_verdicts(runs, results):
    """Prints a line each; returns how many bounds were missed."""
    missed = 0
    for task, rows in rows_of(runs, results).items():
        for label, bound in experiments.SHORT_BOUNDS[task].items():
            if label not in rows or "none" not in rows:
                continue
            value, base = rows[label].mean, rows["none"].mean
            worse = 100 * (value / base - 1) if task == "lm" else base - value
            missed += worse > bound
            unit = " %" if task == "lm" else ""
            held = verdict(worse <= bound)
            print(f"{task} {label}: {value:.2f}, none {base:.2f}, bound {bound:g}{unit} worse: {held}")
    return missed
