"""Sequences that end, caches, prompts of different lengths, and the check of a network.

test_checklist.py judges the probabilities of sequences, and test_every_estimator.py the estimators.
"""

import pytest
import torch
from torch import Tensor, nn, zeros
from torch.nn.functional import one_hot
from torch.testing import assert_close

import catlog
from catlog.distributions import Autoregressive, Prompted, left_padded
from catlog.distributions.absorbing import Running
from catlog.testing.cases import normals
from support.gradients import assert_same

K, D, END = 3, 4, 1


def parameter(seed: int, *shape: int) -> nn.Parameter:
    return nn.Parameter(normals(*shape, seed=seed))


class Recurrent(nn.Module):
    """A recurrent network with a context per batch element, in all three forms."""

    def __init__(self, contexts: int = 0, k: int = K) -> None:
        super().__init__()
        self.k = k
        self.token, self.hidden = parameter(0, k, 5), parameter(1, 5, 5)
        self.out, self.context = parameter(2, 5, k), parameter(3, contexts, 5) if contexts else None
        self.rows: list[int] = []

    def start(self, lead: torch.Size) -> Tensor:
        state = zeros(*lead, 5, dtype=torch.float64)
        return state if self.context is None else state + self.context

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        self.rows.append(state.shape[:-1].numel())
        if previous is not None:
            state = (state @ self.hidden + self.token[previous]).tanh()
        return state @ self.out + 0.1 * i, state

    def all_logits(self, x: Tensor) -> Tensor:
        state, logits = self.start(x.shape[:-1]), []
        for i in range(x.shape[-1]):
            row, state = self.step(state, i, x[..., i - 1] if i > 0 else None)
            logits.append(row)
        return torch.stack(logits, -2)

    def forward(self, x: Tensor, i: int) -> Tensor:
        self.rows.append(x.shape[:-1].numel())
        return self.all_logits(x[..., : i + 1])[..., -1, :]


class Form:
    """One form of a network, or some of them."""

    def __init__(self, network: nn.Module, *names: str) -> None:
        self.model = network
        for name in names:
            setattr(self, name, getattr(network, name))

    def __call__(self, x: Tensor, i: int) -> Tensor:
        return self.model(x, i)


FORMS = [(), ("all_logits",), ("start", "step"), ("start", "step", "all_logits")]


def test_lengths() -> None:
    q = Autoregressive(Recurrent(), [K] * D, end=END)
    x = q.enumerate_support()
    wanted = torch.tensor([row.index(END) + 1 if END in row else D for row in x.tolist()])
    assert torch.equal(q.lengths(x), wanted)
    assert torch.equal(Autoregressive(Recurrent(), [K] * D).lengths(x), torch.full_like(wanted, D))


def test_nothing_after_the_end_is_evaluated() -> None:
    """Steps of a recurrent network count the sequences that they read."""
    network = Recurrent()
    q = Autoregressive(Form(network, "start", "step"), [K] * D, end=END, validate_args=False)
    x = torch.tensor([[END] * 4, [0, END, END, END], [0, 2, 2, 0], [2, 0, 2, END]])
    q.log_prob(x)
    assert network.rows == [4, 3, 2, 2]
    network.rows.clear()
    q.log_prob(x[:2])
    assert network.rows == [2, 1]
    torch.manual_seed(0)
    network.rows.clear()
    lengths = q.lengths(q.sample((50,)))
    assert network.rows == [int((lengths > i).sum()) for i in range(int(lengths.max()))]
    seen: list[int] = []
    whole = Form(network, "all_logits")
    whole.all_logits = lambda x: (seen.append(x.shape[-1]), network.all_logits(x))[1]
    Autoregressive(whole, [K] * D, end=END, validate_args=False).log_prob(x[:2])
    assert seen == [2]


def test_the_sweep_drops_what_has_ended() -> None:
    """An intervention that ends its sequence is not continued, and one that revives it is."""
    network = Recurrent()
    q = Autoregressive(Form(network, "start", "step"), [K] * D, end=END, validate_args=False)
    x = torch.tensor([[0, END, END, END]])
    catlog.SCateR(1)(
        lambda x: x.double().sum(-1), q, x=x, generator=torch.Generator().manual_seed(0)
    )
    # First variable: the base alone. Second: the base and one alternative that has not ended.
    # Third: the base has ended, its two alternatives for the second variable have not.
    assert network.rows[:2] == [1, 2]
    assert network.rows[2] in (2, 3)


