"""What the pages conclude from results/, a section per page."""

import fnmatch
import re
from importlib.util import find_spec
from statistics import mean, median

import pytest
import torch
from measured import ROOT, advantages, estimators, grouped, keyed, programs, race, read, selected
from measured import suite as of_suite
from torch.distributions import Bernoulli, Independent

import catlog
from catlog.estimators import ESTIMATORS
from catlog.testing import z_limit
from catlog.testing.settings import VARIANTS, tape

# advantages.md


def test_advantages_are_as_exact_as_the_page_says() -> None:
    rows = advantages.load()
    for (reward, estimator, size, prompt), row in rows.items():
        if estimator in ("reinforce", "rloo"):
            assert row["bias"] < 1e-12
        elif estimator == "dr_grpo":
            assert abs(row["scale"] - (1 - 1 / size)) < 1e-3
            assert row["cosine"] == 1
        elif estimator == "grpo" and (reward == "graded" or prompt != "all"):
            assert (row["cosine"] == 1) == (reward != "graded")  # a prompt keeps its direction
    scales = [rows["right or wrong", "grpo", 16, prompt]["scale"] for prompt in advantages.PROMPTS]
    assert scales[0] < scales[1] < scales[2]  # rare successes count more


def test_seeds_differ_more_than_methods_when_a_model_learns_to_add() -> None:
    ends = {
        key: run[-1] for key, run in grouped(read("quality/arithmetic"), "method", "seed").items()
    }
    by_method, by_seed = (
        [mean(end["right"] for key, end in ends.items() if key[i] == name) for name in names]
        for i, names in enumerate(map(set, zip(*ends, strict=True)))
    )
    assert max(by_method) - min(by_method) < max(by_seed) - min(by_seed)


# choose.md and estimators.md


def unbiased_rows(problem: str) -> list[dict]:
    """Return the rows of unbiased estimators on a problem, the lowest variance first."""
    skipped = {name for name, cls in ESTIMATORS.items() if not cls().unbiased} | {"VIMCO", "Exact"}
    rows = selected(read("quality/estimators"), problem=problem)
    rows = [row for row in rows if row["variance"] and row["estimator"] not in skipped]
    return sorted(rows, key=lambda row: row["variance"])


def best(problem: str, name: str, settings: str | None = None) -> float:
    """Return the lowest variance of an estimator (with these settings)."""
    rows = [row for row in unbiased_rows(problem) if row["estimator"] == name]
    return next(row["variance"] for row in rows if settings in (None, row["settings"]))


def test_who_has_the_lowest_variance_on_two_networks() -> None:
    bits, categories = "20 bits", "8 one-hot variables of 5"
    first = [row["estimator"] for row in unbiased_rows(bits)[:3]]
    assert first == ["SlopeCateR", "MemoryCateR", "DoubleCV"]
    for variance in (
        best(bits, "IndeCateR", "samples=2, sampling=latin"),
        best(bits, "CritiCateR"),
    ):
        assert variance / best(bits, "RLOO") == pytest.approx(1 / 3, rel=0.1)
    assert unbiased_rows(categories)[0]["estimator"] == "MemoryCateR"
    plain = best(categories, "IndeCateR", "samples=1")
    assert 0.8 * plain < best(categories, "RLOO") < plain


@pytest.mark.parametrize(("epochs", "plain_is_noisier"), [(8, True), (20, True), (40, False)])
def test_trained_autoencoder(epochs: int, plain_is_noisier: bool) -> None:
    rows = selected(read("quality/variance_dvae"), epochs=epochs)
    variance = {row["method"]: row["variance"] for row in rows}
    assert (variance["IndeCateR n=2"] > variance["RLOO n=402"]) == plain_is_noisier
    assert variance["IndeCateR n=2, Latin"] < min(variance["RLOO n=402"], variance["IndeCateR n=2"])


def test_gains_of_dependent_draws() -> None:
    rows = selected(read("quality/dependent_draws"), estimator="ReinMax")
    for samples, low, high in ((2, 1.6, 3.2), (8, 3.6, 5.0)):
        scheme = "antithetic" if samples == 2 else "latin"
        gains = [row["decoder_gain"] for row in selected(rows, samples=samples, draws=scheme)]
        assert gains
        assert all(low - 0.05 < gain < high + 0.05 for gain in gains)


