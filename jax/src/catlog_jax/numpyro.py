"""An ELBO for NumPyro's ``SVI``: discrete sites of the guide get an estimator's gradient.

It needs NumPyro: import it by name, ``from catlog_jax.numpyro import ELBO``.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import all_gather, axis_index, stop_gradient
from numpyro import infer
from numpyro.handlers import replay, seed, substitute, trace
from numpyro.ops.provenance import eval_provenance

from .estimator import Estimator
from .estimators.through import REBAR, GumbelSoftmax
from .factors import Bernoulli, Categorical, Factors, IndependentFactors, inverse_cdf, view

Message = dict[str, Any]  # a site, as NumPyro describes it
Term = tuple[int, str]  # of the bound: 1 for sites of the model, -1 for the guide's, and the name
Values = Callable[[Message], Array | None]  # what a site takes instead of what it draws
ELEMENTS = "elements of plates"  # the axis that estimates are mapped over


class ELBO(infer.ELBO):  # type: ignore[misc]  # NumPyro is untyped here
    r"""The evidence lower bound, with an estimator for the discrete sites of the guide.

    .. math:: \mathbb{E}_{z \sim q}\bigl[\log p(z, \text{data}) - \log q(z)\bigr]

    It takes the place of ``Trace_ELBO``: ``SVI(model, guide, optim, ELBO(RLOO(8)))``.

    - *Discrete sites* of the guide are Bernoulli or Categorical, of any shape. If none depends on
      another, they are independent variables: for all estimators but REBAR if they are bits, else
      for those that take category numbers. If some do, they are one distribution of dependent
      variables, for Reinforce, RLOO, VIMCO, UnorderedSet, SCateR and Exact.
    - *Continuous sites* of the guide are reparameterised. They may depend on discrete sites, and
      discrete sites on them.
    - *Plates*, also with subsampling: every element of those plates that contain all discrete sites
      and all that depends on them has an estimate of its own, with its own baselines. Their
      evaluations are made together, so RLOO(8) runs model and guide 8 times. If something outside
      of a plate depends on discrete sites inside, these are variables of one estimate.

    The model gets bits as floats if the estimator differentiates it, and otherwise as from NumPyro.
    Refused by name: other discrete sites, sites that are not reparameterised, latent sites that
    only the model or only the guide has, discrete sites in control flow, and mutable sites.

    Cost: the estimator's evaluations, each a run of model and guide. IndeCateR with ``variables``
    and ``control="taylor"`` differentiates the model once for every element.

    Args:
        estimator: such as ``RLOO(8)`` or ``IndeCateR()``.
        num_particles: number of estimates, whose mean is the loss.
        vectorize_particles: as in NumPyro.

    >>> import numpyro, numpyro.distributions as dist
    >>> def model():
    ...     z = numpyro.sample("z", dist.Bernoulli(0.5))
    ...     numpyro.sample("y", dist.Normal(z, 1.0), obs=2.0)
    >>> def guide():
    ...     numpyro.sample("z", dist.Bernoulli(numpyro.param("p", 0.5)))
    >>> elbo = ELBO(Exact())
    >>> gradient = jax.grad(lambda p: elbo.loss(jax.random.key(0), {"p": p}, model, guide))(0.5)
    >>> f"{gradient:.3f}"
    '-1.500'
    """

    can_infer_discrete = True

    def __init__(
        self, estimator: Estimator[Any], num_particles: int = 1, vectorize_particles: Any = True
    ) -> None:
        if not isinstance(estimator, Estimator):
            raise TypeError(
                "ELBO: `estimator` must be an estimator of catlog_jax, such as RLOO(8), but it is "
                f"{estimator!r}."
            )
        if isinstance(estimator, REBAR | GumbelSoftmax) and not getattr(estimator, "hard", False):
            raise NotImplementedError(
                f"ELBO: `estimator` must not be {type(estimator).__name__}, which takes f between "
                "bits, where distributions of NumPyro have no probability. Use RLOO, SlopeCateR or "
                "GumbelSoftmax(hard=True)."
            )
        super().__init__(num_particles, vectorize_particles)
        self.estimator = estimator

    def loss(
        self,
        rng_key: Array,
        param_map: dict[str, Array],
        model: Callable[..., Any],
        guide: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Array:
        """Return the estimate of the negated bound. Its arguments are those of NumPyro's losses."""

        def estimate(key: Array) -> Array:
            model_key, guide_key, draw_key = jax.random.split(key, 3)
            programs = Programs(
                # The handler of seeds is the inner one, so that all runs have the same noise.
                lambda: substitute(seed(model, model_key), data=param_map)(*args, **kwargs),
                lambda: substitute(seed(guide, guide_key), data=param_map)(*args, **kwargs),
            )
            return programs.estimate(draw_key, self.estimator)

        keys = jax.random.split(rng_key, self.num_particles)
        return -jnp.mean(self.vectorize_particles_fn(estimate, keys))


