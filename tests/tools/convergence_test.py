"""The ring laboratory, and the gradients that are trained with."""
import os
import sys
import unittest

import numpy

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tools", "convergence"))
import ring_lab  # noqa: E402

LAYERS = [("first", 5000), ("bias", 37), ("last", 3000)]
ELEMENTS = sum(elements for _, elements in LAYERS)


def gradients(nodes, seed=1):
    return numpy.random.default_rng(seed).standard_normal((nodes, ELEMENTS)).astype(numpy.float32)


class RingLab(unittest.TestCase):
    def ring(self, nodes, settings, **rest):
        ring = ring_lab.Ring(nodes, LAYERS, settings, **rest)
        self.addCleanup(ring.close)
        return ring

    def test_none_gives_the_average_of_all_nodes(self):
        for nodes in (1, 2, 3, 8, 16):
            given = gradients(nodes)
            average = numpy.empty(ELEMENTS, numpy.float32)
            ring = self.ring(nodes, {"codec": "none"})
            self.assertTrue(ring.allreduce(given, average))
            numpy.testing.assert_allclose(average, given.mean(axis=0, dtype=numpy.float64), atol=1e-6)
            counts = ring.counts()
            self.assertEqual(counts.wire_bytes, 2 * (nodes - 1) * 4 * ELEMENTS)
            self.assertEqual(counts.raw_bytes, counts.wire_bytes)
            self.assertEqual((counts.operations, counts.residual_norm, counts.density), (1, 0.0, 1.0))

    def test_straight_to_the_owners_a_sum_is_rounded_twice_however_many_nodes_there_are(self):
        errors = {}
        for algorithm in ("ring", "direct"):
            for nodes in (2, 4, 32):
                given = gradients(nodes)
                average = numpy.empty(ELEMENTS, numpy.float32)
                ring = self.ring(nodes, {"codec": "l8"}, algorithm=algorithm)
                self.assertTrue(ring.allreduce(given, average))
                error = numpy.linalg.norm(average - given.mean(axis=0)) / numpy.linalg.norm(given.mean(axis=0))
                errors[algorithm, nodes] = error
                self.assertEqual(ring.counts().raw_bytes, 2 * (nodes - 1) * 4 * ELEMENTS)
        self.assertEqual(errors["direct", 2], errors["ring", 2])
        self.assertAlmostEqual(errors["direct", 32], errors["direct", 4], delta=0.1 * errors["direct", 4])
        self.assertGreater(errors["ring", 32], 2 * errors["direct", 32])

    def test_headers_are_those_of_messages_and_grants(self):
        for algorithm, nodes, elements, messages, grants in (
            ("ring", 1, 8000, 0, 0),
            ("ring", 2, 4000, 4, 0),  # chunks of 8,000 bytes need no grant
            ("ring", 2, 8000, 4, 2),
            ("ring", 4, 8000, 24, 0),
            ("ring", 4, 200000, 2 * 24, 4),  # two segments a chunk
            ("direct", 2, 8000, 4, 2),
            ("direct", 4, 8000, 24, 0),
            ("direct", 4, 200000, 2 * 24, 12),  # of everybody to everybody
        ):
            ring = ring_lab.Ring(nodes, [("layer", elements)], {"codec": "none"}, algorithm=algorithm)
            self.addCleanup(ring.close)
            for steps in (1, 2):
                ring.allreduce(numpy.ones((nodes, elements), numpy.float32), numpy.empty(elements, numpy.float32))
                self.assertEqual(ring.counts().header_bytes, 96 * steps * (messages + grants), (algorithm, nodes, elements))

    def test_whole_numbers_are_averaged_exactly(self):
        given = numpy.rint(8 * gradients(4))
        average = numpy.empty(ELEMENTS, numpy.float32)
        self.ring(4, {"codec": "none"}).allreduce(given, average)
        numpy.testing.assert_array_equal(average, given.mean(axis=0))

    def test_eight_bits_send_a_quarter_and_a_little(self):
        ring = self.ring(8, {"codec": "l8"})
        given = gradients(8)
        average = numpy.empty(ELEMENTS, numpy.float32)
        ring.allreduce(given, average)
        error = numpy.linalg.norm(average - given.mean(axis=0)) / numpy.linalg.norm(average)
        self.assertLess(error, 0.1)
        counts = ring.counts()
        ratio = counts.raw_bytes / counts.wire_bytes
        self.assertTrue(3.9 < ratio <= 4.0, ratio)
        self.assertGreater(counts.residual_norm, 0)

    def test_what_a_sparse_ring_delivers_and_keeps_is_what_it_was_given(self):
        ring = self.ring(4, {"codec": "laco", "density": 0.01, "warm_start_steps": 0})
        average = numpy.empty(ELEMENTS, numpy.float32)
        given, delivered = numpy.zeros(ELEMENTS), numpy.zeros(ELEMENTS)
        constant = gradients(4)
        for _ in range(300):
            ring.allreduce(constant, average)
            given += constant.sum(axis=0)
            delivered += 4.0 * average
        kept = numpy.linalg.norm(given - delivered)
        self.assertLess(kept, 2 * ring.counts().residual_norm)  # the residuals of four nodes point the same way
        self.assertLess(kept, 0.5 * numpy.linalg.norm(given))
        self.assertLess(ring.counts().density, 0.1)

    def test_the_same_gradients_give_the_same_bits_in_torch_and_numpy(self):
        import torch

        given = gradients(2)
        averages = []
        for _ in range(2):
            ring = self.ring(2, {"codec": "laco", "warm_start_steps": 0})
            average = numpy.empty(ELEMENTS, numpy.float32)
            ring.allreduce(given, average)
            averages.append(average.tobytes())
        tensor = torch.empty(ELEMENTS)
        self.ring(2, {"codec": "laco", "warm_start_steps": 0}).allreduce(torch.from_numpy(given), tensor)
        self.assertEqual({*averages, tensor.numpy().tobytes()}, {averages[0]})

    def test_a_step_that_is_not_finite_changes_nothing(self):
        ring = self.ring(2, {"codec": "l8"})
        average = numpy.empty(ELEMENTS, numpy.float32)
        ring.allreduce(gradients(2), average)
        before = ring.counts().residual_norm
        bad = gradients(2)
        bad[1, 77] = numpy.inf
        self.assertFalse(ring.allreduce(bad, average))
        self.assertEqual((ring.counts().residual_norm, ring.counts().operations), (before, 1))

    def test_rules_reach_their_layers(self):
        average = numpy.empty(ELEMENTS, numpy.float32)
        rules = [{"match": "last", "codec": "none"}]
        mixed = self.ring(2, {"codec": "l8"}, rules=rules)
        given = gradients(2)
        mixed.allreduce(given, average)
        numpy.testing.assert_array_equal(average[5037:], (given[0, 5037:] + given[1, 5037:]) / 2)

    def test_refusals_say_what_is_wrong(self):
        for settings, nodes, word in (
            ({"codec": "zip"}, 2, "zip"),
            ({"colour": 1}, 2, "colour"),
            ({"density": 2}, 2, "density"),
            ({}, 0, "0 nodes"),
            ({}, 65, "65 nodes"),
        ):
            with self.assertRaisesRegex(ring_lab.LabError, word):
                ring_lab.Ring(nodes, LAYERS, settings)
        for codec, algorithm, word in (("l8", "tree", "use ring or direct"), ("sign", "direct", "use algorithm ring")):
            with self.assertRaisesRegex(ring_lab.LabError, word):
                ring_lab.Ring(3, LAYERS, {"codec": codec}, algorithm=algorithm)
        with self.assertRaises(ring_lab.LabError):
            ring_lab.Ring(2, [("a", -1)], {})
        ring = self.ring(2, {})
        average = numpy.empty(ELEMENTS, numpy.float32)
        for wrong in (gradients(3), gradients(2).astype(numpy.float64), gradients(2).T.copy().T):
            with self.assertRaises(ValueError):
                ring.allreduce(wrong, average)


