"""Hyper-parameter searches as experiments: many trials on one network, orders of coflows compared by stage times.

The same file runs in both worlds: `emulated` on real trials over a standing testbed, `simulated` on fluid links,
where the very same training gives the very same scores.
"""
