"""Estimators from negatively dependent draws: ARM, DisARM and their relatives."""
