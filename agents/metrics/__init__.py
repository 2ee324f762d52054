"""What agent and coordinator show to Prometheus: collected when asked, so that nothing is spent in between.

The collectors see what they show through a protocol of their own, and know neither daemon.
"""