def test_states_follow_their_sequences() -> None:
    """Sequences are dropped, copied and dropped again; 10 i is the state of sequence i."""
    states = Running.all(10 * torch.arange(4), 4, torch.device("cpu"))
    states = states.keep(torch.tensor([0, 2, 3]))
    assert states.state.tolist() == [0, 20, 30]
    states = states.select(torch.tensor([3, 1, 0, 0, 2]))
    assert states.state.tolist() == [30, 0, 0, 20]
    assert states.slot.tolist() == [0, -1, 1, 2, 3]
    states = Running(states.state + torch.arange(4), states.slot, states.count)  # a step
    states = states.keep(torch.tensor([0, 3, 4]))
    assert states.state.tolist() == [30, 2, 23]
    assert states.select(torch.tensor([4, 1, 3])).state.tolist() == [23, 2]


class Attention(nn.Module):
    """One layer of attention with a cache of keys and values, for Prompted."""

    def __init__(self, k: int = K, width: int = 4, mistake: str = "") -> None:
        super().__init__()
        self.token, self.place = parameter(4, k, width), parameter(5, 12, width)
        self.project, self.out = parameter(6, width, 3 * width), parameter(7, width, k)
        self.mistake = mistake
        self.read: list[int] = []

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        self.read.append(tokens.numel())
        if self.mistake == "positions" and cache is not None:
            positions = positions + 1
        h = self.token[tokens] + self.place[positions]
        query, *new = (h @ self.project).chunk(3, -1)
        known = torch.stack(new, 1)
        if cache is not None:
            known = torch.cat([cache, known], 2)
        keys, values = known.unbind(1)
        new_count, count = tokens.shape[1], keys.shape[1]
        visible = torch.ones(new_count, count, dtype=torch.bool).tril(count - new_count)
        visible = visible & mask.unsqueeze(1) if self.mistake != "padding" else visible
        visible = visible | torch.eye(count, dtype=torch.bool)[-new_count:]  # padding sees itself
        weight = (query @ keys.transpose(1, 2)).masked_fill(~visible, -torch.inf).softmax(-1)
        return (h + weight @ values).tanh() @ self.out, known


PROMPTS = [[0], [2, 0, 1], [1, 2]]


@pytest.mark.parametrize("end", [None, END])
def test_prompts_of_different_lengths(end: int | None) -> None:
    """A batch of padded prompts has the probabilities of each prompt alone, without padding."""
    model = Attention()
    prompts, mask = left_padded(PROMPTS, pad=2)
    q = Autoregressive(Prompted(model, prompts, mask), [K] * 3, end=end, validate_args=True)
    assert q.batch_shape == (3,)
    assert q.real == torch.float64
    catlog.check(lambda x: x.double().mean(-1), q)
    points = q.enumerate_support()
    together = q.log_prob(points)
    assert_close(together.exp().sum(0), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-12)
    for i, prompt in enumerate(PROMPTS):
        alone = Autoregressive(Prompted(model, torch.tensor(prompt)), [K] * 3, end=end)
        assert_close(together[:, i], alone.log_prob(points[:, i]), rtol=0, atol=1e-12)
    assert_close(
        q.normalised(q.by_steps(points)),
        q.log_conditionals(points),
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("suffix", ["independent", "common"])
@pytest.mark.parametrize("chosen", [None, 1])
@pytest.mark.parametrize("outputs", [0, 1])
def test_a_cache_of_dropped_sequences_gives_the_same_draws(
    suffix: str, chosen: int | None, outputs: int
) -> None:
    """SCateR's sweep with the cache of running sequences equals that of whole passes."""
    weights = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.3, 0.1, 0.5, 0.2]], dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return (x.double() @ (weights.T if outputs else weights[0])).sin()

    model = Attention()
    prompts, mask = left_padded(PROMPTS)
    prompted = Prompted(model, prompts, mask)
    whole = Form(nn.Module(), "eval")
    whole.all_logits = prompted.all_logits
    E = catlog.SCateR(5, suffix=suffix, variables=chosen)
    values = []
    for network in (prompted, whole):
        q = Autoregressive(network, [K] * 4, (3,), end=END, dtype=torch.float64)
        values.append(E(f, q, outputs=outputs, generator=torch.Generator().manual_seed(0)))
    assert_same(*values, list(model.parameters()), rtol=0, atol=1e-12)


def test_prompts_are_read_once_and_ended_texts_no_more() -> None:
    model = Attention()
    prompts, mask = left_padded(PROMPTS)
    q = Autoregressive(Prompted(model, prompts, mask), [K] * 6, end=END)
    torch.manual_seed(1)
    x = q.sample((40,))
    lengths = q.lengths(x)
    steps = [int((lengths > i).sum()) for i in range(1, int(lengths.max()))]
    assert model.read == [9, *steps]
    assert steps[0] < 120