class Fingerprints(unittest.TestCase):
    def test_they_tell_settings_apart_and_nothing_else(self):
        def spec(nodes=2, rules=(), seed=0, **settings):
            return {"nodes": nodes, "algorithm": "ring", "settings": settings, "rules": rules, "seed": seed}

        first, again = (ring_lab.Fingerprints(ring_lab.find_library()) for _ in range(2))
        laco = spec(codec="laco", warm_start_steps=100)
        self.assertEqual(first.of(laco), again.of({**laco, "seed": 1}))
        others = (
            spec(codec="laco", warm_start_steps=100, density=0.02),
            spec(codec="laco", warm_start_steps=100, norm="current"),
            spec(codec="laco", warm_start_steps=100, rules=[{"match": "3.weight", "codec": "none"}]),
            spec(codec="laco", warm_start_steps=100, nodes=3),
            {**spec(codec="laco", warm_start_steps=100, nodes=3), "algorithm": "direct"},
            spec(codec="l8"),
            spec(codec="none"),
            spec(codec="of tomorrow"),
            spec(codec="laco", warm_start_steps="soon"),
        )
        self.assertEqual(len({first.of(laco), *map(first.of, others)}), len(others))
        self.assertEqual({first.of(other) for other in others[-2:]}, {"unknown"})

    def test_they_see_a_density_behind_every_warm_start(self):
        def spec(density, rules, **settings):
            settings = {"codec": "laco", "density": density, **settings}
            return {"nodes": 2, "algorithm": "ring", "settings": settings, "rules": rules}

        prints = ring_lab.Fingerprints(ring_lab.find_library())
        rule = {"match": "*", "codec": "laco"}
        for settings, rules in (
            ({}, lambda density: []),
            ({}, lambda density: [{**rule, "density": density}]),
            ({}, lambda density: [{**rule, "density": density, "warm_start_steps": 500}]),
            ({"warm_start_steps": 500}, lambda density: [{**rule, "density": density}]),
        ):
            one, other = (spec(density, rules(density), **settings) for density in (0.01, 0.02))
            self.assertNotEqual(prints.of(one), prints.of(other))


class Gradients(unittest.TestCase):
    def test_products_by_hand_are_what_autograd_computes(self):
        import torch

        import tasks

        class Small(tasks.Mlp):
            def __init__(self):
                torch.manual_seed(3)
                nn = torch.nn
                net = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
                tasks.Task.__init__(self, net, 4, 3)
                self.images, self.labels = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
                self.share, self.permutation, self.step = 8, torch.randperm(64), 1

        by_hand, by_autograd = (torch.ones(4, 101770) for _ in range(2))
        Small().gradients(by_hand)
        tasks.Task.gradients(Small(), by_autograd)
        torch.testing.assert_close(by_hand, by_autograd, rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    unittest.main()
