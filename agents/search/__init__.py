"""Hyper-parameter searches as state machines: which trials run, how far, and which of them go on.

Pure: a search is told scores and answers with stages to start; it trains nothing, waits for nothing and reads no
clock. The simulator (`testbed.coflow`) and a runner of real trainings drive the same ones.
"""
