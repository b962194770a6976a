"""Repeats one question of the probe: which processes use this environment?"""
from dsbuild_node.controller import emit
from dsbuild_node.in_use import users


def main():
    emit(users())
