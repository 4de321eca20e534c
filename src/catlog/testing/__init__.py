"""The judge of estimators: exact enumeration of every outcome of a sampler, for ours and for yours."""
