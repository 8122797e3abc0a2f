# SPDX-License-Identifier: Apache-2.0
"""The command line: a table of commands, each in a module of its own, imported when it is used.

A command's module has NAME and HELP (strings), ``configure(parser)``, which adds its arguments, and
``run(args)``, which returns the exit status. Exit statuses of all commands:

    0    done; for a question: yes
    1    could not be done, or: no
    2    wrong usage or wrong configuration; nothing was changed
    130  interrupted with Ctrl-C
"""
