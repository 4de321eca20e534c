"""Language models: distributions of their completions, and advantages for training loops."""

from .causal_lm import CausalLM as CausalLM
from .group_advantages import advantages as advantages
