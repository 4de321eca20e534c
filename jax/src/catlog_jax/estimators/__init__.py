"""The estimators, one file per family or per large method."""
