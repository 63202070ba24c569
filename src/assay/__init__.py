"""assay: curate verifiable problems, train reasoning models on them, measure what the training did."""

__version__ = "0.1.0"
