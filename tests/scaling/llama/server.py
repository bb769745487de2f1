"""llama.cpp's own HTTP server, from the package xllamacpp, as a program: `server.py MODEL PORT`."""

import sys
import threading

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.port = int(sys.argv[2])
params.n_ctx, params.n_parallel = 8192, 8
params.cpuparams.n_threads = 1
params.warmup = False
server = xllamacpp.Server(params)
threading.Event().wait()
