// The Python module: importing it asks nothing of a driver or a GPU.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdexcept>
#include <vector>

#include "histo.hpp"

namespace {

constexpr unsigned kSelftestCount = 1000;

// The Python object that *compute* makes; what it throws, as a RuntimeError.
template <typename Compute>
PyObject *guarded(Compute compute) {
    try {
        return compute();
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
}

PyObject *devices(PyObject *, PyObject *) {
    return guarded([] { return PyLong_FromLong(histo::devices()); });
}

PyObject *archs(PyObject *, PyObject *) {
    return guarded([] {
        PyObject *found = PyDict_New();
        for (const auto &[kernel, arch] : histo::archs()) {
            PyObject *number = PyLong_FromLong(arch);
            PyDict_SetItemString(found, kernel.c_str(), number);
            Py_DECREF(number);
        }
        return found;
    });
}

template <histo::Bins (*Histogram)(const std::uint8_t *, std::size_t)>
PyObject *counted(PyObject *, PyObject *object) {
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE)) {
        return nullptr;
    }
    PyObject *list = guarded([&view] {
        histo::Bins bins = Histogram(static_cast<const std::uint8_t *>(view.buf), static_cast<std::size_t>(view.len));
        PyObject *numbers = PyList_New(static_cast<Py_ssize_t>(bins.size()));
        for (std::size_t i = 0; i < bins.size(); ++i) {
            PyList_SetItem(numbers, static_cast<Py_ssize_t>(i), PyLong_FromUnsignedLong(bins[i]));
        }
        return numbers;
    });
    PyBuffer_Release(&view);
    return list;
}

PyObject *selftest(PyObject *, PyObject *) {
    return guarded([] {
        std::vector<std::uint8_t> bytes(kSelftestCount);
        for (unsigned i = 0; i < kSelftestCount; ++i) {
            bytes[i] = static_cast<std::uint8_t>(i % 100);
        }
        histo::devices();
        histo::Bins bins = histo::histogram(bytes.data(), bytes.size());
        if (bins != histo::histogram_on_host(bytes.data(), bytes.size())) {
            throw std::runtime_error("the GPU and the host differ");
        }
        unsigned long sum = 0;
        for (unsigned value = 0; value < bins.size(); ++value) {
            sum += value * bins[value];
        }
        return PyLong_FromUnsignedLong(sum);
    });
}

PyMethodDef methods[] = {
    {"devices", devices, METH_NOARGS, "How many GPUs there are; RuntimeError with CUDA's words where it cannot tell."},
    {"archs", archs, METH_NOARGS, "For each kernel the architecture of the code that runs here; 0 for none."},
    {"histogram", counted<histo::histogram>, METH_O, "How often each byte occurs, counted on the GPU."},
    {"histogram_on_host", counted<histo::histogram_on_host>, METH_O, "The same, on the host."},
    {"selftest", selftest, METH_NOARGS, "49500, by the kernel."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "histo._core", nullptr, 0,       methods,
                          nullptr,               nullptr,       nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__core() { return PyModule_Create(&definition); }
