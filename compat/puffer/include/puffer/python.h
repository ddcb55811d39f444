/* The few Python objects that a binding of contract 3.0 names: numbers, strings, dicts, lists and handles,
 * enough to hand it its options and what its environments share. There is no interpreter behind them; nothing
 * is counted, and what the environment makes of them lives as long as the process. */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PUFFER_PYTHON_H
#define SHOAL_PUFFER_PYTHON_H

#include <puffer/prelude.h>

typedef ptrdiff_t Py_ssize_t;

typedef struct PyTypeObject {
    const char *name;
} PyTypeObject;

typedef struct PyObject {
    long ob_refcnt;
    PyTypeObject *ob_type;
    double number;
    void *pointer;
    char *text;
    Py_ssize_t count;
    struct PyObject **items; /* of a dict, list or tuple */
    char **keys;             /* of a dict; copies, so the caller's may lie on its stack */
} PyObject;

typedef PyObject PyArrayObject;
typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);
typedef struct PyMethodDef {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;

enum { METH_VARARGS = 1, METH_KEYWORDS = 2, METH_NOARGS = 4, METH_O = 8 };

static PyTypeObject PyLong_Type = {"int"}, PyFloat_Type = {"float"}, PyUnicode_Type = {"str"},
                    PyDict_Type = {"dict"}, PyList_Type = {"list"}, PyTuple_Type = {"tuple"},
                    PyArray_Type = {"numpy.ndarray"}, puffer_none_type = {"None"},
                    puffer_error_type = {"exception"};
static PyObject puffer_none = {1, &puffer_none_type, 0, NULL, NULL, 0, NULL, NULL};
static PyObject puffer_error = {1, &puffer_error_type, 0, NULL, NULL, 0, NULL, NULL};
static char puffer_python_error[512];

#define Py_None (&puffer_none)
#define Py_True PyLong_FromLong(1)
#define Py_False PyLong_FromLong(0)
#define Py_INCREF(object) ((void)(object))
#define Py_DECREF(object) ((void)(object))
#define Py_XINCREF(object) ((void)(object))
#define Py_XDECREF(object) ((void)(object))
#define Py_RETURN_NONE return Py_None
#define PyExc_TypeError (&puffer_error)
#define PyExc_ValueError (&puffer_error)
#define PyExc_KeyError (&puffer_error)
#define PyExc_RuntimeError (&puffer_error)
#define PyExc_MemoryError (&puffer_error)
#define PyExc_IndexError (&puffer_error)
#define PyExc_FileNotFoundError (&puffer_error)
#define PyObject_TypeCheck(object, type) ((object) != NULL && ((PyObject *)(object))->ob_type == (type))
#define PyLong_Check(object) PyObject_TypeCheck(object, &PyLong_Type)
#define PyFloat_Check(object) PyObject_TypeCheck(object, &PyFloat_Type)
#define PyUnicode_Check(object) PyObject_TypeCheck(object, &PyUnicode_Type)
#define PyDict_Check(object) PyObject_TypeCheck(object, &PyDict_Type)
#define PyList_Check(object) PyObject_TypeCheck(object, &PyList_Type)
#define PyTuple_Check(object) PyObject_TypeCheck(object, &PyTuple_Type)

static PUFFER_UNUSED PyObject *puffer_object(PyTypeObject *type, Py_ssize_t count) {
    PyObject *object = (PyObject *)calloc(1, sizeof *object);
    PyObject **items = (PyObject **)calloc((size_t)count + 1, sizeof *items);
    char **keys = (char **)calloc((size_t)count + 1, sizeof *keys);
    if (object == NULL || items == NULL || keys == NULL)
        puffer_stop("out of memory");
    *object = (PyObject){1, type, 0, NULL, NULL, count, items, keys};
    return object;
}

static PUFFER_UNUSED void puffer_object_free(PyObject *object) {
    if (object == NULL || object == Py_None)
        return;
    for (Py_ssize_t i = 0; i < object->count; i++) {
        puffer_object_free(object->items[i]);
        free(object->keys[i]);
    }
    free(object->items);
    free(object->keys);
    free(object->text);
    free(object);
}

static PUFFER_UNUSED void PyErr_SetString(PyObject *kind, const char *message) {
    (void)kind;
    snprintf(puffer_python_error, sizeof puffer_python_error, "%s", message);
}

static PUFFER_UNUSED PyObject *PyErr_Occurred(void) {
    return puffer_python_error[0] == '\0' ? NULL : &puffer_error;
}

static PUFFER_UNUSED void PyErr_Clear(void) { puffer_python_error[0] = '\0'; }

static PUFFER_UNUSED PyObject *PyLong_FromLong(long value) {
    PyObject *object = puffer_object(&PyLong_Type, 0);
    object->number = (double)value;
    object->pointer = (void *)(intptr_t)value;
    return object;
}

static PUFFER_UNUSED PyObject *PyLong_FromVoidPtr(void *pointer) {
    PyObject *object = puffer_object(&PyLong_Type, 0);
    object->pointer = pointer;
    return object;
}

static PUFFER_UNUSED PyObject *PyFloat_FromDouble(double value) {
    PyObject *object = puffer_object(&PyFloat_Type, 0);
    object->number = value;
    return object;
}

static PUFFER_UNUSED PyObject *PyUnicode_FromString(const char *text) {
    PyObject *object = puffer_object(&PyUnicode_Type, 0);
    object->text = strdup(text);
    return object;
}

static PUFFER_UNUSED void *PyLong_AsVoidPtr(const PyObject *object) {
    return object == NULL ? NULL : object->pointer;
}
static PUFFER_UNUSED long PyLong_AsLong(const PyObject *object) {
    return object == NULL ? -1 : (long)object->number;
}
static PUFFER_UNUSED double PyFloat_AsDouble(const PyObject *object) {
    return object == NULL ? -1 : object->number;
}
static PUFFER_UNUSED const char *PyUnicode_AsUTF8(const PyObject *object) {
    return object == NULL ? NULL : object->text;
}
static PUFFER_UNUSED int PyObject_IsTrue(const PyObject *object) {
    return object != NULL && object->number != 0;
}

static PUFFER_UNUSED PyObject *PyDict_New(void) { return puffer_object(&PyDict_Type, 0); }
static PUFFER_UNUSED PyObject *PyList_New(Py_ssize_t count) { return puffer_object(&PyList_Type, count); }
static PUFFER_UNUSED PyObject *PyTuple_New(Py_ssize_t count) { return puffer_object(&PyTuple_Type, count); }

static PUFFER_UNUSED PyObject *PyDict_GetItemString(const PyObject *dict, const char *key) {
    for (Py_ssize_t i = 0; dict != NULL && i < dict->count; i++)
        if (dict->keys[i] != NULL && strcmp(dict->keys[i], key) == 0)
            return dict->items[i];
    return NULL;
}

static PUFFER_UNUSED int PyDict_SetItemString(PyObject *dict, const char *key, PyObject *value) {
    for (Py_ssize_t i = 0; i < dict->count; i++)
        if (strcmp(dict->keys[i], key) == 0) {
            dict->items[i] = value;
            return 0;
        }
    const size_t room = (size_t)dict->count + 2;
    PyObject **items = (PyObject **)realloc(dict->items, room * sizeof *items);
    char **keys = (char **)realloc(dict->keys, room * sizeof *keys);
    if (items == NULL || keys == NULL)
        puffer_stop("out of memory");
    dict->items = items;
    dict->keys = keys;
    keys[dict->count] = strdup(key);
    items[dict->count++] = value;
    return 0;
}

static PUFFER_UNUSED PyObject *PyList_GetItem(const PyObject *list, Py_ssize_t i) {
    if (list == NULL || i < 0 || i >= list->count) {
        PyErr_SetString(PyExc_IndexError, "list index out of range");
        return NULL;
    }
    return list->items[i];
}

static PUFFER_UNUSED int PyList_SetItem(PyObject *list, Py_ssize_t i, PyObject *value) {
    if (i < 0 || i >= list->count)
        puffer_stop("item %ld of a list of %ld is set", (long)i, (long)list->count);
    list->items[i] = value;
    return 0;
}

static PUFFER_UNUSED PyObject *PyList_GetSlice(const PyObject *list, Py_ssize_t begin, Py_ssize_t end) {
    end = end > list->count ? list->count : end;
    begin = begin > end ? end : begin;
    PyObject *slice = PyList_New(end - begin);
    memcpy(slice->items, list->items + begin, (size_t)(end - begin) * sizeof *slice->items);
    return slice;
}

#define PyList_Size(list) ((list)->count)
#define PyTuple_Size(tuple) ((tuple)->count)
#define PyDict_Size(dict) ((dict)->count)
#define PyTuple_GetItem PyList_GetItem
#define PyTuple_SetItem PyList_SetItem

/* An array never comes: buffers are bound by the host. */
#define PyArray_DATA(array) ((array)->pointer)
#define PyArray_ISCONTIGUOUS(array) ((array) != NULL)
#define PyArray_NDIM(array) ((int)(array)->count)
#define PyArray_ITEMSIZE(array) ((array)->number)
#define PyArray_STRIDE(array, dimension) ((void)(array), (void)(dimension), 0)
#define import_array() ((void)0)

#endif
