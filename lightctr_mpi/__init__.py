"""lightctr_mpi: click-through-rate models on sparse data, trained on one core or on many MPI ranks."""

__version__ = "0.1.0"
