"""The simulated world: the agents' state machines over fluid links, and the bound on any all-reduce.

`synchronise`  one synchronisation under a scheduler      `comparison`  every scheduler beside the bound
`world`        machines, links and clock joined           `run`         an experiment, to a run directory
`bounds`       how fast any scheme could be               `trials`      the protocol under faults
"""
