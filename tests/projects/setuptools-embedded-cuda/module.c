/* The Python module: start() gives the first bytes of the fatbin, as cuModuleLoadData is given all of it. */
#include <Python.h>

__asm__(
    ".section .rodata\n"
    ".balign 64\n"
    ".globl kernels\n"
    ".hidden kernels\n"
    "kernels: .incbin \"kernel.fatbin\"\n"
    ".text\n");
extern const char kernels[];

static PyObject *start(PyObject *self, PyObject *ignored) { return PyBytes_FromStringAndSize(kernels, 4); }

static PyMethodDef methods[] = {{"start", start, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "embedded", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_embedded(void) { return PyModule_Create(&module); }
