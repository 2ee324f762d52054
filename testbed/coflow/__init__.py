"""Coflows on a fluid network: the public trace format, an event-driven simulator, searches in stages."""
