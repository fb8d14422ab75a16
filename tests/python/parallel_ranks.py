"""One rank of test_torch_parallel.py:  parallel_ranks.py gloo|own [REPEATS]

Every function called `case_...` runs on all ranks, in order, REPEATS times in a row; what fails
ends the rank with its traceback.
"""

import copy
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import flashlab
from flashlab.torch import parallel as fp

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Frozen(nn.Module):
    """Parameters that need no gradient, inside and beside layers; a buffer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 12, bias=False)
        self.second = nn.Linear(12, 9)
        self.second.bias.requires_grad = False
        self.last = nn.Linear(9, 4, bias=False)
        self.constant = nn.Parameter(torch.tensor([3.0, 5.0]), requires_grad=False)
        self.register_buffer("shift", torch.rand(4))

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x))))) + self.shift


class Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 10, bias=False)
        self.down = nn.Linear(10, 6, bias=False)
        self.again = nn.Linear(6, 10, bias=False)
        self.again.weight = self.up.weight
        self.head = nn.Linear(10, 4, bias=False)

    def forward(self, x):
        x = torch.tanh(self.down(torch.tanh(self.up(x))))
        return self.head(torch.tanh(self.again(x)))


class Language(nn.Module):
    """Embedding and head tied or apart, norms between; 101 rows, which two ranks do not divide."""

    def __init__(self, tied=False, trained_embedding=True):
        super().__init__()
        self.embedding = nn.Embedding(101, 7)
        self.norm = nn.LayerNorm(7)
        self.wide = nn.Linear(7, 15)
        self.narrow = nn.Linear(15, 7, bias=False)
        self.head = nn.Linear(7, 101, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.embedding.weight.requires_grad = trained_embedding

    def forward(self, x):
        x = self.norm(self.embedding(x))
        x = x + self.narrow(torch.relu(self.wide(x))).to(x.dtype)
        return self.head(self.norm(x))[:, -1]


def data(step, rows=20):
    generator = torch.Generator().manual_seed(100 + step)
    return torch.rand(rows, 6, generator=generator), torch.rand(rows, 4, generator=generator)


def tokens(step, rows=20):
    generator = torch.Generator().manual_seed(200 + step)
    return (torch.randint(0, 101, (rows, 5), generator=generator),
            torch.randint(0, 101, (rows,), generator=generator))


def mine(batch):
    part = len(batch[0]) // RANKS
    return tuple(tensor[part * RANK:part * (RANK + 1)] for tensor in batch)


def world():
    """What has the ranks exchange values, whatever the group is."""
    from flashlab.torch.parallel._group import group_of
    return group_of(None)


def same_everywhere(tensors):
    for theirs in world().exchange([tensor.detach().clone() for tensor in tensors]):
        for here, there in zip(tensors, theirs):
            assert torch.equal(here, there), (here, there)


def raises(kind, *words):
    """A context: an error of that kind whose message has the words."""
    class Expected:
        def __enter__(self):
            return self

        def __exit__(self, got, error, traceback):
            assert got is not None, f"nothing was raised, expected {kind.__name__} {words}"
            if not issubclass(got, kind):
                return False
            for word in words:
                assert word in str(error), (word, str(error))
            return True
    return Expected()


def train(made, after, model_class, steps=5):
    """Weights start apart; after some steps they are those of one process with all rows."""
    torch.manual_seed(RANK)
    alone = model_class()
    model = made(copy.deepcopy(alone))
    for (name, before), now in zip(alone.named_parameters(), model.module.parameters()):
        assert torch.equal(before, now) == (RANK == 0 or name == "constant"), name
    same_everywhere(list(model.module.state_dict().values()))
    alone.load_state_dict(model.module.state_dict())
    ours = torch.optim.SGD(model.parameters(), lr=0.1)
    theirs = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(steps):
        for optimizer in (ours, theirs):
            optimizer.zero_grad()
        x, y = data(step)
        nn.functional.mse_loss(alone(x), y).backward()
        theirs.step()
        x, y = mine((x, y))
        nn.functional.mse_loss(model(x), y).backward()
        after(model, ours)
        ours.step()
        for (name, expected), got in zip(alone.named_parameters(), model.module.parameters()):
            torch.testing.assert_close(got, expected, msg=lambda text, name=name: f"{name}: {text}")
    same_everywhere(list(model.module.state_dict().values()))


def case_ddp_of_2026():
    for model_class in (Frozen, Tied):
        train(fp.get_ddp, fp.ddp_on_after_backward, model_class)


def case_ddp_of_2025():
    for model_class in (Frozen, Tied):
        train(fp.get_ddp_individual_parameters, fp.ddp_individual_parameters_on_after_backward,
              model_class)
        for size in (0.0001, 0.0004, 0.001, 0.01, 100.0):
            def after(model, optimizer):
                fp.ddp_bucketed_on_after_backward(model, optimizer)
                fp.ddp_bucketed_on_train_batch_start(model, optimizer)
            train(lambda module, size=size: fp.get_ddp_bucketed(module, size), after, model_class)


def case_buckets_are_sent_beside_backward():
    """The last layer's gradients are under way before the first layer's exist."""
    model = fp.DDP(Frozen(), bucket_size_mb=0.0001)
    sent = []
    begin = model._group.all_reduce
    first = model.module.first.weight
    model._group.all_reduce = lambda tensor: (sent.append(first.grad is None), begin(tensor))[1]
    x, y = mine(data(0))
    nn.functional.mse_loss(model(x), y).backward()
    del model._group.all_reduce
    model.finish_gradient_synchronization()
    assert sent == [True, True, False], sent


def case_micro_batches():
    torch.manual_seed(3)
    alone = Frozen()
    model = fp.DDP(copy.deepcopy(alone), bucket_size_mb=None)
    x, y = data(0)
    nn.functional.mse_loss(alone(x), y).backward()
    x, y = mine((x, y))
    with model.no_sync():
        (nn.functional.mse_loss(model(x[:5]), y[:5]) / 2).backward()
    (nn.functional.mse_loss(model(x[5:]), y[5:]) / 2).backward()
    model.finish_gradient_synchronization()
    for expected, got in zip(alone.parameters(), model.module.parameters()):
        if expected.requires_grad:
            torch.testing.assert_close(got.grad, expected.grad)
    nn.functional.mse_loss(model(x), y).backward()
    with raises(RuntimeError, "came twice", "no_sync"):
        nn.functional.mse_loss(model(x), y).backward()
    model.finish_gradient_synchronization()


def case_fsdp():
    for options in ({}, {"tied": True}, {"trained_embedding": False}):
        for compute_dtype in (None, torch.float16, torch.bfloat16):
            fsdp(options, compute_dtype)


def fsdp(options, compute_dtype):
    torch.manual_seed(7)
    alone = Language(**options)
    model = fp.get_fsdp(copy.deepcopy(alone), compute_dtype=compute_dtype)
    # Fewer bytes here: a part of everything but the norm.
    kept = sum(parameter.numel() for parameter in model.parameters())
    everything = sum(parameter.numel() for parameter in alone.parameters())
    norm = sum(parameter.numel() for parameter in alone.norm.parameters())
    assert kept <= norm + (everything - norm) / RANKS + 5, (kept, norm, everything)
    ours = torch.optim.SGD(model.parameters(), lr=0.05)
    theirs = torch.optim.SGD(alone.parameters(), lr=0.05)
    for step in range(3):
        for optimizer in (ours, theirs):
            optimizer.zero_grad(set_to_none=True)
        x, y = tokens(step)
        nn.functional.cross_entropy(alone(x), y).backward()
        theirs.step()
        x, y = mine((x, y))
        nn.functional.cross_entropy(model(x).float(), y).backward()
        fp.fsdp_on_after_backward(model, ours)
        for name, parameter in model.module.named_parameters():
            if parameter.requires_grad:
                assert parameter.grad.shape == parameter.shape, name
                assert parameter.grad.dtype == torch.float32, name
        same_everywhere([p.grad for p in (model.module.norm.weight, model.module.norm.bias)])
        ours.step()
        full = fp.fsdp_gather_full_params(model)
        assert full.keys() == dict(alone.named_parameters(remove_duplicate=False)).keys()
        loose = {None: 0.0, torch.float16: 2e-4, torch.bfloat16: 2e-3}[compute_dtype]
        for name, expected in alone.named_parameters(remove_duplicate=False):
            if compute_dtype is None and RANKS == 2 and not options.get("tied"):
                torch.testing.assert_close(full[name], expected.detach(), rtol=1e-6, atol=1e-7)
            else:
                torch.testing.assert_close(full[name], expected.detach(), rtol=loose or 1e-5,
                                           atol=loose or 1e-6)


def case_fsdp_frees_what_it_gathered():
    """At most two layers' weights are there at a time, and none after forward."""
    model = fp.FSDP(nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(5))))
    most = []
    gathered = type(model._units[0]).gathered

    def counted(unit):
        data = gathered(unit)
        most.append(sum(other._data is not None for other in model._units))
        return data
    type(model._units[0]).gathered = counted
    try:
        for _ in range(2):
            model(torch.rand(3, 8, requires_grad=True)).sum().backward()
            assert model.module[0].weight.shape == (32,)
            model.finish_gradient_synchronization()
    finally:
        type(model._units[0]).gathered = gathered
    assert max(most) <= 2, most
    assert not any(unit._data is not None for unit in model._units)
    with torch.no_grad():
        model(torch.rand(3, 8))
    assert not any(unit._data is not None for unit in model._units)


