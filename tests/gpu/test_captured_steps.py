"""Captured steps equal a plain loop, whatever changes between two calls.

On a CPU a stand-in for CUDA graphs repeats the operations of a step on the same memory.
"""

import sys
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.testing import assert_close

import catlog
from catlog import compiled
from support.cpu_graphs import CpuGraphs
from support.laws import bits

STEPS, CHANGE_AT = 20, 6
ROUNDING = 1e-5  # steps of optimisers that can be captured are counted in float32


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")
        return "cuda"
    monkeypatch.setattr(compiled, "CudaGraphs", CpuGraphs)
    monkeypatch.setattr(compiled, "why_not_captured", lambda optimiser, devices: "")
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.optim.") and hasattr(module, "_get_capturable_supported_devices"):
            monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda **_: ["cpu"])
    return "cpu"


def learning_rate_is(optimiser: torch.optim.Optimizer, value: float) -> bool:
    rate = optimiser.param_groups[0]["lr"]
    return isinstance(rate, float) and rate == value


class Model(nn.Module):
    """Bits whose expectation is exact, a frozen shift, and a layer that keeps statistics."""

    def __init__(self, device: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
        self.decoder = nn.Linear(2, 3)
        self.target = nn.Linear(3, 3).requires_grad_(False)
        self.to(device, torch.float64)
        zeros = torch.zeros(2, dtype=torch.float64, device=device)
        self.outside = [nn.Parameter(zeros)]  # of no module

    def forward(self, images: Tensor) -> Tensor:
        q = bits(self.encoder(images) + self.outside[0], validate_args=False)
        wanted = self.target(images)
        return catlog.Exact()(lambda x: (self.decoder(x.double()) - wanted).square().sum(-1), q)


Change = Callable[[Model, torch.optim.Optimizer, int], None]


def once(change: Callable[[Model, torch.optim.Optimizer], object]) -> Change:
    return lambda model, optimiser, i: change(model, optimiser) and None if i == CHANGE_AT else None


def loaded(model: Model, optimiser: torch.optim.Optimizer) -> None:
    state = deepcopy(optimiser.state_dict())
    for slots in state["state"].values():
        slots["exp_avg"].fill_(0.1)
        slots["exp_avg_sq"].fill_(0.5)
    optimiser.load_state_dict(state)


def loaded_without_copies(model: Model, optimiser: torch.optim.Optimizer) -> None:
    """The tensors stay, but the groups are new."""
    optimiser.load_state_dict(optimiser.state_dict())
    optimiser.param_groups[0]["lr"] = 0.3


def set_in(**settings: object) -> Change:
    return once(lambda model, optimiser: optimiser.param_groups[0].update(settings))


def other_memory(tensor: Tensor) -> None:
    tensor.data = tensor.data * 0.5


def thawed(model: Model, optimiser: torch.optim.Optimizer, i: int) -> None:
    if i in (CHANGE_AT, CHANGE_AT + 5):
        model.encoder[3].requires_grad_(i != CHANGE_AT)


def turned(optimiser: torch.optim.Optimizer, *_: object) -> None:
    for parameter in optimiser.param_groups[0]["params"]:
        if parameter.grad is not None:
            parameter.grad.neg_()


CHANGES: dict[str, Change] = {
    "nothing": lambda *_: None,
    "loaded state": once(loaded),
    "loaded without copies": once(loaded_without_copies),
    "state forgotten": once(lambda model, optimiser: optimiser.state.clear()),
    "new group": once(
        lambda model, optimiser: optimiser.add_param_group(
            {"params": [*model.decoder.parameters()], "lr": 0.02}
        )
    ),
    "empty group": once(lambda _, optimiser: optimiser.add_param_group({"params": []})),
    "float lr": set_in(lr=0.3),
    "lr of the host": set_in(lr=torch.tensor(0.3)),
    "weight decay": set_in(weight_decay=0.5),
    "betas": set_in(betas=(0.5, 0.9)),
    "frozen": once(lambda model, _: model.encoder[0].requires_grad_(False)),
    "frozen and thawed": thawed,
    "other memory": once(lambda model, _: other_memory(model.encoder[0].weight)),
    "other memory of a frozen tensor": once(lambda model, _: other_memory(model.target.weight)),
    "other memory of a parameter of no module": once(
        lambda model, _: other_memory(model.outside[0])
    ),
    "other buffer": once(
        lambda model, _: setattr(
            model.encoder[1], "running_mean", torch.ones_like(model.encoder[1].running_mean)
        )
    ),
    "eval": once(lambda model, _: model.eval()),
    "a hook from the first step on": lambda _, optimiser, i: (
        optimiser.register_step_pre_hook(turned) and None if i == 0 else None
    ),
    "zeroed outside": lambda model, optimiser, i: optimiser.zero_grad(),
    "weights loaded": once(lambda model, _: model.load_state_dict(Model("cpu").state_dict())),
}


def adam(parameters: object, **options: object) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 0.1, foreach=True, **options)


