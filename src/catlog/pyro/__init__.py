"""An ELBO for Pyro whose discrete guide sites have the estimators of catlog.

It needs Pyro: ``pip install 'pyro-ppl>=1.9'``.
"""

try:
    import pyro as _pyro  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "pyro":
        raise
    raise ModuleNotFoundError(
        "catlog.pyro needs Pyro, which is not installed: pip install 'pyro-ppl>=1.9'.", name="pyro"
    ) from None

from .elbo import ELBO as ELBO
from .networks import rows as rows

__all__ = ["ELBO", "rows"]
