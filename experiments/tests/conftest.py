"""The folder of this file is on the path of all tests here: those of slow/ import runs.py too."""