def test_temperatures_of_a_batch() -> None:
    network = Recurrent(contexts=2)
    form = Form(network, "all_logits")
    heat = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    q = Autoregressive(form, [K] * D, (2,), temperature=heat)
    x = torch.randint(K, (7, 2, D))
    expected = (network.all_logits(x) / heat[:, None, None]).log_softmax(-1)
    expected = expected.gather(-1, x.unsqueeze(-1)).sum((-1, -2))
    assert_close(q.log_prob(x), expected, rtol=0, atol=1e-12)
    assert torch.autograd.grad(q.log_prob(x).sum(), heat)[0].abs().min() > 0
    step = Autoregressive(Form(network, "start", "step"), [K] * D, (2,), temperature=heat)
    assert_close(step.log_prob(x), expected, rtol=0, atol=1e-12)


def test_not_a_number_after_the_end_does_no_harm() -> None:
    class Fragile(Recurrent):
        def all_logits(self, x: Tensor) -> Tensor:
            logits = super().all_logits(x)
            gone = (x == END).cumsum(-1) > (x == END).long()
            return logits.masked_fill(gone.unsqueeze(-1), torch.nan)

    network = Fragile()
    q = Autoregressive(Form(network, "all_logits"), [K] * D, end=END, validate_args=False)
    value = q.log_prob(torch.tensor([[0, END, END, END], [0, 0, 0, 0]])).sum()
    value.backward()
    assert value.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in (network.token, network.out))


def test_compiled_without_looking() -> None:
    """Under torch.compile nothing is dropped, and everything is the same."""
    network = Recurrent()
    q = Autoregressive(Form(network, "start", "step"), [K] * D, end=END, validate_args=False)
    x = torch.tensor([[END] * 4, [0, END, END, END], [0, 2, 2, 0], [2, 0, 2, END]])
    compiled = torch.compile(lambda x: q.log_prob(x), fullgraph=True, backend="eager")
    assert_close(compiled(x), q.log_prob(x), rtol=0, atol=1e-12)
    E = catlog.SCateR(2)
    noise = torch.rand(9, 2, D, dtype=torch.float64)

    def value(noise: Tensor) -> Tensor:
        return E(lambda x: x.double().sum(-1).sin(), q, noise=noise)

    compiled = torch.compile(value, fullgraph=True, backend="eager")
    assert_close(compiled(noise), value(noise), rtol=0, atol=1e-12)


# The check of a network


class Mixed(Recurrent):
    """A recurrent network with a planted mistake."""

    def __init__(self, mistake: str, contexts: int = 2) -> None:
        super().__init__(contexts)
        self.mistake = mistake
        self.norm = nn.BatchNorm1d(K, dtype=torch.float64)
        self.drop = nn.Dropout(0.5)
        self.context_in_state = mistake == "context outside"

    def start(self, lead: torch.Size) -> Tensor | tuple[Tensor, object]:
        state = super().start(lead)
        if self.mistake == "context outside":
            return torch.zeros_like(state)
        if self.mistake == "a number in the state":
            return state, 0
        if self.mistake == "layers first":
            return state.unsqueeze(0)
        return state

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.mistake == "steps shifted":
            i = i + 1
        logits, state = super().step(state, i, previous)
        if self.mistake == "steps shifted":
            logits = logits * (1 + 0.1 * i)
        if self.mistake == "context outside":
            logits = logits + self.context[: len(logits), :K].repeat(len(logits), 1)[: len(logits)]
        return logits, state

    def all_logits(self, x: Tensor) -> Tensor:
        if self.mistake == "fixed length" and x.shape[-1] < D:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        if self.mistake == "no leading dimensions":
            return Recurrent.all_logits(self, x[0, 0])
        if self.mistake == "one leading dimension":
            assert x.dim() == 2, "expected a matrix"
        state, logits = Recurrent.start(self, x.shape[:-1]), []
        for i in range(x.shape[-1]):
            row, state = Recurrent.step(self, state, i, x[..., i - 1] if i > 0 else None)
            logits.append(row)
        result = torch.stack(logits, -2)
        if self.mistake == "flattened":
            return result.flatten(0, -3)
        if self.mistake == "rows mixed":
            return result - result.mean(0)[..., :1] * torch.arange(K)
        if self.mistake == "batch mixed":
            return result + result.mean(1, keepdim=True) * torch.arange(K)
        if self.mistake == "dropout":
            return self.drop(result)
        if self.mistake == "batch normalisation":
            return self.norm(result.flatten(0, -2)).view_as(result)
        if self.mistake == "looks ahead":
            last = one_hot(x[..., 1:], K).double()
            return result + torch.cat([0 * last[..., :1, :], last], -2)[..., : x.shape[-1], :]
        if self.mistake == "looks one ahead at a time":
            return result + torch.arange(K) * x.unsqueeze(-1)
        return result


