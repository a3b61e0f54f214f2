"""gradlag for Python: bring a model (serve), read results, draw."""
from .peer import serve

__all__ = ["serve"]
