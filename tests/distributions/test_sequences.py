"""Sequences that end, caches, prompts of different lengths, and the check of a network.

test_checklist.py judges the probabilities of sequences, and test_every_estimator.py the estimators.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn, zeros
from torch.nn.functional import one_hot, pad
from torch.testing import assert_close

import catlog
from catlog.distributions import Autoregressive, BayesianNetwork, Node, Prompted, left_padded
from catlog.testing.cases import normals, seeded
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
    x = torch.tensor([[0, 2, 0, 2], [0, END, 0, 0], [END, END, 0, END], [0, 2, 2, END]])
    assert Autoregressive(Recurrent(), [K] * D, end=END).lengths(x).tolist() == [4, 2, 1, 4]
    assert Autoregressive(Recurrent(), [K] * D).lengths(x).tolist() == [4] * 4


def test_nothing_after_the_end_is_evaluated() -> None:
    """Steps of a recurrent network count the sequences that they read."""
    network, seen = Recurrent(), []
    q = Autoregressive(Form(network, "start", "step"), [K] * D, end=END, validate_args=False)
    x = torch.tensor([[END] * 4, [0, END, END, END], [0, 2, 2, 0], [2, 0, 2, END]])

    def rows(use: Callable[[], object]) -> list[int]:
        network.rows.clear()
        use()
        return network.rows

    assert rows(lambda: q.log_prob(x)) == [4, 3, 2, 2]
    assert rows(lambda: q.log_prob(x[:2])) == [2, 1]
    torch.manual_seed(0)
    counts = rows(lambda: seen.append(q.lengths(q.sample((50,)))))
    assert counts == [int((seen[0] > i).sum()) for i in range(int(seen[0].max()))]
    # The sweep, first variable: the base alone. Second: the base and one alternative that has not
    # ended. Third: the base has ended, its two alternatives for the second variable have not.
    E = catlog.SCateR(1)
    counts = rows(lambda: E(lambda x: x.double().sum(-1), q, x=x[1:2], generator=seeded()))
    assert counts[:2] == [1, 2]
    assert counts[2] in (2, 3)
    whole = Form(network, "all_logits")
    whole.all_logits = lambda x: (seen.append(x.shape[-1]), network.all_logits(x))[1]
    Autoregressive(whole, [K] * D, end=END, validate_args=False).log_prob(x[:2])
    assert seen[1:] == [2]


@pytest.mark.parametrize("names", [(), ("start", "step")])
def test_sequences_that_end_are_scored_as_they_are_drawn(names: tuple[str, ...]) -> None:
    network, lengths = Recurrent(), []
    q = Autoregressive(Form(network, *names), [K] * 8, end=END)
    for seed in range(5):
        seen: list[Tensor] = []

        def f(x: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(x)
            return q.lengths(x).double()

        drawn, given = catlog.RLOO(2)(f, q, generator=seeded(seed)), catlog.RLOO(2)(f, q, x=seen[0])
        parameters = [network.token, network.hidden, network.out]
        assert_same(drawn, given, parameters, rtol=0, atol=1e-12)
        lengths.append(int(q.lengths(seen[0]).max()))
    assert min(lengths) < 8 == max(lengths)


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
    stepped = q.normalised(q.by_steps(points))
    assert_close(stepped, q.log_conditionals(points), rtol=0, atol=1e-12)


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
    laws = [
        Autoregressive(n, [K] * 4, (3,), end=END, dtype=torch.float64) for n in (prompted, whole)
    ]
    values = (E(f, q, outputs=outputs, generator=seeded()) for q in laws)
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


# The check of a network


class Mixed(Recurrent):
    """A recurrent network with a planted mistake."""

    def __init__(self, mistake: str, contexts: int = 2) -> None:
        super().__init__(contexts)
        self.mistake = mistake
        self.drop = nn.Dropout(0.5)
        self.context_in_state = mistake == "context outside"

    def start(self, lead: torch.Size) -> object:
        state = super().start(lead)
        changed = {
            "context outside": torch.zeros_like(state),
            "a number in the state": (state, 0),
            "layers first": state.unsqueeze(0),
        }
        return changed.get(self.mistake, state)

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        shift = self.mistake == "steps shifted"
        logits, state = super().step(state, i + shift, previous)
        if shift:
            logits = logits * (1.1 + 0.1 * i)
        if self.mistake == "context outside":
            logits = logits + self.context[: len(logits), :K].repeat(len(logits), 1)[: len(logits)]
        return logits, state

    def all_logits(self, x: Tensor) -> Tensor:
        category, last = torch.arange(K), pad(one_hot(x[..., 1:], K).double(), (0, 0, 1, 0))
        if self.mistake == "fixed length" and x.shape[-1] < D:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        if self.mistake == "one leading dimension":
            assert x.dim() == 2, "expected a matrix"
        whole = Recurrent(len(self.context)).all_logits(x)  # the same parameters
        changes: dict[str, Callable[[], Tensor]] = {
            "flattened": lambda: whole.flatten(0, -3),
            "rows mixed": lambda: whole - whole.mean(0)[..., :1] * category,
            "batch mixed": lambda: whole + whole.mean(1, keepdim=True) * category,
            "dropout": lambda: self.drop(whole),
            "looks ahead": lambda: whole + last,
            "looks one ahead": lambda: whole + category * x.unsqueeze(-1),
        }
        return changes.get(self.mistake, lambda: whole)()


STEPS, WHOLE = ("start", "step"), ("all_logits",)
# The forms of the network; what check() says; what the first uses say, if they see it.
MISTAKES = {
    "steps shifted": (STEPS + WHOLE, "step and all_logits .* disagree on var", "disagree on var"),
    "a number in the state": (STEPS, "every part of what start .* int was given", None),
    "layers first": (STEPS, r"begin with lead = \(3, 2\), but a tensor", None),
    "context outside": (STEPS, "context_in_state", None),
    "fixed length": (WHOLE, "With `end`, all_logits gets x without what follows", None),
    "one leading dimension": (WHOLE, r"(?s)a matrix.* failed for 4 variables.* = \(3, 2\)", None),
    "flattened": (WHOLE, r"returned \(6, 4, 3\). The leading dimensions .* \(3, 2\)", "returned"),
    "rows mixed": (WHOLE, "a sequence change when other sequences change", None),
    "batch mixed": (WHOLE, "a sequence change when other sequences change", None),
    "dropout": (WHOLE, "other sequences change.*no dropout", r"two rows .* same point.*eval\(\)"),
    "looks ahead": (WHOLE, "mask is missing, or is shifted", "variables . to 3 change.* mask"),
    "looks one ahead": (WHOLE, "A causal mask is missing", "A causal mask is missing"),
    "looks one ahead, network(x, i)": ((), "A causal mask is missing", "A causal mask is missing"),
}
USES: dict[str, Callable[[Autoregressive], object]] = {
    "log_prob": lambda q: q.log_prob(q.sample()),
    "RLOO": lambda q: catlog.RLOO(2)(lambda x: x.double().sum(-1), q),
    "SCateR": lambda q: catlog.SCateR(1)(lambda x: x.double().sum(-1), q.expand([3, 2])),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_mistake_of_a_network_is_named(mistake: str) -> None:
    """By ``check``, and by the first uses of the distribution."""
    names, message, at_use = MISTAKES[mistake]
    network = Mixed(mistake.split(",")[0])
    form = Form(network, *names)
    form.context_in_state = network.context_in_state
    for seed in range(3):
        torch.manual_seed(seed)
        with pytest.raises((ValueError, TypeError, RuntimeError, AssertionError), match=message):
            Autoregressive(form, [K] * D, (2,), end=END).check()
    for use in USES.values() if at_use else ():
        Autoregressive._uses.clear()
        # torch.compile switches the default off.
        q = Autoregressive(form, [K] * D, (2,), validate_args=True)
        with pytest.raises(ValueError, match=at_use):
            use(q)


@pytest.mark.parametrize("names", FORMS)
@pytest.mark.parametrize("end", [None, END])
@pytest.mark.parametrize("contexts", [0, 2])
def test_check_passes_sound_networks(
    names: tuple[str, ...], end: int | None, contexts: int
) -> None:
    network = Form(Recurrent(contexts), *names)
    Autoregressive._uses.clear()
    for in_state in (False, True):
        network.context_in_state = in_state
        batch = (contexts,) if contexts else ()
        q = Autoregressive(network, [K] * D, batch, end=end, validate_args=True)
        for seed in range(3):
            torch.manual_seed(seed)
            catlog.check(lambda x: (x == 2).double().mean(-1), q)
            assert q.expand([4, *batch]).log_prob(q.sample((2, 4))).shape == (2, 4, *batch)
    for sizes, last in (([2, 3], end), ([1], 0), ([1, 1], None), ([2, 1, 3], None)):
        q = Autoregressive(
            lambda x, i, sizes=sizes: zeros(*x.shape[:-1], sizes[i]), sizes, end=last
        )
        q.check()
        assert q.log_prob(q.sample()).shape == ()


def test_letters_that_are_used_up_are_masked() -> None:
    context = normals(4, K)

    def network(x: Tensor, i: int) -> Tensor:
        count = one_hot(x[..., :i], K).sum(-2)
        return (context - count).masked_fill(count > 1, -torch.inf)  # no letter a third time

    q = Autoregressive(network, [K] * 6, (4,), dtype=torch.float64, validate_args=True)
    assert q.log_prob(q.sample((7,))).isfinite().all()


def test_networks_are_always_called_with_rows() -> None:
    leads: set[int] = set()

    def network(x: Tensor, i: int = 0) -> Tensor:
        leads.add(x.dim())
        return zeros(*x.shape[:-1], 2)

    q = Autoregressive(network, [2, 2], (3,))
    q.log_prob(q.sample())
    q.log_prob(zeros(2).long())
    q.entropy()
    BayesianNetwork({"a": Node([], network, cardinality=2)}, (3,)).log_prob(zeros(1).long())
    assert leads == {3}


def test_a_network_that_learns_to_look_ahead_is_caught_later() -> None:
    """Its last layer begins at zero, so that nothing shows at first."""
    network = Mixed("looks ahead")
    ahead = network.mistake
    network.mistake = ""
    q = Autoregressive(Form(network, "all_logits"), [K] * D, (2,), validate_args=True)
    Autoregressive._uses.clear()
    for _ in range(7):
        q.log_prob(zeros(2, D).long())
    network.mistake = ahead
    with pytest.raises(ValueError, match="causal mask"):
        q.log_prob(zeros(2, D).long())


def test_the_check_is_skipped_where_python_may_not_look() -> None:
    """Without validation and inside transforms; and repeats are rare."""
    network, x = Mixed("looks ahead"), zeros(2, D).long()
    form = Form(network, "all_logits")
    Autoregressive._uses.clear()
    q = Autoregressive(form, [K] * D, (2,), validate_args=False)
    for use in (USES["log_prob"], USES["RLOO"]):
        use(q)
    q = Autoregressive(form, [K] * D, (2,), validate_args=True)
    torch.func.grad(lambda scale: (scale * q.log_prob(x)).sum())(torch.ones(()))
    sound, calls = Recurrent(), []
    form = Form(sound, "all_logits")
    form.all_logits = lambda x: (calls.append(x), sound.all_logits(x))[1]
    for _ in range(100):  # of these, 1, 2, 3, 4, 8, 16, 32 and 64
        Autoregressive(form, [K] * D, validate_args=True).log_prob(x[0])
    assert len(calls) == 108


@pytest.mark.parametrize("mistake", ["positions", "padding"])
def test_check_and_first_use_find_a_wrong_cache(mistake: str) -> None:
    """Wrong padding does not show between forms, but in a comparison with the prompt alone."""
    network = Prompted(Attention(mistake=mistake), *left_padded(PROMPTS))
    q = Autoregressive(network, [K] * 3, end=END, validate_args=True)
    message = {"positions": "disagree", "padding": "depends on its padding"}[mistake]
    with pytest.raises(ValueError, match=message):
        q.check()