def test_logarithms() -> None:
    rows = keyed(read("quality/log_expectation"), "problem", "estimator", "draws", "repeats")
    zeros = rows["rare", "RLOO", 16, 1]["zero"] / rows["rare", "IndeCateR", 4, 1]["zero"]
    assert zeros == pytest.approx(3, abs=0.5)
    for problem in ("rare", "common"):
        plain, corrected = (rows[problem, "IndeCateR", 16, repeats] for repeats in (1, 2))
        assert plain["evaluations"] == corrected["evaluations"]
        assert plain["gradient_bias"] > 6 * corrected["gradient_bias"]


def test_what_the_numbers_of_draws_in_the_table_cost() -> None:
    draws = {"features": 4, "simulator": 4, "chain": 8, "reversal": 8, "ranking": 8, "sensors": 8}
    races = grouped(selected(read("quality/advice_races"), policy="race"), "problem")
    assert len(races) == 18
    for problem, rows in races.items():
        seconds = {
            name: median(row["seconds"] or float("inf") for row in runs)
            for name, runs in grouped(rows, "pick").items()
        }
        pick = f"RLOO({draws.get(problem, 32)})"
        assert seconds[pick] < 1.5 * min(seconds.values()), problem


def test_every_estimator_has_a_family_and_a_cost() -> None:
    listed = [name for names in estimators.families().values() for name in names]
    assert sorted(listed) == sorted(ESTIMATORS)
    assert all(1 <= len(estimators.cost(name)) < 60 for name in ESTIMATORS)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_claim_is_what_was_measured(name: str) -> None:
    """In every setting of the battery; a new setting needs a new run of the benchmark."""
    rows = estimators.judged(name, read("quality/estimators"))
    assert {row["unbiased"] for row in rows} == {"yes" if ESTIMATORS[name]().unbiased else "no"}
    settings = {
        ", ".join(f"{key}={value}" for key, value in options.items()) for options in VARIANTS[name]
    }
    assert settings <= {row["settings"] or "" for row in rows}
    problems = {row["problem"] for row in rows}
    assert "tests: bits" in problems
    assert "one-hot" not in estimators.distributions(name) or "tests: one-hot" in problems


def test_measurements_are_complete_and_agree_with_enumeration() -> None:
    problems = estimators.problems(read("quality/estimators"))
    assert len(problems) == 2
    for problem, rows in problems.items():
        bits_only = {name for name in ESTIMATORS if estimators.distributions(name) == "bits"}
        expected = set(ESTIMATORS) - (bits_only if "one-hot" in problem else set())
        assert {row["estimator"] for row in rows} == expected
        for row in rows:
            name = row["estimator"]
            assert name in ("Exact", "UnorderedSet") or 30 <= row["evaluations"] <= 44
            E = ESTIMATORS[name]()
            if E.unbiased and tape(E) and E.target == "expectation":
                assert row["z"] < z_limit(len(rows))


def test_suite_compares_with_the_best_unbiased_estimator() -> None:
    rows = [
        {"problem": problem, "estimator": name, "variance": variance, "seconds": seconds,
         "unbiased": name != "StraightThrough", "norm": 1.0, "bias": 0.5}
        for problem, name, variance, seconds in (
            ("ising", "RLOO", 1.0, 6.0), ("ising", "IndeCateR", 0.5, 4.0),
            ("ising", "StraightThrough", 0.25, 2.0), ("additive", "RLOO", 1.0, 3.0),
            ("additive", "IndeCateR", 1e-30, 1.0),
        )
    ]  # fmt: skip
    rows = of_suite.prepared(rows)
    assert of_suite.ratios(rows) == {
        "ising": {"RLOO": 3.0, "IndeCateR": 1.0, "StraightThrough": 0.5},  # (0.25 + 0.5²) · 2 / 2
        "additive": {"RLOO": 1.0, "IndeCateR": 0.0},
    }
    assert of_suite.order(rows) == (["IndeCateR", "RLOO"], ["StraightThrough"])
    assert "| `RLOO` | 2 | 1.7 | 3 | 1 |" in of_suite.safe(rows)


