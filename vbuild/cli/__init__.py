"""The command line. Each command is the module of its name: options in, one call of a room below, lines or JSON out.

Only this room prints. Start with `main`, the list of commands; `group` imports a command when it is used, `options` has
shared options, and all output goes to `terminal`.
"""