def case_fsdp_of_several_backwards():
    torch.manual_seed(5)
    alone = Language()
    model = fp.FSDP(copy.deepcopy(alone))
    x, y = tokens(0)
    nn.functional.cross_entropy(alone(x), y).backward()
    x, y = mine((x, y))
    for part in (slice(0, 5), slice(5, 10)):
        (nn.functional.cross_entropy(model(x[part]), y[part]) / 2).backward()
    model.finish_gradient_synchronization()
    torch.testing.assert_close(model.module.norm.weight.grad, alone.norm.weight.grad)
    part = -(-alone.head.weight.numel() // RANKS)
    whole = alone.head.weight.grad.reshape(-1)
    expected = torch.cat([whole, whole.new_zeros(part * RANKS - whole.numel())])
    torch.testing.assert_close(model.module.head.weight.grad,
                               expected[part * RANK:part * (RANK + 1)])


def case_sharded_optimizer():
    for model_class in (Frozen, Tied):
        for optimizer_class, options in (
                (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.999)}),
                (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
                (torch.optim.Adagrad, {"lr": 0.05})):
            sharded_optimizer(model_class, optimizer_class, options)


def sharded_optimizer(model_class, optimizer_class, options):
    torch.manual_seed(42)
    alone = model_class()
    model = copy.deepcopy(alone)
    names = [name for name, _ in alone.named_parameters()]

    def groups(module):
        parameters = dict(module.named_parameters())
        return [{"params": [parameters[name] for name in names[:1]], "lr": 0.03},
                {"params": [parameters[name] for name in names[1:-1]]}]
    theirs = optimizer_class(groups(alone), **options)
    ours = fp.get_sharded_optimizer(groups(model), optimizer_class, **options)
    for step in range(10):
        if step == 4:  # a group more, in the middle
            for optimizer, module in ((theirs, alone), (ours, model)):
                last = dict(module.named_parameters())[names[-1]]
                optimizer.add_param_group({"params": [last], "lr": 0.02})
        if step == 6:
            for optimizer in (theirs, ours):
                optimizer.param_groups[1]["lr"] *= 0.5
        for optimizer, module in ((theirs, alone), (ours, model)):
            x, y = data(step)

            def closure(optimizer=optimizer, module=module, x=x, y=y):
                optimizer.zero_grad()
                loss = ((module(x) - y) ** 2).sum()
                loss.backward()
                return loss
            if step % 2:
                closure()
                optimizer.step()
            else:
                assert optimizer.step(closure).item() > 0
    for expected, got in zip(alone.parameters(), model.parameters()):
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=0)
    held = sum(state.numel() for of in ours.state.values() for state in of.values()
               if isinstance(state, torch.Tensor) and state.dim())
    whole = sum(state.numel() for of in theirs.state.values() for state in of.values()
                if isinstance(state, torch.Tensor) and state.dim())
    assert sum(world().exchange(held)) == whole and held < whole, (held, whole)
    full = ours.full_state_dict()
    assert full["state"].keys() == theirs.state_dict()["state"].keys()
    theirs.load_state_dict(full)
    ours.load_state_dict(full)
    with raises(NotImplementedError, "full_state_dict"):
        ours.state_dict()


