"""The child process of `local.py`: serves one GGUF file until its standard input closes.

Run as a file, with the standard library and xllamacpp only, so that it starts fast and needs nothing of us on
its path. Reads one line of JSON (see `local._Order`), answers one, and never outlives its parent.
"""

import json
import os
import sys
from typing import Any


def parameters(order: dict[str, Any]) -> Any:
    """llama.cpp's settings for `order`."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = order["path"]
    params.model_alias = {order["alias"]}
    params.api_keys = [order["api_key"]]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.cors_origins = ""
    params.offline = True
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = 1
    params.n_threads_http = 8
    params.cpuparams.n_threads = order["threads"]
    params.cpuparams_batch.n_threads = order["threads"]
    params.n_ctx = order["context"]
    params.n_parallel = order["parallel"]
    params.kv_unified = True
    params.n_predict = order["max_output"]
    # A request is given up only between batches; at about 250 tokens/s that is two seconds, not eight.
    params.n_batch = 512
    # Its default keeps up to 8 GB of old prompts, and fitting to the memory at hand ignores our context size.
    params.cache_ram_mib = 0
    params.fit_params = False
    params.warmup = False
    # Sampling for requests that set none: so small a model drifts at llama.cpp's 0.8, and repeats itself when cold.
    params.sampling.temp = 0.2
    params.sampling.top_p = 0.9
    params.sampling.penalty_repeat = 1.1
    return params


def main() -> None:
    order = json.loads(sys.stdin.readline())
    answer = os.dup(1)
    # The native library prints as it pleases; only errors are wanted, and they go to the parent's file.
    os.dup2(2, 1)
    import xllamacpp

    try:
        server = xllamacpp.Server(parameters(order))
    except RuntimeError as fault:
        # The reason stands above it, in the native library's own words; a traceback would only hide it.
        sys.exit(str(fault))
    os.write(answer, json.dumps({"url": server.listening_address}).encode() + b"\n")
    os.close(answer)
    # The parent has read its file by now; what comes later would fill an unlinked one.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    # Closes when the parent stops us or dies, however it dies.
    sys.stdin.read()
    # Tearing the server down waits for running answers and can crash; the system cleans up better.
    os._exit(0)


if __name__ == "__main__":
    main()
