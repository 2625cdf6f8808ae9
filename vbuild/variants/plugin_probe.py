"""Ask one provider plugin what this machine supports, and write its answer as JSON to a pipe.

    probe.py PIPE module.sub:object -> {"namespace": ..., "features": [{"name", "values", "multi_value"}, ...]}

Only ``get_supported_configs`` is called, of a module or a class (providers draft, plugin interface); a namespace is
what plugins of older drafts state. A program for ``python -I`` in the plugin's environment, as the standard library
alone is there. The answer is what the plugin says: who reads it checks it.
"""

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    pipe, endpoint = int(sys.argv[1]), sys.argv[2]
    os.set_inheritable(pipe, False)  # noqa: FBT003 - what the plugin starts has no part in the answer
    module, _, path = endpoint.partition(":")
    plugin: Any = importlib.import_module(module.strip())
    for name in filter(None, path.strip().split(".")):
        plugin = getattr(plugin, name)
    namespace = getattr(plugin, "namespace", None)
    features = [
        {"name": config.name, "values": config.values, "multi_value": getattr(config, "multi_value", False)}
        for config in plugin.get_supported_configs()
    ]
    answer = {"namespace": namespace if isinstance(namespace, str) else None, "features": features}
    with os.fdopen(pipe, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)


if __name__ == "__main__":
    main()
