"""What the convergence suite plans, and what it makes of results."""
import contextlib
import io
import json
import os
import sys
import unittest
from unittest import mock

TOOLS = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "convergence"))
sys.path.insert(0, TOOLS)
import experiments  # noqa: E402
import report  # noqa: E402
import run as runner  # noqa: E402

NAN = float("nan")


def results_of(metrics, sent=1.0, first_seed=0, **spec):
    spec = {**experiments.BASES["cnn"], "settings": {"codec": "laco", "density": 0.01}, **spec}
    figures = {"ratio": 1.1 * sent, "ratio_sent": sent, "left_out": 0}
    return [{"spec": {**spec, "seed": seed}, "metric": m, **figures} for seed, m in enumerate(metrics, first_seed)]


class Verdicts(unittest.TestCase):
    def rows(self, **labels):
        names = {label: label.replace("_", " ").replace("1p", "1%") for label in labels}
        return {names[label]: report.Row(names[label], results) for label, results in labels.items()}

    def verdict_of(self, rows, start, task="cnn"):
        return next((line[3] for line in report.bars(task, rows) if line[0].startswith(start)), None)

    def test_differences_are_taken_seed_by_seed(self):
        rows = self.rows(none=results_of([80, 90, 85]), l8=results_of([79.9, 89.9, 84.9], 4.0))
        self.assertAlmostEqual(report.difference(rows["l8"], rows["none"]), -0.1)
        self.assertEqual(self.verdict_of(rows, "l8"), "held")
        rows = self.rows(none=results_of([80, 90, 85]), l8=results_of([79.7, 89.7, 84.7], 4.0))
        self.assertEqual(self.verdict_of(rows, "l8"), "MISSED")

    def test_one_or_two_seeds_say_only_what_is_far_from_a_bar(self):
        for values, expected in (
            ([80.7], "one seed"),
            ([79.7], "one seed"),
            ([79.7, 79.7], "two seeds"),
            ([81], "held"),
            ([78], "MISSED"),
            ([78, 78], "MISSED"),
            ([NAN], "MISSED"),
        ):
            rows = self.rows(none=results_of([80, 80]), l8=results_of(values, 4.0))
            self.assertEqual(self.verdict_of(rows, "l8"), expected, values)

    def test_noise_is_called_so_on_both_sides_of_a_bar(self):
        for values, expected in (
            ([80.5, 79.5, 79.7], "within noise"),
            ([79.9, 79.1, 79.3], "within noise"),
            ([80.1, 80, 80.2], "held"),
            ([79.2, 79.1, 79.3], "MISSED"),
            ([80, 80, NAN], "MISSED"),
        ):
            rows = self.rows(none=results_of([80, 80, 80]), l8=results_of(values, 4.0))
            self.assertEqual(self.verdict_of(rows, "l8"), expected, values)

    def test_a_ratio_is_missed_whatever_the_seeds_say_and_counts_headers(self):
        for sent, expected in ((70.1, "held"), (69, "MISSED")):
            for values in ([92], [92, 92.1, 92.2]):
                rows = self.rows(none=results_of([89, 89, 89]), laco_1p=results_of(values, sent))
                self.assertEqual(self.verdict_of(rows, "laco 1% against none"), expected)

    def test_sign_must_be_beaten_at_a_higher_ratio(self):
        for sent, expected in ((20, "held"), (18, "MISSED")):
            rows = self.rows(laco_1p=results_of([89], sent), sign=results_of([86.9], 19))
            self.assertEqual(self.verdict_of(rows, "laco 1% against sign"), expected)

    def test_the_better_sign_is_the_better_one_on_the_seeds_of_both(self):
        rows = self.rows(laco_1p=results_of([90, 90], 70), sign=results_of([85, 95], 19))
        rows["sign, no error feedback"] = report.Row("sign, no error feedback", results_of([86], 19))
        self.assertEqual(self.verdict_of(rows, "laco 1% against sign, no"), "held")
        rows["sign, no error feedback"] = report.Row("sign, no error feedback", results_of([86], 19, first_seed=7))
        self.assertIsNone(self.verdict_of(rows, "laco 1% against sign"))

    def test_dropping_is_judged_where_it_sends_as_many_bytes(self):
        cases = (
            ([88.3, 88, 87.9], 60, "within noise"),
            ([88.3, 88.3, 88.3], 60, "MISSED"),
            ([87, 87.1, 87.2], 80, "held"),
            ([90, 90, 90], 30, "other bytes"),
            ([80, 80, 80], 85, "other bytes"),
        )
        for others, sent, expected in cases:
            rows = self.rows(laco_1p=results_of([88, 88, 88], 70), dropping_1p=results_of(others, sent))
            self.assertEqual(self.verdict_of(rows, "laco 1% against dropping"), expected, (others, sent))

    def test_perplexity_counts_the_other_way(self):
        for value, expected in ((100.9, "held"), (102, "MISSED"), (90, "held")):
            rows = self.rows(none=results_of([100] * 3), l8=results_of([value] * 3, 4))
            self.assertEqual(self.verdict_of(rows, "l8", "lm"), expected)
        rows = self.rows(none=results_of([100, 100, 100]), l8=results_of([105], 4, first_seed=2))
        self.assertEqual(self.verdict_of(rows, "l8", "lm"), "MISSED")
        rows = self.rows(none=results_of([100]), l8=results_of([105], 4, first_seed=2))
        self.assertIsNone(self.verdict_of(rows, "l8", "lm"))

    def test_a_sweep_compares_the_seeds_that_all_its_rings_have(self):
        rows = self.rows(laco_1p=results_of([88, 88, 88], 70))
        for nodes in experiments.SWEEP:
            label = experiments.sweep_label(nodes)
            rows[label] = report.Row(label, results_of([88.1, 88.1, 88.1], 70))
        self.assertEqual(self.verdict_of(rows, "laco 1%, P"), "held")
        rows[label] = report.Row(label, results_of([60, 60], 70, first_seed=2))  # of which only seed 2 is all the others'
        self.assertEqual(self.verdict_of(rows, "laco 1%, P"), "MISSED")
        rows[label] = report.Row(label, results_of([60], 70, first_seed=7))
        self.assertIsNone(self.verdict_of(rows, "laco 1%, P"))

    def test_what_was_not_trained_has_no_bar(self):
        self.assertEqual(report.bars("mlp", self.rows(none=results_of([88]))), [])

    def test_a_table_says_what_each_run_was(self):
        rows = self.rows(none=results_of([88], settings={"codec": "none"}))
        settings = {"codec": "dropping", "density": 0.005, "warm_start_steps": 10}
        odd = results_of([87.5], 40, settings=settings, rules=experiments.in_8_bits("*.bias"), lr=0.25)
        rows["dropping"] = report.Row("dropping", odd)
        text = report.task_tables("cnn", rows)
        self.assertIn("| dropping | dropping, density 0.005, warm start steps 10, `*.bias` l8, lr 0.25 | 87.50 |", text)
        self.assertIn("| -0.50 | 44.00 | 40.00 | 1 |", text)