# from_gumbel_softmax.md


def test_reinmax_has_the_bias_of_low_temperatures_only() -> None:
    rows = selected(read("quality/temperatures"), section="gradient")
    by_steps = {}
    for steps, group in grouped(rows, "steps").items():
        torch_own = [row for row in group if row["estimator"].startswith("F.")]
        (reinmax,) = selected(group, estimator="ReinMax(1)")
        assert all(reinmax["bias"] < row["bias"] / 2 for row in torch_own[1:])
        assert reinmax["variance"] < torch_own[0]["variance"] / 4
        by_steps[steps] = [row["bias"] for row in torch_own[1:]]
    early, late = by_steps.values()
    assert all(after > 1.5 * before for before, after in zip(early, late, strict=True))


def test_straight_through_and_hard_gumbel_softmax_are_level_and_the_safest() -> None:
    rows = read("quality/sampling_layers")
    best = {
        key: min(row["quality"] for row in runs)
        for key, runs in grouped(rows, "model", "seed").items()
    }
    worst = {
        name: max(row["quality"] / best[row["model"], row["seed"]] for row in runs)
        for name, runs in grouped(rows, "estimator").items()
    }
    assert set(sorted(worst, key=worst.__getitem__)[:2]) == {
        "StraightThrough(1)",
        "GumbelSoftmax(1, hard=True)",
    }
    with_prior = [row for row in rows if row["model"] in ("codebook, KL", "two levels")]
    quality = {
        name: mean(row["quality"] / best[row["model"], row["seed"]] for row in runs)
        for name, runs in grouped(with_prior, "estimator").items()
    }
    assert min(quality, key=quality.__getitem__) == "ReinMax(1)"


# from_pyro.md


def test_who_is_ahead_in_pyro() -> None:
    for (problem, steps), rows in grouped(
        read("quality/pyro_variance"), "problem", "steps"
    ).items():
        first = min(rows, key=lambda row: row["ratio"])["method"]
        expected = {"mixture": "IndeCateR(1)", "chain": "SCateR(1)"}
        assert expected.get(problem, "IndeCateR(1)" if steps == 5 else "RLOO(31)") in first
    rows = selected(read("pyro/ss_vae"), section="training")
    for noise, rate, steps in (("shared", 0.003, 1000), ("stratified", 0.001, 1000)):
        same = selected(rows, rate=rate, steps=steps)
        theirs = selected(same, method="TraceEnum_ELBO, parallel")
        ours = selected(same, method="Exact()", noise=noise)
        assert all(a["bound"] < b["bound"] for a, b in zip(ours, theirs, strict=True))


# idea.md


def test_two_bits_that_share_a_logit() -> None:
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    for E, variance in ((catlog.Reinforce(), 0.0), (catlog.IndeCateR(), 1 / 8)):
        logits = torch.zeros(4, 2, requires_grad=True)
        q = Independent(Bernoulli(logits=logits), 1)
        value = E(lambda x: (x[..., 0] != x[..., 1]).float(), q, x=x.unsqueeze(0))
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        assert gradient.sum(-1).var(unbiased=False).item() == variance


# policies.md, structured.md


def test_the_estimators_do_not_differ_on_coins() -> None:
    rewards = grouped(read("quality/coin_sequences"), "estimator")
    means = [mean(row["reward"] for row in runs) for runs in rewards.values()]
    spread = max(row["reward"] for runs in rewards.values() for row in runs) - min(
        row["reward"] for runs in rewards.values() for row in runs
    )
    assert max(means) - min(means) < 0.2 * spread


def test_what_the_page_says_of_common_random_numbers() -> None:
    rows = [
        row
        for row in read("quality/structured_variance")
        if row["problem"] in ("chain", "dag", "mdp")
    ]

    def span(*methods: str) -> str:
        ratios = [row["relative_to_rloo"] for row in rows if row["method"] in methods]
        return f"{min(ratios):.1f} to {max(ratios):.1f}"

    text = " ".join((ROOT / "docs" / "structured.md").read_text(encoding="utf-8").split())
    assert f"the variance is {span('SCateR, common', 'RAM')} times RLOO's" in text
    assert f"instead of {span('SCateR')} times" in text
    assert all(row["low_95"] > 1 for row in rows if row["method"] == "SCateR")


