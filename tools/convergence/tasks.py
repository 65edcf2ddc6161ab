"""What is trained: every worker's gradient of a step in a row of one matrix, and how good the parameters are.

A task has `layers` (name, elements), `weights` (all parameters in one vector), `steps` an epoch, `gradients(out)`
for the next step and `evaluate()`. `batch`: images, or streams of text, of all workers together. Images: per cent right on
the test images, more is better. Text: perplexity, less is better.
"""
import math
import os
import sys

import torch
from torch import nn

import corpus

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples"))
import fashion_mnist  # noqa: E402

VOCABULARY, WIDTH = 3000, 64
WINDOW = 35  # words a step of every stream of text
CLIP = 0.25  # of a worker's gradient norm, before it is compressed


class Task:
    def __init__(self, net, workers, seed):
        self.net = net
        self.workers = workers
        self.order = torch.Generator().manual_seed(1000 + seed)
        self.parameters = list(net.parameters())
        self.layers = [(name, p.numel()) for name, p in net.named_parameters()]
        self.weights = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        for p, view in zip(self.parameters, self._views(self.weights)):
            p.data = view
        self._rows = None

    def _views(self, vector):
        parts = torch.split(vector, [p.numel() for p in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters)]

    def gradients(self, out):
        """Of the next step, of every worker's own share of the batch, into out (workers x elements)."""
        if self._rows is None or self._rows[0] is not out:
            self._rows = (out, [self._views(row) for row in out])
        out.zero_()
        for worker, views in enumerate(self._rows[1]):
            for p, view in zip(self.parameters, views):
                p.grad = view
            self.loss(worker).backward()
            self.clip(out[worker])
        self.after_step()

    def clip(self, gradient):
        pass

    def after_step(self):
        pass


class Images(Task):
    def __init__(self, net, workers, seed, batch):
        super().__init__(net, workers, seed)
        self.images, self.labels = fashion_mnist.load(fashion_mnist.DATA, "train", None)
        self.test = fashion_mnist.load(fashion_mnist.DATA, "test", None)
        self.share = batch // workers
        self.steps = len(self.images) // (self.share * workers)
        self.start_epoch()

    def start_epoch(self):
        self.permutation = torch.randperm(len(self.images), generator=self.order)
        self.step = 0

    def loss(self, worker):
        first = (self.step * self.workers + worker) * self.share
        chosen = self.permutation[first : first + self.share]
        return nn.functional.cross_entropy(self.net(self.images[chosen]), self.labels[chosen])

    def after_step(self):
        self.step += 1

    def evaluate(self):
        images, labels = self.test
        with torch.no_grad():
            right = sum(
                (self.net(images[i : i + 1000]).argmax(1) == labels[i : i + 1000]).sum().item()
                for i in range(0, len(images), 1000)
            )
        return 100.0 * right / len(images)


class Mlp(Images):
    """784-128-10 by hand: batched products take half the time of one backward pass a worker."""

    def __init__(self, workers, seed, batch):
        torch.manual_seed(seed)
        super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)), workers, seed, batch)

    def gradients(self, out):
        weight1, bias1, weight2, bias2 = (p.detach() for p in self.parameters)
        workers, share = self.workers, self.share
        first = self.step * workers * share
        chosen = self.permutation[first : first + workers * share]
        images = self.images[chosen].view(-1, 784)
        hidden = torch.addmm(bias1, images, weight1.t()).relu_()
        by_score = torch.addmm(bias2, hidden, weight2.t()).softmax(1)
        by_score[torch.arange(len(chosen)), self.labels[chosen]] -= 1
        by_score /= share  # the mean over a worker's images
        by_hidden = torch.mm(by_score, weight2).mul_(hidden > 0)
        by_score, by_hidden = by_score.view(workers, share, 10), by_hidden.view(workers, share, 128)
        parts = torch.split(out, [p.numel() for p in self.parameters], dim=1)
        parts[0].view(workers, 128, 784).copy_(torch.bmm(by_hidden.transpose(1, 2), images.view(workers, share, 784)))
        parts[1].copy_(by_hidden.sum(1))
        parts[2].view(workers, 10, 128).copy_(torch.bmm(by_score.transpose(1, 2), hidden.view(workers, share, 128)))
        parts[3].copy_(by_score.sum(1))
        self.after_step()


def cnn(workers, seed, batch):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    return Images(net, workers, seed, batch)


class Lstm(nn.Module):
    """Words in, scores of the next word out, with one matrix for both."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.lstm = nn.LSTM(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, words, state):
        hidden, state = self.lstm(self.embedding(words), state)
        return nn.functional.linear(hidden, self.embedding.weight, self.bias), state


class Text(Task):
    def __init__(self, workers, seed, batch):
        torch.manual_seed(seed)
        super().__init__(Lstm(), workers, seed)
        self.count = batch
        self.train, self.test = (torch.tensor(part) for part in corpus.load(VOCABULARY))
        self.share = batch // workers
        self.length = len(self.train) // batch
        self.steps = (self.length - 1) // WINDOW
        self.start_epoch()

    def start_epoch(self):
        """The text goes round by a random number of words, so that epochs and seeds cut it in other places."""
        shift = int(torch.randint(len(self.train), (1,), generator=self.order))
        words = torch.roll(self.train, shift)[: self.length * self.count]
        self.streams = words.view(self.count, self.length).t().contiguous()
        self.states = [None] * self.workers
        self.step = 0

    def loss(self, worker):
        first = self.step * WINDOW
        part = self.streams[first : first + WINDOW + 1, worker * self.share : (worker + 1) * self.share]
        scores, state = self.net(part[:-1], self.states[worker])
        self.states[worker] = tuple(s.detach() for s in state)
        return nn.functional.cross_entropy(scores.reshape(-1, VOCABULARY), part[1:].reshape(-1))

    def clip(self, gradient):
        norm = gradient.norm().item()
        if norm > CLIP:
            gradient.mul_(CLIP / norm)

    def after_step(self):
        self.step += 1

    def evaluate(self):
        """Over the test text in eight streams."""
        length = len(self.test) // 8
        streams = self.test[: length * 8].view(8, length).t()
        state, total, count = None, 0.0, 0
        with torch.no_grad():
            for first in range(0, length - 1, 100):
                part = streams[first : first + 101]
                scores, state = self.net(part[:-1], state)
                words = part[1:].reshape(-1)
                total += nn.functional.cross_entropy(scores.reshape(-1, VOCABULARY), words, reduction="sum").item()
                count += len(words)
        return math.exp(total / count)


MAKE = {"mlp": Mlp, "cnn": cnn, "lm": Text}