def plain_step(
    model: Callable[[Tensor], Tensor], optimiser: torch.optim.Optimizer
) -> Callable[[Tensor], Tensor]:
    def step(images: Tensor) -> Tensor:
        optimiser.zero_grad()
        loss = model(images).mean()
        loss.backward()
        optimiser.step()
        return loss.detach()

    return step


def batch(i: int, device: str) -> Tensor:
    return torch.linspace(-1, 1 + i, 15, dtype=torch.float64).view(5, 3).sin().to(device)


def trained(
    device: str, is_captured: bool, change: Change, make: Callable[..., torch.optim.Optimizer]
) -> tuple[list[object], catlog.compiled.CompiledStep | None]:
    """Return losses and gradients of all steps, and the state after them."""
    model = Model(device)
    later = change is CHANGES["new group"]
    learned = [*(model.encoder if later else model).parameters(), *model.outside]
    optimiser = make(learned, capturable=True)
    captured = None
    step = plain_step(model, optimiser)
    if is_captured:
        step = captured = catlog.compiled_step(lambda x: model(x), optimiser, compile=False)
    history: list[object] = []
    for i in range(STEPS):
        change(model, optimiser, i)
        history.append(step(batch(i, device)).clone())
        gradients = [parameter.grad for parameter in model.parameters()]
        if later and i < CHANGE_AT:  # gradients of the decoder add up: nobody sets them to zero
            gradients = [parameter.grad for parameter in model.encoder.parameters()]
        history.append([None if g is None else g.clone() for g in gradients])
    history.append({name: value.clone() for name, value in model.state_dict().items()})
    return history, captured


def compare(device: str, change: Change, make: Callable[..., torch.optim.Optimizer] = adam) -> None:
    wanted, _ = trained(device, False, change, make)
    got, step = trained(device, True, change, make)
    assert step is not None
    assert step.mode == "captured"
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert_close(a, b, rtol=0, atol=ROUNDING, msg=lambda text, i=i: f"entry {i}: {text}")


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(device: str, name: str) -> None:
    compare(device, CHANGES[name])


@pytest.mark.parametrize(
    "name", ["AdamW", "NAdam", "RAdam", "Adamax", "ASGD", "Adadelta", "RMSprop", "Rprop"]
)
def test_every_optimiser_keeps_its_state_and_reads_its_rate(device: str, name: str) -> None:
    """Their states do not all begin at zero."""
    compare(
        device,
        CHANGES["float lr"],
        lambda parameters, **options: getattr(torch.optim, name)(
            parameters, lr=0.02, foreach=True, **options
        ),
    )


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "exponential": lambda optimiser: lr_scheduler.ExponentialLR(optimiser, 0.8),
    "cosine": lambda optimiser: lr_scheduler.CosineAnnealingLR(optimiser, STEPS),
    "one cycle": lambda optimiser: lr_scheduler.OneCycleLR(optimiser, 0.3, total_steps=STEPS + 1),
}


