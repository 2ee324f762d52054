"""The torch side of a site: the `torch.distributed` backend `stormbed` and the training program.

Importing this package registers the backend. Where the project is installed torch does so by itself (entry
point `torch.backends`), and a script needs no import at all.
"""

# torch comes first. It loads the entry point at the end of its own import, which imports this package again,
# half-way; a module further down that were the first to ask for torch would meet itself unfinished.
import torch  # noqa: F401

from agents.worker.backend import Options, register
from agents.worker.process_group import BACKEND, StormbedProcessGroup

register()

__all__ = ["BACKEND", "Options", "StormbedProcessGroup", "register"]
