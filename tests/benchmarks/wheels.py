"""The published wheels that several figures read."""

from tests.benchmarks.figure import Wheel

XGBOOST = Wheel("xgboost==3.2.0")
VLLM = Wheel("vllm==0.33.0")
TORCH = Wheel("torch==2.15.0")
CUBLAS = Wheel("nvidia-cublas-cu12==12.9.1.4")