class ShortVerdicts(unittest.TestCase):
    def missed(self, **metrics):
        """`laco` is for all of its labels."""
        runs = experiments.short_plan(["mlp"])
        found = {run["label"]: metrics.get(run["label"].partition(" ")[0]) for run in runs}
        results = {label: results_of([metric])[0] for label, metric in found.items() if metric is not None}
        known = mock.Mock(get=lambda run: results.get(run["label"]))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            missed = report.short_verdicts(runs, known)
        return missed, out.getvalue()

    def test_what_holds_holds(self):
        self.assertEqual(self.missed(none=85, l8=85, laco=84)[0], 0)

    def test_what_suffers_is_not_a_number_or_was_not_trained_missed(self):
        for metrics, count in (
            ({"none": 85, "l8": 83.9, "laco": 84}, 1),
            ({"none": 85, "l8": NAN, "laco": 84}, 1),
            ({"none": NAN, "l8": 85, "laco": 84}, 4),
            ({"none": 85, "laco": 84}, 1),
            ({"l8": 85, "laco": 84}, 4),
            ({}, 4),
        ):
            missed, out = self.missed(**metrics)
            self.assertEqual((missed, out.count("MISSED")), (count, count), metrics)


class Plans(unittest.TestCase):
    def test_sign_is_tuned_before_it_is_compared(self):
        known = {}
        plan = lambda: experiments.plan(["mlp"], (0, 1), lambda run: known.get(json.dumps(run["spec"])))  # noqa: E731
        named = lambda start: [run for run in plan() if run["label"].startswith(start)]  # noqa: E731
        trials = named("sign, lr")
        self.assertEqual(len(trials), len(experiments.RATES))
        for n, run in enumerate(trials):
            known[json.dumps(run["spec"])] = 50 + (n == 2)
        self.assertEqual([run for run in plan() if run["label"] == "sign"], [])
        full = [run for run in named("sign, lr") if run not in trials]
        self.assertEqual([run["spec"]["lr"] for run in full], [trials[1]["spec"]["lr"], trials[2]["spec"]["lr"]])
        for better in range(2):
            for n, run in enumerate(full):
                known[json.dumps(run["spec"])] = 60 + (n == better)
            chosen = [run for run in plan() if run["label"] == "sign"]
            self.assertEqual({run["spec"]["lr"] for run in chosen}, {full[better]["spec"]["lr"]})
            self.assertEqual([run["spec"]["seed"] for run in chosen], [0, 1])

    def test_some_are_trained_straight_to_the_owners(self):
        runs = experiments.plan(["mlp", "cnn", "lm"], (0,), lambda run: None) + experiments.short_plan(["mlp", "cnn", "lm"])
        for run in runs:
            spec = run["spec"]
            self.assertEqual(spec["algorithm"], "direct" if run["label"].endswith(", direct") else "ring")
            self.assertNotIn("algorithm", spec["settings"])
        self.assertEqual(sum(run["spec"]["algorithm"] == "direct" for run in runs), 6)

    def test_an_experiment_reaches_the_task_and_the_codec(self):
        words = ["cnn", "codec=laco", "momentum=0", "compression.momentum=0.9", "compression.warm-start-steps=5", "batch=64"]
        runs = runner.experiment(words)
        self.assertEqual([run["spec"]["seed"] for run in runs], list(experiments.SEEDS))
        spec = runs[0]["spec"]
        self.assertEqual(spec["settings"], {"codec": "laco", "momentum": 0.9, "warm_start_steps": 5})
        self.assertEqual((spec["task"], spec["momentum"], spec["batch"]), ("cnn", 0, 64))
        self.assertEqual(runner.experiment(["mlp", "task=cnn"])[0]["spec"]["task"], "mlp")

    def test_an_experiment_that_cannot_be_is_refused_in_a_sentence(self):
        for *wrong, word in (
            ("svm", "use one of mlp, cnn, lm"),
            ("cnn", "codec", "NAME=VALUE"),
            ("cnn", "lr=much", "lr=much"),
            ("cnn", "lr=true", "lr=True"),
            ("cnn", "lr=NaN", "lr=nan"),
            ("cnn", "nodes=0", "from 1 to"),
            ("cnn", "nodes=2.5", "nodes=2.5"),
            ("cnn", "epochs=0", "from 1 to"),
            ("cnn", "algorithm=3", "use one of ring, direct"),
            ("cnn", "batch=9", "not a multiple of nodes=4"),
        ):
            with self.assertRaisesRegex(SystemExit, word):
                runner.experiment(wrong)


if __name__ == "__main__":
    unittest.main()
