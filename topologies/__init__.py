"""What the network is, and what every other package must agree on. Imports nothing of the project."""