# programs.md


def test_the_second_softmax_makes_hard_programs_hard_again() -> None:
    rows = programs.last_rows(read("programs/programs"))
    for program in ("sum-3", "sum-4", "add-sub", "less-than", "equal"):
        accuracy = {
            (name, twice): mean(
                row["accuracy"] for row in programs.runs_of(rows, program, name, twice)
            )
            for name, twice in (("IndeCateR", True), ("RLOO", False))
        }
        assert accuracy["IndeCateR", True] < 0.8 < 0.94 < accuracy["RLOO", False]


def test_lost_programs_are_fitted_to_their_examples() -> None:
    rows = programs.last_rows(read("programs/programs"))
    for name in ("IndeCateR", "RLOO"):
        lost = programs.lost(rows, name)
        assert lost == ["less-than", "not-3-or-4"]
        runs = [row for program in lost for row in programs.runs_of(rows, program, name)]
        assert max(row["train"] for row in runs) < 0.02


def test_how_the_deeper_network_reads_long_numbers() -> None:
    """After 20 epochs every digit plus 5; a run has 50 test sums, of which 0.4 are right."""
    rows = selected(read("programs/programs"), network="deep", digits=100, estimator="IndeCateR")
    early = [row for row in selected(rows, shift=0, restart=20) if row["epoch"] == 20]
    assert len(early) == 3
    assert max(row["digit_accuracy"] for row in early) < 0.02
    assert min(row["result_accuracy"] for row in early) > 0.3
    assert round(100 * (0.4 * 0.6 / 50) ** 0.5) == 7


# race.md and README.md


def test_who_is_first_in_the_races() -> None:
    methods = race.of_images("mnist")
    times = {name: race.mean_to(methods[name]) for name in race.HEADLINE}
    assert min(times, key=times.__getitem__).startswith("ReinMax")
    assert min(filter(race.is_unbiased, times), key=times.__getitem__).startswith("SlopeCateR")
    seconds = race.cpu_seconds(read("speed/cpu_race_seldom"))
    for name in ("bits", "one-hot"):
        order = sorted(
            (method for method in seconds if name in seconds[method]),
            key=lambda method: seconds[method][name],
        )
        assert order[0] == "ReinMax(1)"
        fastest = next(filter(race.is_unbiased, order))
        assert fastest.startswith("SlopeCateR")
        assert "every=4" in fastest
        assert 1.2 < seconds[fastest][name] / seconds["ReinMax(1)"][name] < 1.3
    assert seconds["RLOO(2)"]["attention"] == pytest.approx(
        seconds["ReinMax(1)"]["attention"], rel=0.02
    )


def test_unbiased_estimators_on_binary_fashion_differ_less_than_models() -> None:
    run = race.on_protocol("bernoulli", "fashion-mnist", "DoubleCV")
    models = race.bounds(run[max(run)])
    leads = [race.lead("bernoulli", "fashion-mnist", name) for name in ("DoubleCV", "RODEO")]
    assert max(map(abs, leads)) < max(models) - min(models)


def test_who_has_the_lowest_bounds_on_categorical_autoencoders() -> None:
    leaders = []
    for runs in grouped(read("protocol/categories"), "categories", "variables").values():
        by_method = grouped(runs, "estimator", "options")
        epoch = min(max(row["epoch"] for row in rows) for rows in by_method.values())
        bounds = {
            method: mean(row["train"] for row in rows if row["epoch"] == epoch)
            for method, rows in by_method.items()
        }
        leaders.append(min(bounds, key=bounds.__getitem__)[0])
    assert sorted(leaders) == ["IndeCateR"] * 4 + ["ReinMax", "SlopeCateR"]


def test_who_collapses_on_categorical_autoencoders() -> None:
    runs = selected(read("protocol/categories"), categories=8, variables=4)
    last = {(row["estimator"], row["options"]): row for row in runs}
    assert last.keys() > {("GumbelSoftmax", "hard=True"), ("ReinMax", "temperature=1.5")}
    for (name, options), row in last.items():
        collapsed = sum(row[f"train.{model}"] > 200 for model in range(3))
        assert collapsed == 2 * (name == "GumbelSoftmax" or options == "temperature=1.5")


