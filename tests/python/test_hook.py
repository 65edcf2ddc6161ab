"""gradwire.torch's hook on real DDP, two processes over gloo, with FakeJob in the daemon's place.

Both processes run every scenario in turn and write what went wrong; each test reports one scenario.
"""
import json
import os
import subprocess
import sys
import tempfile
import traceback
import unittest

WORLD = 2
FAKE_GRADWIRED = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None


def scenarios():
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    import gradwire
    import gradwire.torch
    from fake_job import FakeJob

    rank = dist.get_rank()
    dist._DEFAULT_FIRST_BUCKET_BYTES = 4096  # else the first bucket takes 1 MiB, all of these models

    def net(seed=1, width=64):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.left, self.right, self.head = nn.Linear(20, 16), nn.Linear(20, 16), nn.Linear(16, 3)

        def forward(self, x, left):
            return self.head((self.left if left else self.right)(x))

    def batch(step, dtype=torch.float32):
        generator = torch.Generator().manual_seed(100 * step + rank)
        return torch.randn(8, 20, generator=generator, dtype=dtype), torch.randint(0, 3, (8,), generator=generator)

    def pair(make=net, hook_options=(), **ddp):
        """The same model twice: plain DDP, and DDP with the hook."""
        plain, hooked = DDP(make(), **ddp), DDP(make(), **ddp)
        job = FakeJob(dist.new_group())
        state = gradwire.torch.register(hooked, job, **dict(hook_options))
        return plain, hooked, job, state

    def step_both(models, step, forward=lambda model, x: model(x)):
        for model in models:
            x, y = batch(step, next(model.parameters()).dtype)
            nn.functional.cross_entropy(forward(model, x), y).backward()

    def expect_equal_gradients(plain, hooked):
        for (name, a), (_, b) in zip(plain.named_parameters(), hooked.named_parameters()):
            if a.grad is None:
                assert b.grad is None, name
            else:
                torch.testing.assert_close(b.grad, a.grad, rtol=1e-5, atol=1e-7, msg=name)

    def train(plain, hooked, steps, forward=None):
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (plain, hooked)]
        for step in range(steps):
            for optimizer in optimizers:
                optimizer.zero_grad()
            step_both((plain, hooked), step, forward or (lambda model, x: model(x)))
            expect_equal_gradients(plain, hooked)
            for model in (plain, hooked):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()

    def equals_plain_ddp():
        plain, hooked, job, state = pair()
        train(plain, hooked, 5)
        assert [b.name for b in job.alive()] == ["ddp.bucket2", "ddp.bucket3"], [b.name for b in job.alive()]
        state.close()
        assert not job.alive()

    def first_iteration_is_exact_and_freed_at_the_rebuild():
        plain, hooked, job, state = pair(bucket_cap_mb=0.005)
        train(plain, hooked, 1)
        assert [(b.may_compress, b.destroyed) for b in job.buckets] == [(False, False)]
        assert job.buckets[0].elements == sum(p.numel() for p in hooked.parameters())
        train(plain, hooked, 4)
        assert job.buckets[0].destroyed
        later = job.buckets[1:]
        assert len(later) > 1 and all(b.may_compress and not b.destroyed for b in later)
        names = {name for b in later for name, _ in b.layers}
        assert names == {name for name, _ in hooked.module.named_parameters()}, names
        assert [len(b.scales) for b in later] == [4] * len(later)
        state.close()

    def flushes_the_steps_that_are_asked_to():
        plain, hooked, job, state = pair()
        train(plain, hooked, 2)
        assert [b.flushes for b in job.buckets] == [0] * len(job.buckets)
        state.flush = True
        train(plain, hooked, 1)
        state.flush = False
        train(plain, hooked, 1)
        assert [b.flushes for b in job.alive()] == [1] * len(job.alive())
        state.close()

    def no_sync_accumulates():
        plain, hooked, job, state = pair(bucket_cap_mb=0.005)
        train(plain, hooked, 2)
        for model in (plain, hooked):
            model.zero_grad()
        count = sum(len(b.scales) for b in job.buckets)
        with plain.no_sync(), hooked.no_sync():
            step_both((plain, hooked), 10)
            step_both((plain, hooked), 11)
        assert sum(len(b.scales) for b in job.buckets) == count
        step_both((plain, hooked), 12)
        expect_equal_gradients(plain, hooked)
        state.close()

    def unused_parameters():
        plain, hooked, job, state = pair(Branches, find_unused_parameters=True, bucket_cap_mb=0.001)
        for step in range(6):
            plain.zero_grad(), hooked.zero_grad()
            step_both((plain, hooked), step, lambda model, x: model(x, step % 3 != 0))
            expect_equal_gradients(plain, hooked)
        assert all(b.may_compress for b in job.alive())
        state.close()

    def view_of_the_result():
        for as_bucket_view in (False, True):
            plain, hooked, _, state = pair(hook_options={"view": True}, bucket_cap_mb=0.005,
                                           gradient_as_bucket_view=as_bucket_view)
            train(plain, hooked, 4)
            state.close()

    def gradient_as_bucket_view():
        plain, hooked, _, state = pair(bucket_cap_mb=0.005, gradient_as_bucket_view=True)
        train(plain, hooked, 4)
        state.close()

    def static_graph():
        plain, hooked, _, state = pair(bucket_cap_mb=0.005, static_graph=True)
        train(plain, hooked, 4)
        state.close()

    def not_finite_reaches_a_scaler_which_skips():
        scale = [1024.0]
        plain, hooked, job, state = pair(hook_options={"scale": lambda: scale[0]})
        optimizer = torch.optim.SGD(hooked.parameters(), lr=0.1)
        skipped = []
        for step in range(6):
            optimizer.zero_grad()
            x, y = batch(step)
            if step == 3 and rank == 1:
                x[0, 0] = float("inf")
            (nn.functional.cross_entropy(hooked(x), y) * scale[0]).backward()
            gradients = [p.grad for p in hooked.parameters()]
            if not all(torch.isfinite(g).all() for g in gradients):
                assert all(torch.isnan(g).all() for g in gradients)
                skipped.append(step)
                scale[0] /= 2
                continue
            for gradient in gradients:
                gradient /= scale[0]
            optimizer.step()
        assert skipped == [3], skipped
        assert job.buckets[-1].scales == [1024.0] * 3 + [512.0] * 2, job.buckets[-1].scales
        weights = [None] * WORLD
        dist.all_gather_object(weights, [p.detach() for p in hooked.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*weights))
        state.close()

    def failures_keep_their_type():
        _, hooked, job, state = pair()
        x, y = batch(0)
        nn.functional.cross_entropy(hooked(x), y).backward()
        job.failure = gradwire.AbortedError("rank 1 (pid 7) on node b died")
        try:
            nn.functional.cross_entropy(hooked(x), y).backward()
        except gradwire.AbortedError as error:
            assert "rank 1 (pid 7)" in str(error), error
        else:
            raise AssertionError("backward() did not fail")
        state.close()

    def double_precision_is_exact():
        plain, hooked, job, state = pair(lambda: net().double(), bucket_cap_mb=0.005)
        train(plain, hooked, 3)
        assert all(b.dtype == "float64" and not b.may_compress for b in job.buckets)
        state.close()

    def exact_on_request():
        plain, hooked, job, state = pair(hook_options={"exact": True})
        train(plain, hooked, 3)
        assert not any(b.may_compress for b in job.buckets)
        state.close()

    def a_foreign_parameter_is_named():
        hooked = DDP(net())
        job = FakeJob(dist.new_group())
        hooked.register_comm_hook(gradwire.torch.DDPState(job, net(seed=3)), gradwire.torch.ddp_hook)
        x, y = batch(0)
        try:
            nn.functional.cross_entropy(hooked(x), y).backward()
        except gradwire.InvalidError as error:
            assert "does not have" in str(error), error
        else:
            raise AssertionError("backward() did not fail")

    def two_models_share_a_job():
        job = FakeJob(dist.new_group())
        states, models = [], []
        for prefix in ("a", "b"):
            models.append(DDP(net()))
            states.append(gradwire.torch.register(models[-1], job, prefix=prefix))
        for step in range(3):
            step_both(models, step)
        assert {b.name for b in job.alive()} == {f"{prefix}.bucket{number}" for prefix in "ab" for number in (2, 3)}
        for state in states:
            state.close()

    def a_world_of_one_stays_local():
        group = [dist.new_group([one]) for one in range(WORLD)][rank]
        hooked = DDP(net(), process_group=group)
        alone = net()
        job = FakeJob(group)
        state = gradwire.torch.register(hooked, job)
        step_both((alone, hooked), 0)
        expect_equal_gradients(alone, hooked.module)
        assert job.buckets == []
        state.close()

    def the_binding_serves_the_hook():
        socket = os.environ.get("GRADWIRE_TEST_SOCKET")
        if socket is None:
            return
        for options in ({}, {"view": True}):
            plain, hooked = DDP(net(), bucket_cap_mb=0.005), DDP(net(), bucket_cap_mb=0.005)
            job = gradwire.Job("hook", rank=rank, world=WORLD, socket=socket, rendezvous="", timeout=60)
            state = gradwire.torch.register(hooked, job, **options)
            train(plain, hooked, 5)
            assert job.traffic().operations > 5
            state.close()
            job.barrier()
            dist.barrier()
            job.leave()
            dist.barrier()

    return {name: value for name, value in locals().items()
            if callable(value) and getattr(value, "__code__", None) is not None
            and value.__code__.co_argcount == 0}


