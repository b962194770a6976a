"""Prints what is wrong with the names in the modules of a package. Imports none of them."""
import ast
import builtins
import os
import symtable
import sys

folder = sys.argv[1]
package = os.path.basename(folder)
sources = {}
for file in sorted(os.listdir(folder)):
    if file.endswith(".py"):
        with open(os.path.join(folder, file), encoding="ascii") as f:
            sources[file[:-len(".py")]] = f.read()


def scopes(table):
    """The scope of a module, and all scopes in it."""
    return [table] + [inner for child in table.get_children() for inner in scopes(child)]


def bound(table):
    """The names that a scope itself binds."""
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}


for module, source in sources.items():
    compile(source, module, "exec")
    top, tree = symtable.symtable(source, module, "exec"), list(ast.walk(ast.parse(source)))
    known, used = bound(top) | set(dir(builtins)), {n.id for n in tree if isinstance(n, ast.Name)}
    for table in scopes(top):
        for s in table.get_symbols():
            name = s.get_name()
            if s.is_referenced() and (s.is_global() or table is top) and name not in known:
                print("%s.py: %s, in the scope at line %d, is neither defined nor imported" % (module, name, table.get_lineno()))
            if s.is_imported() and name not in used:
                print("%s.py: %s is imported and not used" % (module, name))
    for n in tree:
        if isinstance(n, ast.ImportFrom) and n.module.split(".")[0] == package:
            inner = n.module.partition(".")[2]
            there = bound(symtable.symtable(sources[inner], inner, "exec")) if inner in sources else ()
            for a in n.names:
                if a.name not in there:
                    print("%s.py:%d: %s has no %s" % (module, n.lineno, n.module, a.name))