def test_sums_of_64_digits_stay_unsolved() -> None:
    assert max(row["accuracy"] for row in read("paper/addition_64")) < 0.2


def test_numbers_of_estimators() -> None:
    rows = read("quality/estimators")
    biased = [name for name in ESTIMATORS if not estimators.unbiased(name, rows)]
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"has all {len(ESTIMATORS)}" in text
    assert f"{len(ESTIMATORS) - len(biased)} are unbiased" in text
    assert f"{len(biased)} are biased by design" in text


# results/README.md


def test_every_file_is_listed_with_a_command_that_exists() -> None:
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in (ROOT / "results").rglob("*.csv")}
    listed = {
        pattern: fnmatch.filter(files, pattern) for pattern in re.findall(r"`([\w*]+\.csv)`", text)
    }
    assert [pattern for pattern, names in listed.items() if not names] == []
    assert files == {name for names in listed.values() for name in names}
    for module in re.findall(r"python -m (benchmarks\.[a-z_]+)", text):
        assert find_spec(module) is not None, module


# scaling.md


def test_what_two_processes_gain() -> None:
    rows = {row["case"]: row["speedup"] for row in read("scaling/scaling") if row["processes"] == 2}
    gains = [round(rows[case], 1) for case in (
        "DVAE, batch 100, IndeCateR", "IndeCateR(2), FirstLayerLinear", "RLOO(400), decoder",
        "f sleeps 5 ms, 201 evaluations",
    )]  # fmt: skip
    assert gains == [1.8, 1.4, 2.0, 1.8]
    assert rows["DVAE, batch 100, RLOO-S"] < 1


# README.md, jax/README.md and jax/docs/numpyro.md


def ratios_of_steps(file: str, rival: str) -> dict[str, float]:
    """Return the time of a step of JAX in a scan, divided by that of a rival, by method."""
    rows = {name: keyed(rows, "mode") for name, rows in grouped(read(file), "method").items()}
    return {name: row["jax, scan",]["ms"] / row[rival,]["ms"] for name, row in rows.items()}


def test_what_steps_in_jax_take_beside_torch() -> None:
    eager, compiled = (
        ratios_of_steps("speed/jax_step_times", f"torch, {mode}") for mode in ("eager", "compiled")
    )
    captured = ratios_of_steps("speed/jax_step_times_cuda", "torch, captured")
    slowest = captured.pop("SlopeCateR(8)")
    assert len(eager) == len(compiled) == len(captured) + 1 == 5
    on_cpu, beside_compiled, on_gpu = (
        f"{min(ratios.values()):.2f} to {max(ratios.values()):.2f}"
        for ratios in (eager, compiled, captured)
    )
    short, full = (
        " ".join((ROOT / page).read_text(encoding="utf-8").split())
        for page in ("README.md", "jax/README.md")
    )
    least = on_gpu.split()[0]
    assert f"{on_cpu} of eager torch's time on a CPU, and {least} to {slowest:.2f} of a" in short
    assert f"takes {on_cpu} of the time of eager torch, and {beside_compiled} of compiled" in full
    assert f"takes {on_gpu} of the time of torch's captured step" in full
    assert f"and {slowest:.2f} for `SlopeCateR(8)`" in full


def test_what_the_elbo_for_numpyro_gains() -> None:
    rows = {row["loss"]: row for row in read("speed/jax_numpyro")}
    page = (ROOT / "jax/docs/numpyro.md").read_text(encoding="utf-8")
    for loss, row in rows.items():
        name, *biased = loss.split(", ")
        label = ", ".join([f"`{name}`", *biased])
        variance = float(f"{row['variance_encoder']:.3g}")
        assert f"| {label} | {row['evaluations']} | {variance:,.0f} | {row['ms']:.2f} |" in page
    plain, ours = (
        rows[name]["variance_encoder"] for name in ("TraceGraph_ELBO(13)", "ELBO(RLOO(13))")
    )
    assert round(plain / ours, -1) == 200
    assert "200 times the variance" in (ROOT / "jax/README.md").read_text(encoding="utf-8")
