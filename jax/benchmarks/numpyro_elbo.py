"""How noisy is the gradient of an ELBO in NumPyro, and how long does it take?

    PYTHONPATH=jax/src python jax/benchmarks/numpyro_elbo.py

An autoencoder of 12 bits for 100 data in a plate. `TraceGraph_ELBO` and `catlog_jax.numpyro.ELBO`
have the same number of evaluations of the model. Variances are sums over the encoder's and over the
decoder's parameters, over 400 keys. Times are CPU seconds of a compiled gradient on one core; the
losses take turns, and the median of 20 rounds is listed. The largest z compares the mean gradient
of the encoder with that of RLOO(130), over 400 keys.
"""

import csv
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

OUT = Path(__file__).parents[2] / "results" / "speed" / "jax_numpyro.csv"
BITS, PIXELS, DATA, KEYS, ROUNDS, STEPS = 12, 20, 100, 400, 20, 10


def main() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import TraceGraph_ELBO

    from catlog_jax import RLOO, IndeCateR, ReinMax, SlopeCateR
    from catlog_jax.numpyro import ELBO

    keys = jax.random.split(jax.random.key(0), 3)
    data = 2 * jax.random.normal(keys[0], (DATA, PIXELS))
    params = {
        "encoder": 0.3 * jax.random.normal(keys[1], (PIXELS, BITS)),
        "decoder": jax.random.normal(keys[2], (BITS, PIXELS)),
    }

    def model() -> None:
        decoder = numpyro.param("decoder")
        with numpyro.plate("data", DATA):
            z = numpyro.sample("z", dist.Bernoulli(logits=jnp.zeros((DATA, BITS))).to_event(1))
            numpyro.sample("y", dist.Normal(jnp.tanh(z @ decoder), 1.0).to_event(1), obs=data)

    def guide() -> None:
        encoder = numpyro.param("encoder")
        with numpyro.plate("data", DATA):
            numpyro.sample("z", dist.Bernoulli(logits=data @ encoder).to_event(1))

    losses = {
        "TraceGraph_ELBO(13)": (TraceGraph_ELBO(13), 13),
        "ELBO(RLOO(13))": (ELBO(RLOO(13)), 13),
        "ELBO(IndeCateR(1))": (ELBO(IndeCateR(1)), 13),
        "ELBO(SlopeCateR(8))": (ELBO(SlopeCateR(8)), 14),
        "TraceGraph_ELBO(1)": (TraceGraph_ELBO(1), 1),
        "ELBO(ReinMax(1)), biased": (ELBO(ReinMax(1)), 1),
        "reference": (ELBO(RLOO(130)), 130),
    }

    def compiled(loss: Any) -> Any:
        return jax.jit(jax.grad(lambda params, key: loss.loss(key, params, model, guide)))

    gradients = {name: compiled(loss) for name, (loss, _) in losses.items()}
    runs: dict[str, Any] = {}
    for name, gradient in gradients.items():
        rows = [gradient(params, key) for key in jax.random.split(jax.random.key(1), KEYS)]
        runs[name] = jax.tree.map(lambda *row: jnp.stack(row), *rows)
    times: dict[str, list[float]] = {name: [] for name in gradients}
    for number in range(ROUNDS):
        for name, gradient in gradients.items():
            start = time.process_time()
            for step in range(STEPS):
                jax.block_until_ready(gradient(params, jax.random.key(number * STEPS + step)))
            times[name].append(1e3 * (time.process_time() - start) / STEPS)
    reference = runs.pop("reference")["encoder"]
    rows = []
    for name, run in runs.items():
        encoder = run["encoder"]
        error = jnp.sqrt(encoder.var(0) / KEYS + reference.var(0) / KEYS)
        rows.append(
            {
                "loss": name,
                "evaluations": losses[name][1],
                "variance_encoder": f"{encoder.var(0).sum():.4g}",
                "variance_decoder": f"{run['decoder'].var(0).sum():.4g}",
                "largest_z": f"{(jnp.abs(encoder.mean(0) - reference.mean(0)) / error).max():.2f}",
                "ms": f"{median(times[name]):.3g}",
                "jax": jax.__version__,
                "numpyro": numpyro.__version__,
            }
        )
        print(rows[-1], flush=True)
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
