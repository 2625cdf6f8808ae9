#include <numeric>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <vector>

#include "level.h"

static double total(std::size_t count) {
    std::vector<double> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0.0);
    double sum = 0;
    for (double number : numbers) sum += number;
    return sum;
}

PYBIND11_MODULE(_pybind, module) {
    module.def("level", [] { return LEVEL; });
    module.def("total", &total);
    module.def("reversed", [](std::vector<double> numbers) {
        return std::vector<double>(numbers.rbegin(), numbers.rend());
    });
}
