#include <Python.h>
#include "../level.h"

/* State of its own for every interpreter, and a type that is made when the module is executed. */
typedef struct {
    double numbers[4096];
} State;

static PyObject *level(PyObject *self, PyObject *nothing) {
    return PyUnicode_FromString(LEVEL);
}

static PyObject *total(PyObject *self, PyObject *number) {
    State *state = PyModule_GetState(self);
    double sum = 0;
    long count = PyLong_AsLong(number);
    for (long i = 0; i < count && i < 4096; i++) state->numbers[i] = i;
    for (long i = 0; i < count && i < 4096; i++) sum += state->numbers[i];
    return PyFloat_FromDouble(sum);
}

static int execute(PyObject *module) {
    return PyModule_AddStringConstant(module, "compiled_for", LEVEL);
}

static PyMethodDef methods[] = {{"level", level, METH_NOARGS, 0}, {"total", total, METH_O, 0}, {0}};
static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_phases", 0, sizeof(State), methods, slots};

PyMODINIT_FUNC PyInit__phases(void) {
    return PyModuleDef_Init(&definition);
}
