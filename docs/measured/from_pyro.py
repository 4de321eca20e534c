"""The table of from_pyro.md."""

from . import read, selected, table

LABELLED = (("TraceEnum_ELBO, parallel", None), ("Exact()", "shared"), ("Exact()", "stratified"))
STEPS = ((0.001, 1000), (0.003, 1000), (0.003, 4000))


def bounds() -> str:
    """Return a line per loss with its bounds after each training, one per seed."""
    rows = selected(read("pyro/ss_vae"), section="training")
    lines = []
    for method, noise in LABELLED:
        name = f"ELBO({method})" if noise == "shared" else f'ELBO({method}, noise="{noise}")'
        cells = [
            ", ".join(
                f"{row['bound']:.1f}"
                for row in selected(rows, method=method, noise=noise, rate=rate, steps=steps)
            )
            for rate, steps in STEPS
        ]
        lines.append([f"`{name if noise else method}`", *cells])
    heads = [f"{steps} steps at {rate}" for rate, steps in STEPS]
    return table(["loss", *heads], lines)


def values() -> dict[str, object]:
    return {"bounds": bounds()}