MISTAKES = {
    "steps shifted": (("start", "step", "all_logits"), "step and all_logits .* disagree on var"),
    "a number in the state": (("start", "step"), "returned a int in it"),
    "layers first": (("start", "step"), r"lead = \(3, 2\), but a tensor .* begin with `lead`"),
    "context outside": (("start", "step"), "context_in_state"),
    "fixed length": (("all_logits",), "with `end`, all_logits gets x without what follows"),
    "no leading dimensions": (("all_logits",), r"returned \(2, 4, 3\). The leading dimensions"),
    "one leading dimension": (("all_logits",), r"failed for 4 variables .* = \(3, 2\).* a matrix"),
    "flattened": (("all_logits",), r"returned \(6, 4, 3\). The leading dimensions .* \(3, 2\)"),
    "rows mixed": (("all_logits",), "of a row different logits when the row is evaluated alone"),
    "batch mixed": (("all_logits",), "another batch element change"),
    "dropout": (("all_logits",), "when the row is evaluated alone.*no dropout"),
    "batch normalisation": (("all_logits",), "batch normalisation"),
    "looks ahead": (("all_logits",), "A causal mask is missing, or is shifted by one"),
    "looks one ahead at a time": (("all_logits",), "A causal mask is missing, or is shifted"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_check_names_the_mistake(mistake: str) -> None:
    names, message = MISTAKES[mistake]
    network = Mixed(mistake)
    form = Form(network, *names)
    form.context_in_state = network.context_in_state
    for seed in range(3):
        torch.manual_seed(seed)
        with pytest.raises(ValueError, match=message):
            Autoregressive(form, [K] * D, (2,), end=END).check()


@pytest.mark.parametrize("names", FORMS)
@pytest.mark.parametrize("end", [None, END])
@pytest.mark.parametrize("contexts", [0, 2])
def test_check_passes_sound_networks(
    names: tuple[str, ...], end: int | None, contexts: int
) -> None:
    network = Form(Recurrent(contexts), *names)
    for in_state in (False, True):
        network.context_in_state = in_state
        q = Autoregressive(network, [K] * D, (contexts,) if contexts else (), end=end)
        for seed in range(3):
            torch.manual_seed(seed)
            catlog.check(lambda x: (x == 2).double().mean(-1), q)
    q = Autoregressive(lambda x, i: zeros(*x.shape[:-1], (2, 3)[i]), [2, 3], end=end)
    q.check()
    Autoregressive(lambda x, i: zeros(*x.shape[:-1], 1), [1], end=0).check()


@pytest.mark.parametrize("mistake", ["positions", "padding"])
def test_check_and_first_use_find_a_wrong_cache(mistake: str) -> None:
    """Wrong padding does not show between forms, but in a comparison with the prompt alone."""
    model = Attention(mistake=mistake)
    prompts, mask = left_padded(PROMPTS)
    q = Autoregressive(Prompted(model, prompts, mask), [K] * 3, end=END, validate_args=True)
    message = {"positions": "disagree", "padding": "depends on its padding"}[mistake]
    with pytest.raises(ValueError, match=message):
        q.check()


BAD = {
    "`end` must be between 0 and 1, but 2 was given. Every variable": lambda: Autoregressive(
        Recurrent(), [3, 2], end=2
    ),
    "`end` must be an int": lambda: Autoregressive(Recurrent(), [3], end=0.0),
    "`temperature` must be positive, but 0.0 was given": lambda: Autoregressive(
        Recurrent(), [3], temperature=0.0
    ),
    "`temperature` must be positive": lambda: Autoregressive(
        Recurrent(), [3], (2,), temperature=torch.tensor([1.0, -1.0])
    ),
    r"broadcasts to the batch shape \(2,\), but its shape is \(3,\)": lambda: Autoregressive(
        Recurrent(), [3], (2,), temperature=torch.ones(3)
    ),
    "must be padded on the left": lambda: Prompted(
        Attention(), zeros(1, 2).long(), torch.tensor([[True, False]])
    ),
    "`prompts` must be padded on the left": lambda: Prompted(
        Attention(), zeros(1, 3).long(), torch.tensor([[True, False, True]])
    ),
    r"`prompts` must be int64 tokens \[\*batch, p\] with p >= 1": lambda: Prompted(
        Attention(), zeros(2, 0).long()
    ),
    r"`mask` must have the shape of `prompts`, \(2, 1\)": lambda: Prompted(
        Attention(), zeros(2, 1).long(), torch.ones(2, 2).bool()
    ),
    "non-empty list of non-empty lists": lambda: left_padded([[1], []]),
    r"conditional of variable 0 must return logits of shape \(1, 3\), "
    r"but it returned \(1, 2\)": Autoregressive(
        Form(Recurrent(k=2), "start", "step"), [3], end=0
    ).sample,
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input(message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        BAD[message]()