NAMES = [
    "equals_plain_ddp", "first_iteration_is_exact_and_freed_at_the_rebuild",
    "flushes_the_steps_that_are_asked_to", "no_sync_accumulates",
    "unused_parameters", "view_of_the_result", "gradient_as_bucket_view", "static_graph",
    "not_finite_reaches_a_scaler_which_skips", "failures_keep_their_type", "double_precision_is_exact",
    "exact_on_request", "a_foreign_parameter_is_named", "two_models_share_a_job", "a_world_of_one_stays_local",
    "the_binding_serves_the_hook",
]


def work(rank, directory):
    import datetime

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=WORLD,
                            timeout=datetime.timedelta(seconds=60))
    found = scenarios()
    results = {}
    for name in NAMES:
        try:
            found[name]()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
        with open(f"{directory}/result{rank}.json", "w", encoding="utf-8") as file:
            json.dump(results, file)
    dist.barrier()


class Hook(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.results = []
        environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        if FAKE_GRADWIRED is not None:
            daemon = subprocess.Popen([FAKE_GRADWIRED], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            cls.addClassCleanup(daemon.communicate, timeout=20)
            environment["GRADWIRE_TEST_SOCKET"] = daemon.stdout.readline().decode().strip()
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, os.path.abspath(__file__), "--work"]
            workers = [
                subprocess.Popen([*command, str(rank), directory], stderr=subprocess.STDOUT, stdout=subprocess.PIPE,
                                 env=environment)
                for rank in range(WORLD)
            ]
            outputs = []
            for worker in workers:
                try:
                    outputs.append(worker.communicate(timeout=150)[0].decode(errors="replace"))
                except subprocess.TimeoutExpired:
                    for one in workers:
                        one.kill()
                    outputs.append(worker.communicate()[0].decode(errors="replace"))
            for rank, output in enumerate(outputs):
                try:
                    with open(f"{directory}/result{rank}.json", encoding="utf-8") as file:
                        cls.results.append((json.load(file), output))
                except OSError:
                    cls.results.append(({}, output))

    def check(self, name):
        if name == "the_binding_serves_the_hook" and FAKE_GRADWIRED is None:
            self.skipTest("no fake gradwired was given")
        for rank, (results, output) in enumerate(self.results):
            self.assertEqual(results.get(name, f"did not run; the process wrote:\n{output}"), "", f"rank {rank}")


for _name in NAMES:
    setattr(Hook, f"test_{_name}", lambda self, name=_name: self.check(name))

if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(int(sys.argv[2]), sys.argv[3])
    else:
        unittest.main()
