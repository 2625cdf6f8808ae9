"""The command line. Each command is options in, one call of a room below, lines or JSON out.

Only this room prints. Start with `main`, the list of commands; `group` says in which module each is, and imports it
when it is used; `options` has shared options, and all output goes to `terminal`.
"""
