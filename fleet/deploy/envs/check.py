# Compares every file of an environment with RECORD. place.py comes before this file.
danger, name = unsafe(), target(CURRENT)
emit({"unsafe": danger} if danger else {"checked": dict(Whole(os.path.join(PLACE, name)).told(), name=name) if name else None})
