"""Trials of the protocol: the agents' state machines under random delays, faults and changes of policy.

One trial is a function of its seed. It draws a number of sites, a list of collectives of every kind, who plans and
when, and a fault; it lets every message take a random time (in order on one connection, in any order between
connections); and it checks what must always hold: every site that wants a result gets it exactly once and
right, each contributor counted exactly once, or the job stops everywhere with a named cause within a stated
time. Nothing may hang: a trial whose events run out with work left has failed.

`trial`            the course of one        `plans`      who gives the coordinator new plans
`carriage`         how messages travel      `promises`   what must hold
`random_protocol`  plans and collectives

    python -m testbed.simulation.trials --first 0 --count 10000
"""

from testbed.simulation.trials.promises import TrialFailed
from testbed.simulation.trials.trial import FAULTS, MODES, PLANNERS, Fault, TrialReport, run_trial

__all__ = ["FAULTS", "MODES", "PLANNERS", "Fault", "TrialFailed", "TrialReport", "run_trial"]
