"""Gradients and training in Pyro: `catlog.pyro.ELBO` beside Pyro's own losses.

    python -m benchmarks.from_pyro                # pyro_variance.csv, ss_vae.csv, air.csv
    python -m benchmarks.from_pyro --only air     # half an hour

It needs the extra `pyro`, and scikit-learn for the digits. The modules `pyro_variance`,
`pyro_ss_vae` and `pyro_air` describe their models and columns.
"""

import logging
from collections.abc import Sequence

from .measuring import Section, run
from .pyro_air import air
from .pyro_ss_vae import KEY, ss_vae
from .pyro_variance import variance

SECTIONS = {
    "variance": Section("quality/pyro_variance.csv", ("problem", "steps", "method"), variance),
    "ss_vae": Section("pyro/ss_vae.csv", KEY, ss_vae),
    "air": Section("pyro/air.csv", ("section", "method", "rate", "seed", "steps"), air),
}


def main(arguments: Sequence[str] | None = None) -> None:
    logging.getLogger("pyro").setLevel(logging.WARNING)
    run(__doc__, SECTIONS, arguments)


if __name__ == "__main__":
    main()
