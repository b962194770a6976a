"""The probe, with the comparison of DeepSpeed's files. Only this one needs what reads a RECORD."""
from dsbuild_node.controller import REQUEST
from dsbuild_node.probe import send_facts
from dsbuild_node.installation import compared, drift, taken


def main():
    commands, more = REQUEST["commands"], [drift] if REQUEST["undo"] else []
    send_facts(lambda: compared(REQUEST["files"]), lambda: taken(commands) if commands else {}, *more)
