// The Python module: importing it asks nothing of a driver or a GPU.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdexcept>

#include "collatz.hpp"

namespace {

constexpr unsigned long long kSelftestLast = 1000;

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
    return guarded([] { return PyLong_FromLong(collatz::devices()); });
}

PyObject *archs(PyObject *, PyObject *) {
    return guarded([] {
        PyObject *found = PyDict_New();
        for (const auto &[kernel, arch] : collatz::archs()) {
            PyObject *number = PyLong_FromLong(arch);
            PyDict_SetItemString(found, kernel.c_str(), number);
            Py_DECREF(number);
        }
        return found;
    });
}

template <unsigned long long (*Total)(unsigned long long)>
PyObject *totalled(PyObject *, PyObject *object) {
    unsigned long long last = PyLong_AsUnsignedLongLong(object);
    if (PyErr_Occurred()) {
        return nullptr;
    }
    return guarded([last] { return PyLong_FromUnsignedLongLong(Total(last)); });
}

PyObject *selftest(PyObject *, PyObject *) {
    return guarded([] {
        collatz::devices();
        unsigned long long sum = collatz::total(kSelftestLast);
        if (sum != collatz::total_on_host(kSelftestLast)) {
            throw std::runtime_error("the GPU and the host differ");
        }
        return PyLong_FromUnsignedLongLong(sum);
    });
}

PyMethodDef methods[] = {
    {"devices", devices, METH_NOARGS, "How many GPUs there are; RuntimeError with CUDA's words where it cannot tell."},
    {"archs", archs, METH_NOARGS, "For each kernel the architecture of the code that runs here; 0 for none."},
    {"total", totalled<collatz::total>, METH_O, "The steps of the sequences from 1 to a number, added up on the GPU."},
    {"total_on_host", totalled<collatz::total_on_host>, METH_O, "The same, on the host."},
    {"selftest", selftest, METH_NOARGS, "59542, by the kernel."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "collatz._core", nullptr, 0,       methods,
                          nullptr,               nullptr,         nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__core() { return PyModule_Create(&definition); }
