/* Contract 3.0: a binding.c that says #define Env, includes this, and defines my_init and my_log over Python
 * objects. Spaces and the number of agents are in the Python file beside it, so they come with the settings.
 */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_PUFFER_ENV_BINDING_H
#define SHOAL_PUFFER_ENV_BINDING_H

#include <puffer/python.h>
#include <puffer/settings.h>
#include <puffer/state.h>

/* ---- What the environment sees ---- */

typedef struct VecEnv {
    Env **envs;
    int num_envs;
} VecEnv;

static int my_init(Env *env, PyObject *args, PyObject *kwargs);
static int my_log(PyObject *dict, Log *log);
#ifdef MY_SHARED
static PyObject *my_shared(PyObject *self, PyObject *args, PyObject *kwargs);
#endif
#ifdef MY_GET
static PyObject *my_get(PyObject *dict, Env *env) PUFFER_UNUSED;
#endif
#ifdef MY_PUT
static int my_put(Env *env, PyObject *args, PyObject *kwargs) PUFFER_UNUSED;
#endif
#ifdef MY_METHODS
static const PyMethodDef puffer_methods[] PUFFER_UNUSED = {MY_METHODS, {NULL, NULL, 0, NULL}};
#endif

static PUFFER_UNUSED VecEnv *unpack_vecenv(PyObject *args) {
    return (VecEnv *)PyLong_AsVoidPtr(PyTuple_GetItem(args, 0));
}

static int puffer_asked_for_seed;

static PUFFER_UNUSED double unpack(PyObject *kwargs, const char *key) {
    const PyObject *value = PyDict_GetItemString(kwargs, key);
    if (strcmp(key, "seed") == 0)
        puffer_asked_for_seed = 1;
    if (value == NULL || !(PyLong_Check(value) || PyFloat_Check(value))) {
        snprintf(puffer_python_error, sizeof puffer_python_error,
                 value == NULL ? "it wants the option %s, which is not among its arguments"
                               : "it wants a number for the option %s",
                 key);
        return 1;
    }
    return value->number;
}

static PUFFER_UNUSED int assign_to_dict(PyObject *dict, const char *key, float value) {
    return PyDict_SetItemString(dict, key, PyFloat_FromDouble(value));
}

/* ---- What a world does with it ---- */

#define PUFFER_ACTION(env) (*(env)->actions)
#define PUFFER_END(env) (*(env)->terminals)
#define PUFFER_VECTOR int
#define PUFFER_WIDENS 0 /* its dtypes are NumPy's */
#define PUFFER_RESET c_reset
#define PUFFER_STEP c_step
#define PUFFER_STEP_ALL(world) c_step((world)->envs)
#define PUFFER_SEED(env, seed) ((void)(env), (void)(seed))
#define PUFFER_OBSERVATION_BYTES                                                                             \
    _Generic(((Env *)0)->observations, void *: 0, default: sizeof *((Env *)0)->observations)

typedef PyObject puffer_options;
#define puffer_options_free puffer_object_free
static int puffer_options_count(const puffer_options *options) { return (int)options->count; }
static const char *puffer_options_name(const puffer_options *options, int i) { return options->keys[i]; }
static double puffer_options_number(const puffer_options *options, int i) {
    return options->items[i]->number;
}

static puffer_options *puffer_log(Log *log) {
    puffer_options *out = PyDict_New();
    my_log(out, log);
    assign_to_dict(out, "n", log->n);
    return out;
}

#include <puffer/world.h>

static puffer_options *puffer_arguments(const puffer_settings *s, int shared) {
    puffer_options *out = PyDict_New();
    for (int i = 0; i < s->num_words; i++) {
        const puffer_word *word = &s->words[i];
        if ((word->kind == 'h') == shared)
            PyDict_SetItemString(out, word->name,
                                 word->kind == 's' ? PyUnicode_FromString(word->text)
                                 : word->kind == 'f' || floor(word->number) != word->number
                                     ? PyFloat_FromDouble(word->number)
                                     : PyLong_FromLong((long)word->number));
    }
    return out;
}

