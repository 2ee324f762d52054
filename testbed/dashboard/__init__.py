"""The live page: a standing testbed as it runs, or a finished run again, in a browser on this machine.

One static page without a build step draws what two sources say in the same words: `live` asks a testbed's
supervisor and its Prometheus once a second, `replay` reads a run directory.
"""
