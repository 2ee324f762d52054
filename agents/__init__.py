"""What every site runs: planners and the synchronisation protocol (pure), and the runtime that executes them.

`agents.planning`, `agents.chunks` and `agents.sync` read no clock, open no socket and never wait. The
emulated world (asyncio over TCP) and the simulated world (a discrete-event loop) drive the very same objects.
"""
