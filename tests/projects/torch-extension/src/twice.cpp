#include <torch/extension.h>

torch::Tensor twice_cuda(torch::Tensor x);

torch::Tensor twice(torch::Tensor x) { return x.is_cuda() ? twice_cuda(x) : x * 2; }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice); }