#ifdef MY_SHARED
/* What all environments share: made once for each choice of arguments, and kept as the binding keeps it. */
static PyObject *puffer_shared(const puffer_settings *s) {
    static struct puffer_shared_once {
        char *arguments;
        PyObject *made;
        struct puffer_shared_once *next;
    } *puffer_kept;
    char arguments[4096] = "";
    for (int i = 0; i < s->num_words; i++)
        if (s->words[i].kind == 'h') {
            const size_t used = strlen(arguments);
            snprintf(arguments + used, sizeof arguments - used, "%s=%s ", s->words[i].name, s->words[i].text);
        }
    for (struct puffer_shared_once *one = puffer_kept; one != NULL; one = one->next)
        if (strcmp(one->arguments, arguments) == 0)
            return one->made;
    struct puffer_shared_once *one = (struct puffer_shared_once *)calloc(1, sizeof *one);
    if (one == NULL)
        puffer_stop("out of memory");
    one->made = my_shared(NULL, PyTuple_New(0), puffer_arguments(s, 1));
    one->arguments = strdup(arguments);
    one->next = puffer_kept;
    return (puffer_kept = one)->made;
}
#endif

static const char *puffer_make(puffer_world *world, const puffer_settings *s, int seed) {
    PyErr_Clear();
    puffer_asked_for_seed = 0;
    world->options = puffer_arguments(s, 0);
    PyDict_SetItemString(world->options, "seed", PyLong_FromLong(seed));
#ifdef MY_SHARED
    const uint64_t before = world->random.state;
    PyObject *shared = PyErr_Occurred() == NULL ? puffer_shared(s) : NULL;
    if (s->state != NULL && shared != NULL) { /* a copy: it is freed with the options */
        PyObject *handle = PyLong_FromVoidPtr(shared->pointer);
        PyDict_SetItemString(world->options, s->state, handle);
    }
    world->random.state = before; /* what is shared is not of this world */
#endif
    world->envs = (Env *)calloc(1, sizeof(Env));
    if (world->envs == NULL)
        return "out of memory";
    world->count = 1;
    puffer_bind(world, s, world->envs, 0); /* some write observations while they are made */
    if (PyErr_Occurred() == NULL)
        my_init(world->envs, NULL, world->options);
    world->wants_seed = puffer_asked_for_seed;
    return PyErr_Occurred() == NULL ? NULL : puffer_python_error;
}

static void puffer_bind(puffer_world *world, const puffer_settings *s, Env *env, int row) {
    (void)s, (void)row;
    env->observations = (void *)world->buffers.observations;
    env->actions = (void *)world->buffers.actions;
    env->rewards = (void *)world->buffers.rewards;
    env->terminals = (void *)world->buffers.ends;
}

static int puffer_agents(const puffer_settings *s, Env *env) {
    (void)env;
    return s->agents;
}

static void puffer_unmake(puffer_world *world) {
    c_close(world->envs);
    puffer_closing = NULL;
    free(world->envs);
}

static const char *puffer_spaces(puffer_settings *s) {
    const uint64_t bytes = PUFFER_OBSERVATION_BYTES;
    if (!s->has_spaces || s->observation_bytes == 0)
        return "a binding of contract 3.0 does not say its spaces; make it with "
               "shoal.make_vec(\"puffer:PATH\")";
    if (s->agents == 0)
        s->agents = 1;
    if (bytes != 0 && bytes * 8 != s->observation.dtype.bits) {
        snprintf(
            puffer_message, sizeof puffer_message,
            "its observation space has a dtype of %u bits where the C struct writes %llu; is it the dtype of "
            "the C struct?",
            s->observation.dtype.bits, (unsigned long long)bytes * 8);
        return puffer_message;
    }
    return NULL;
}

#endif
