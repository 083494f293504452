"""The parameter server: a Master, servers that keep the parameters, workers that learn (docs/ps.md)."""
