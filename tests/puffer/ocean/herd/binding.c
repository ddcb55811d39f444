#include "herd.h"

#define Env Herd
#define MY_SHARED
#include "../env_binding.h"

static PyObject *my_shared(PyObject *self, PyObject *args, PyObject *kwargs) {
    const int count = unpack(kwargs, "entries");
    float *table = calloc(count, sizeof *table);
    for (int i = 0; i < count; i++)
        table[i] = 100 + i;
    PyObject *state = PyDict_New();
    PyDict_SetItemString(state, "table", PyLong_FromVoidPtr(table));
    return PyLong_FromVoidPtr(state);
}

static int my_init(Env *env, PyObject *args, PyObject *kwargs) {
    env->num_agents = unpack(kwargs, "num_agents");
    PyObject *handle = PyDict_GetItemString(kwargs, "state");
    if (!PyObject_TypeCheck(handle, &PyLong_Type)) {
        PyErr_SetString(PyExc_TypeError, "state must be a handle");
        return 1;
    }
    PyObject *state = (PyObject *)PyLong_AsVoidPtr(handle);
    env->table = PyLong_AsVoidPtr(PyDict_GetItemString(state, "table"));
    return 0;
}

static int my_log(PyObject *dict, Log *log) {
    assign_to_dict(dict, "score", log->score);
    return 0;
}
