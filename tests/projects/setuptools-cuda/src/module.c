/* The Python module: importing it asks nothing of a driver or a GPU. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "tally.h"

#define SELFTEST_COUNT 1000

static PyObject *raised(const char *problem) {
    PyErr_SetString(PyExc_RuntimeError, problem);
    return NULL;
}

static PyObject *devices(PyObject *self, PyObject *ignored) {
    int count = 0;
    const char *problem = tally_devices(&count);
    return problem ? raised(problem) : PyLong_FromLong(count);
}

static PyObject *archs(PyObject *self, PyObject *ignored) {
    int sums = 0, hopper = 0;
    const char *problem = tally_archs(&sums, &hopper);
    return problem ? raised(problem) : Py_BuildValue("{s:i,s:i}", "sums", sums, "hopper", hopper);
}

/* The floats of a buffer, such as an array.array; released by the caller. */
static int floats(PyObject *object, Py_buffer *view) {
    if (PyObject_GetBuffer(object, view, PyBUF_FORMAT | PyBUF_ND)) {
        return 0;
    }
    if (view->itemsize != sizeof(float) || strcmp(view->format, "f") != 0) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_TypeError, "expected a buffer of floats");
        return 0;
    }
    return 1;
}

static PyObject *total(PyObject *self, PyObject *object) {
    Py_buffer view;
    double sum = 0;
    if (!floats(object, &view)) {
        return NULL;
    }
    const char *problem = tally_total(view.buf, view.len / sizeof(float), &sum);
    PyBuffer_Release(&view);
    return problem ? raised(problem) : PyFloat_FromDouble(sum);
}

static PyObject *host_norm(PyObject *self, PyObject *object) {
    Py_buffer view;
    if (!floats(object, &view)) {
        return NULL;
    }
    double norm = tally_host_norm(view.buf, view.len / sizeof(float));
    PyBuffer_Release(&view);
    return PyFloat_FromDouble(norm);
}

static PyObject *selftest(PyObject *self, PyObject *ignored) {
    float values[SELFTEST_COUNT];
    double sum = 0, hopper = 0;
    int count = 0, has_sums = 0, has_hopper = 0;
    for (int i = 0; i < SELFTEST_COUNT; i++) {
        values[i] = (float)(i + 1);
    }
    const char *problem = tally_devices(&count);
    problem = problem ? problem : tally_archs(&has_sums, &has_hopper);
    problem = problem ? problem : tally_total(values, SELFTEST_COUNT, &sum);
    if (!problem && has_hopper) {
        problem = tally_hopper_total(values, SELFTEST_COUNT, &hopper);
    }
    if (problem) {
        return raised(problem);
    }
    if (has_hopper && hopper != sum) {
        return raised("the two kernels differ");
    }
    return PyFloat_FromDouble(sum);
}

static PyMethodDef methods[] = {
    {"devices", devices, METH_NOARGS, "How many GPUs there are; RuntimeError with CUDA's words where it cannot tell."},
    {"archs", archs, METH_NOARGS, "For each kernel the architecture of the code that runs here; 0 for none."},
    {"total", total, METH_O, "The sum of a buffer of floats; on the GPU, if built with CUDA."},
    {"host_norm", host_norm, METH_O, "A norm of a buffer of floats, on the host."},
    {"selftest", selftest, METH_NOARGS, "500500.0, by every kernel that there is code of; by the host, if built without CUDA."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tally._core", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&module); }