def case_other_shapes_are_named():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.same = nn.Linear(3, 4)
            self.other = nn.Linear(4, 5 + RANK)
    for made in (fp.get_ddp, fp.get_fsdp, lambda module: fp.get_ddp_bucketed(module, 1.0)):
        with raises(ValueError, "other.weight", "rank 1", "[6, 4]", "rank 0", "[5, 4]"):
            made(Wide())
    with raises(ValueError, "rank 1", "[6, 4]"):
        fp.get_sharded_optimizer(Wide().parameters(), torch.optim.SGD, lr=0.1)


def case_replaced_parameters_are_named():
    for made in (fp.get_ddp, fp.get_fsdp):
        model = made(Language())
        model.module.wide.weight = nn.Parameter(torch.rand(15, 7))
        with raises(ValueError, "wide.weight", "replaced"):
            model(tokens(0)[0])
        with raises(ValueError, "wide.weight", "replaced"):
            model.finish_gradient_synchronization()
    model = fp.get_ddp(Language())
    model.module.more = nn.Linear(2, 2)
    with raises(ValueError, "more.weight", "added"):
        model(tokens(0)[0])
    model = fp.get_ddp(Language())
    model.module.wide.bias.requires_grad = False
    with raises(ValueError, "wide.bias", "requires_grad"):
        model(tokens(0)[0])


