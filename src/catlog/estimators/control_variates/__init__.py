"""Score-function estimators with a control variate from slopes of f."""
