#include <Python.h>

#include "walk.h"

#define Env Walk
#include "../env_binding.h"

static int my_init(Env *env, PyObject *args, PyObject *kwargs) {
    (void)args;
    env->size = unpack(kwargs, "size");
    env->bonus = unpack(kwargs, "bonus");
    env->trap = unpack(kwargs, "trap");
    env->memory = calloc(1, 16);
    PyObject *title = PyDict_GetItemString(kwargs, "title");
    env->title = title == NULL ? "" : PyUnicode_AsUTF8(title); /* kept by pointer */
    if (PyDict_GetItemString(kwargs, "seed") != NULL)
        env->seed = unpack(kwargs, "seed");
    if (env->trap == 1)
        exit(7);
    assert(env->trap != 2);
    if (env->trap == 3)
        fread(env->memory, 1, 16, fopen("resources/walk/not_there.bin", "rb"));
    if (env->trap == 4)
        unpack(kwargs, "nowhere");
    if (env->trap == 8) {
        PyErr_SetString(PyExc_ValueError, "bonus must not be odd");
        return 1;
    }
    if (env->trap == 9) {
        FILE *file = fopen("resources/walk/title.txt", "r");
        env->size = file == NULL ? 0 : fgetc(file) - '0';
    }
    if (env->trap == 10)
        printf("hello from C\n");
    return 0;
}

static int my_log(PyObject *dict, Log *log) {
    char name[32];
    snprintf(name, sizeof name, "%s", "score"); /* names on the stack */
    assign_to_dict(dict, name, log->score);
    snprintf(name, sizeof name, "%s", "episode_length");
    assign_to_dict(dict, name, log->episode_length);
    assign_to_dict(dict, "n", log->n);
    return 0;
}
