"""For training loops of language models: advantages of sampled completions."""

from .group_advantages import advantages as advantages
