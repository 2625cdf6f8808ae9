#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include "level.h"

static PyObject *level(PyObject *self, PyObject *nothing) {
    return PyUnicode_FromString(LEVEL);
}

static PyObject *total(PyObject *self, PyObject *number) {
    static double numbers[4096];
    double sum = 0;
    long count = PyLong_AsLong(number);
    for (long i = 0; i < count && i < 4096; i++) numbers[i] = i;
    for (long i = 0; i < count && i < 4096; i++) sum += numbers[i];
    return PyFloat_FromDouble(sum);
}

static PyMethodDef methods[] = {{"level", level, METH_NOARGS, 0}, {"total", total, METH_O, 0}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_abi3", 0, -1, methods};

PyMODINIT_FUNC PyInit__abi3(void) {
    return PyModule_Create(&definition);
}