class Sometimes(nn.Module):
    """Its second layer takes part where `both` says so."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(6, 4)
        self.two = nn.Linear(6, 4)

    def forward(self, x, both):
        return self.one(x) + self.two(x) if both else self.one(x)


def case_gradients_that_never_came_are_named():
    x, _ = mine(data(0))
    for size in (0.0, None):
        model = fp.DDP(Sometimes(), size)
        model(x, both=RANK == 0).sum().backward()
        with raises(RuntimeError, "two.weight on rank 1", "two.bias on rank 1"):
            model.finish_gradient_synchronization()
        # Nothing is left over: the next step is right.
        for parameter in model.parameters():
            parameter.grad = None
        model(x, both=True).sum().backward()
        model.finish_gradient_synchronization()
        same_everywhere([parameter.grad for parameter in model.parameters()])
    model = fp.FSDP(Sometimes())
    model(x, both=False).sum().backward()
    with raises(RuntimeError, "two.weight on any rank", "two.bias on any rank"):
        model.finish_gradient_synchronization()
    with raises(RuntimeError, "one.weight on any rank"):
        fp.DDP(Sometimes()).finish_gradient_synchronization()


def case_wrong_words():
    with raises(TypeError, "ddp_model", "Linear"):
        fp.ddp_on_after_backward(nn.Linear(2, 2), None)
    with raises(TypeError, "compute_dtype"):
        fp.get_fsdp(nn.Linear(2, 2), torch.int32)
    with raises(ValueError, "bucket_size_mb"):
        fp.get_ddp_bucketed(nn.Linear(2, 2), -1)
    with raises(NotImplementedError, "LBFGS"):
        fp.get_sharded_optimizer(nn.Linear(2, 2).parameters(), torch.optim.LBFGS)


def last_own_other_layers():
    """FSDP whose ranks run other layers: both ranks are told, then the group is over."""
    model = fp.FSDP(Sometimes())
    with raises(RuntimeError, "ranks call different collectives"):
        model(mine(data(0))[0], both=RANK == 0).sum().backward()
        model.finish_gradient_synchronization()


def main():
    backend, repeats = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if backend == "gloo":
        dist.init_process_group("gloo")
    cases = [(name, case) for name, case in globals().items() if name.startswith("case_")]
    for _ in range(repeats):
        for name, case in cases:
            case()
            if RANK == 0:
                print("passed", name, flush=True)
    if backend == "gloo":
        dist.barrier()
        dist.destroy_process_group()
    else:
        assert isinstance(world().ranks, flashlab.Communicator)
        last_own_other_layers()


if __name__ == "__main__":
    main()
