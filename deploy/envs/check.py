# Compares every file of an environment with RECORD. place.py comes before this file.
name = target(CURRENT)
emit({"checked": dict(Whole(os.path.join(PLACE, name)).told(), name=name) if name else None})