class Programs(Factors):
    """A model and a guide in which all is fixed but the values of the guide's discrete sites.

    The plates that contain all terms of the bound that depend on these values have *elements*. A
    table of numbers is arranged by element in *rows*, ``[elements, d, *rest]``. As a distribution
    it is that of one element's variables, in the order of the guide; they may depend on each other.

    Attributes:
        first: the sites of a first run, by term.
        discrete: the discrete sites of the guide, by name.
        is_dependent: whether one of them depends on another.
        terms: those of the bound that depend on the values.
        plates: the names of the plates that all these terms are in.
        parts: which of the variables of an element belong to a discrete site, by name.
    """

    d: int = 0
    k: int = 0

    def __init__(self, model: Callable[[], Any], guide: Callable[[], Any]) -> None:
        self.model = model
        self.guide = guide
        self.first = self.run(lambda site: None)
        check(self.first)
        self.discrete = {
            name: site
            for (sign, name), site in self.first.items()
            if sign < 0 and not (site["is_observed"] or site["fn"].has_rsample)
        }
        values = {name: site["value"] for name, site in self.discrete.items()}
        logits, terms = eval_provenance(self.outcomes, **values)  # the values that each is made of
        self.is_dependent = any(logits.values())
        self.terms = [term for term in self.first if terms[term]]
        plates = [set(dimensions(self.first[term])) for term in self.terms]
        self.plates = sorted(set.intersection(*plates)) if plates else []
        sizes = [self.rows(site, site["value"]).shape[1] for site in self.discrete.values()]
        ends = np.cumsum([0, *sizes]).tolist()
        self.parts = dict(zip(self.discrete, map(slice, ends, ends[1:]), strict=False))
        self.d = ends[-1]
        self.k = max((factors_of(site).k for site in self.discrete.values()), default=0)

    def run(self, values: Values) -> dict[Term, Message]:
        """Return the sites of both programs, in which ``values`` replaces what is drawn."""
        guide = trace(substitute(self.guide, substitute_fn=values)).get_trace()
        model = trace(replay(self.model, guide)).get_trace()
        return {
            (sign, name): site
            for sign, sites in ((-1, guide), (1, model))
            for name, site in sites.items()
            if site["type"] in ("sample", "mutable")
        }

    def outcomes(self, **values: Array) -> tuple[dict[str, Array], dict[Term, Array]]:
        """Return the logits of the discrete sites, and the terms of the bound."""
        sites = self.run(lambda site: values.get(site["name"]))
        logits = {name: factors_of(sites[-1, name]).logits for name in values}
        return logits, {term: log_prob(site) for term, site in sites.items()}

    def rows(self, site: Message, table: Array, rest: int = 0) -> Array:
        """Return the rows of a table of a site, whose last dimensions are the rest."""
        of_plates = dimensions(site)
        axes = [len(site["fn"].batch_shape) + of_plates[name] for name in self.plates]
        front = jnp.moveaxis(table, axes, range(len(axes)))
        tail = front.shape[front.ndim - rest :]
        return front.reshape(prod(front.shape[: len(axes)]), -1, *tail)

    def value(self, site: Message, points: Array, as_floats: bool = False) -> Array | None:
        """Return the value of a discrete site from the points of all elements, else None."""
        name = site["name"]
        if name not in self.discrete:
            return None
        site = self.discrete[name]
        like = jax.ShapeDtypeStruct(factors_of(site).shape, self.real)
        # Rows are a permutation of the site's numbers, whose transpose is its inverse.
        from_rows = jax.linear_transpose(lambda table: self.rows(site, table), like)
        (value,) = from_rows(points[:, self.parts[name]].astype(self.real))
        return value if as_floats else value.astype(site["value"].dtype)

    def log_probs(self, site: Message) -> Array:
        """Return rows of the log-probabilities of a site, -inf beyond its categories."""
        factors = factors_of(site)
        rows = self.rows(site, factors.log_probs.reshape(*factors.shape, factors.k), 1)
        wide = ((0, 0), (0, 0), (0, self.k - factors.k))
        return jnp.pad(rows, wide, constant_values=-jnp.inf)

    def independent(self) -> IndependentFactors:
        """Return the distribution of all discrete sites, with the elements in front."""
        sites = self.discrete.values()
        if all(isinstance(factors_of(site), Bernoulli) for site in sites):
            rows = [self.rows(site, factors_of(site).logits) for site in sites]
            return Bernoulli(jnp.concatenate(rows, 1))
        return Categorical(jnp.concatenate([self.log_probs(site) for site in sites], 1))

    def estimate(self, key: Array, estimator: Estimator[Any]) -> Array:
        """Return an estimate of the bound."""
        rest = [term for term in self.first if term not in self.terms]
        total = sum((term[0] * log_prob(self.first[term]).sum() for term in rest), jnp.zeros(()))
        if not self.discrete:
            return total
        q = None if self.is_dependent else self.independent()
        try:
            estimator.view(q or self)
        except TypeError as error:
            error.add_note(f"q has the discrete sites of the guide: {', '.join(self.discrete)}.")
            raise

        def of_element(key: Array, q: IndependentFactors | None) -> Array:
            return estimator(key, cost, q or self, batch=elements)

        def cost(x: Array) -> Array:
            """Return the terms of this element, whose point is x."""
            points = all_gather(x, ELEMENTS)
            sites = self.run(lambda site: self.value(site, points, estimator.differentiates_f))
            terms = [term[0] * self.rows(sites[term], log_prob(sites[term])) for term in self.terms]
            return jnp.concatenate(terms, 1).sum(1)[axis_index(ELEMENTS)]

        elements = len(self.rows(site := next(iter(self.discrete.values())), site["value"]))
        keys = jax.random.split(key, elements)
        return total + jax.vmap(of_element, axis_name=ELEMENTS)(keys, q).sum()

    def log_conditionals(self, index: Array) -> Array:
        def of_one(index: Array) -> Array:
            points = all_gather(index, ELEMENTS)
            sites = self.run(lambda site: self.value(site, points))
            rows = [self.log_probs(sites[-1, name]) for name in self.discrete]
            return jnp.concatenate(rows, 1)[axis_index(ELEMENTS)]

        return jax.vmap(of_one)(index)

    def redraw(self, u: Array, index: Array, kept: Array) -> Array:
        u, points, kept = all_gather((u, index, kept), ELEMENTS)

        def value(site: Message) -> Array | None:
            nonlocal points
            if site["name"] in self.parts:
                part = self.parts[site["name"]]
                drawn = inverse_cdf(jnp.exp(stop_gradient(self.log_probs(site))), u[:, part])
                chosen = jnp.where(kept[:, part], points[:, part], drawn)
                points = points.at[:, part].set(chosen)
            return self.value(site, points)

        self.run(value)
        return points[axis_index(ELEMENTS)]