@pytest.mark.parametrize("is_tensor", [False, True], ids=["float", "tensor"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_work_as_usual(device: str, name: str, is_tensor: bool) -> None:
    """OneCycleLR changes the momentum in every step, so only its first step is captured."""
    results = []
    for is_captured in (False, True):
        model = Model(device)
        rate = torch.tensor(0.1, dtype=torch.float64, device=device) if is_tensor else 0.1
        optimiser = torch.optim.Adam(model.parameters(), rate, capturable=True, foreach=True)
        step: Callable[[Tensor], Tensor] = plain_step(model, optimiser)
        if is_captured:
            step = catlog.compiled_step(lambda x, model=model: model(x), optimiser, compile=False)
        scheduler = SCHEDULERS[name](optimiser)
        captures = 0
        for i in range(STEPS):
            step(batch(i, device))
            captures += is_captured and step.mode == "captured"
            scheduler.step()
        assert isinstance(optimiser.param_groups[0]["lr"], Tensor) == is_tensor
        results.append(model.state_dict())
    assert captures == (1 if name == "one cycle" else STEPS)
    if name == "one cycle":
        assert "settings of the optimiser changed" in step.why
    assert_close(*results, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("choices", ["10010100", "0001", "0111"])
def test_the_coin_chooses_a_graph_and_its_gradients(
    device: str, choices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps with corrections and without take turns."""
    x = torch.bernoulli(torch.full((2, 5, 3), 0.5, dtype=torch.float64)).to(device)
    start = torch.rand(1, 5, dtype=torch.float64, device=device)
    images = torch.rand(8, 5, 3, dtype=torch.float64, device=device)
    results = []
    for is_captured in (False, True):
        torch.manual_seed(1)
        encoder = nn.Linear(3, 3).to(device, torch.float64)
        E = catlog.SlopeCateR(2, every=4).to(device)
        optimiser = torch.optim.Adam(encoder.parameters(), 0.1, capturable=True, foreach=True)

        def loss(images: Tensor, encoder: nn.Module = encoder, E: catlog.SlopeCateR = E) -> Tensor:
            q = bits(encoder(images), validate_args=False)
            noise = None if E.corrects is False else start
            return E(lambda z: (z - images).square().sum(-1).exp(), q, x=x, noise=noise)

        step = plain_step(loss, optimiser)
        if is_captured:
            step = catlog.compiled_step(loss, optimiser, compile=False, estimator=E)
        history = []
        for i, choice in enumerate(choices):
            if is_captured:
                monkeypatch.setattr(E, "toss", lambda choice=choice: choice == "1")
            else:
                E.corrects = choice == "1"
            value = step(images[i]).clone()
            gradients = [p.grad.clone() for p in encoder.parameters()]
            learned = [buffer.clone() for buffer in E.buffers()]
            history.append([value, *gradients, *learned])
        results.append(history)
    assert_close(*results, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("failure", ["look", "cholesky_inverse"])
def test_a_failed_capture_changes_nothing(device: str, failure: str) -> None:
    """Later captures: test_on_cuda.py."""
    if device == "cpu" and failure != "look":
        pytest.skip("only CUDA cannot capture it")
    model = Model(device)
    optimiser = torch.optim.Adam(model.parameters(), 0.1, capturable=True)

    def loss(x: Tensor) -> Tensor:
        if failure == "look":
            return model(x) * float(x.sum().detach())
        return model(x) + torch.cholesky_inverse(torch.eye(3).to(x).repeat(2, 1, 1)).mean()

    step = catlog.compiled_step(loss, optimiser, compile=False)
    stream = torch.cuda.current_stream() if device == "cuda" else None
    images = torch.rand(5, 3, dtype=torch.float64, device=device)
    with pytest.raises(RuntimeError, match="captur"):
        step(images)  # the first step is made before it is captured
    before = deepcopy(model.state_dict())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="captur"):
            step(images)
        assert_close(model.state_dict(), before, rtol=0, atol=0)
        assert learning_rate_is(optimiser, 0.1)
    assert stream is None or torch.cuda.current_stream() == stream
    assert len(set(torch.rand(100, device=device).tolist())) > 90


def test_buffers_that_a_step_replaces_are_refused(device: str) -> None:
    class Running(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            self.running_mean = 0.9 * self.running_mean + 0.1 * x.mean(0).detach()
            return super().forward(x)

    model = Model(device)
    model.encoder[1] = Running(4, device=device, dtype=torch.float64)
    optimiser = torch.optim.Adam(model.parameters(), capturable=True)
    step = catlog.compiled_step(lambda x: model(x), optimiser, compile=False)
    images = torch.rand(5, 3, dtype=torch.float64, device=device)
    with pytest.raises(RuntimeError, match="in place, but it replaces tensors of modules"):
        step(images)


def test_inputs_keep_their_shapes_and_are_tensors(device: str) -> None:
    model = Model(device)
    optimiser = torch.optim.Adam(model.parameters(), capturable=True)
    step = catlog.compiled_step(lambda x: model(x), optimiser, compile=False)
    with pytest.raises(TypeError, match="inputs must be tensors, but float was given"):
        step(1.0)
    images = torch.rand(5, 3, dtype=torch.float64, device=device)
    step(images)
    for wrong in [(images[:4],), (), (images, images)]:
        with pytest.raises(ValueError, match=r"shapes \(5, 3\) that the graph was captured with"):
            step(*wrong)
