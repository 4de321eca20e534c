"""From q to points: uniforms, draws, Gumbel noise, interventions on one variable."""
