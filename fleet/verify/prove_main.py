# Runs prove.py as a program of its own, which imports what a training job would import.
try:
    emit({"verified": prove(REQUEST)})
except Failed as e:
    emit({"failed": str(e)[:2000], "advice": e.advice})
except Exception as e:
    emit({"failed": "import deepspeed fails: %s: %s" % (type(e).__name__, str(e)[:2000]), "advice": ""})
