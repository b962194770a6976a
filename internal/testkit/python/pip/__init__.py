__version__ = "23.2.1"
