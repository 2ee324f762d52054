"""The supervisor: the one process that owns a testbed, inside the testbed's own namespaces."""
