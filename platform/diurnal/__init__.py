"""diurnal: elastic, daily training of deep learning recommendation models on Ray."""

__version__ = "0.1.0"