def factors_of(site: Message) -> IndependentFactors:
    """Return the distribution of a discrete site of the guide."""
    try:
        factors = view(site["fn"])
    except TypeError as error:
        raise NotImplementedError(
            f"ELBO: site {site['name']!r} of the guide is {type(site['fn']).__name__}, which is "
            "neither reparameterised nor Bernoulli or Categorical. Use TraceGraph_ELBO."
        ) from error
    assert isinstance(factors, IndependentFactors)
    return factors


def dimensions(site: Message) -> dict[str, int]:
    """Return the plates of a site, and their dimensions, which are negative."""
    return {frame.name: frame.dim for frame in site["cond_indep_stack"]}


def log_prob(site: Message) -> Array:
    """Return the log-probabilities of a site's value, scaled, of the shape of its batch."""
    extra = (site["intermediates"],) if site["intermediates"] else ()
    table = site["fn"].log_prob(site["value"], *extra)
    table = jnp.broadcast_to(table, site["fn"].batch_shape)
    return table if site["scale"] is None else table * site["scale"]


def check(sites: dict[Term, Message]) -> None:
    """Raise if a site cannot be estimated."""
    for (sign, name), site in sites.items():
        in_other = not sites.get((-sign, name), {}).get("is_observed", True)
        problem = None
        if site["type"] == "mutable":
            problem = "is mutable, which is not supported. Pass its value as an argument"
        elif site["is_observed"]:
            continue
        elif sign > 0 and not in_other:
            problem = "is not in the guide. Add it there, or sum it out (TraceEnum_ELBO)"
        elif not (in_other or site["infer"].get("is_auxiliary")):
            problem = (
                "is not in the model. If that is meant, mark it by infer={'is_auxiliary': True}"
            )
        elif sign < 0 and not site["fn"].has_rsample and site.get("_control_flow_done"):
            problem = "is discrete, and in control flow. Write the loop in Python"
        if problem:
            place = "guide" if sign < 0 else "model"
            raise NotImplementedError(f"ELBO: site {name!r} of the {place} {problem}.")
