"""Which coflow goes first: orderings of many jobs' synchronisations on one network.

Pure: an ordering reads what is left to send on every directed link and answers with a ranking. The simulator
(`testbed.coflow`) and a coordinator of real agents use the same ones.
"""
