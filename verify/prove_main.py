# Runs prove.py as a program of its own: what it imports, a training job would.
try:
    emit({"verified": prove(REQUEST)})
except Failed as e:
    emit({"failed": str(e)[:2000], "advice": e.advice})
except Exception as e:
    emit({"failed": "import deepspeed fails: %s: %s" % (type(e).__name__, str(e)[:2000]), "advice": ""})
