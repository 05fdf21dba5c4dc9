/* Kernel(address, name, count, owner)(*ints): calls a generated kernel with little more than the cost of the call.
 * Kernel(address, name, count, owner, True)([ints]): calls a grouped one, which takes the number of sets of `count` ints, then these.
 *
 * A kernel is `int64_t f(const int64_t *arguments)`; it returns 1 or 2 when an index was out of range, for which
 * IndexError or RuntimeError is raised (3: IndexError). `owner` (the loaded library) is kept alive. The GIL stays held: kernels are
 * short, and their threads are OpenMP's. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_ARGUMENTS 256

typedef int64_t (*kernel_function)(const int64_t *);

typedef struct {
    PyObject_HEAD
    kernel_function function;
    Py_ssize_t count;
    int grouped;
    PyObject *name;  /* owned */
    PyObject *owner; /* owned */
    vectorcallfunc vectorcall;
} Kernel;

/* The arguments of a grouped call as C integers, the number of sets before them; NULL with an exception set. Free with PyMem_Free. */
static int64_t *grouped_arguments(Kernel *kernel, PyObject *list) {
    if (!PyList_Check(list) || kernel->count == 0 || PyList_GET_SIZE(list) % kernel->count != 0) {
        PyErr_Format(PyExc_TypeError, "%U takes a list of sets of %zd arguments", kernel->name, kernel->count);
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(list);
    int64_t *arguments = PyMem_New(int64_t, count + 1);
    if (arguments == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    arguments[0] = count / kernel->count;
    for (Py_ssize_t i = 0; i < count; ++i) {
        arguments[i + 1] = PyLong_AsLongLong(PyList_GET_ITEM(list, i));
        if (arguments[i + 1] == -1 && PyErr_Occurred()) {
            PyMem_Free(arguments);
            return NULL;
        }
    }
    return arguments;
}

static PyObject *kernel_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Kernel *kernel = (Kernel *)self;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    int64_t arguments[MAX_ARGUMENTS];
    if (kernel->grouped && count == 1 && kwnames == NULL) {
        int64_t *sets = grouped_arguments(kernel, args[0]);
        if (sets == NULL) {
            return NULL;
        }
        kernel->function(sets); /* elementwise: it checks no index */
        PyMem_Free(sets);
        Py_RETURN_NONE;
    }
    if (kernel->grouped || count != kernel->count || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) != 0)) {
        PyErr_Format(PyExc_TypeError, "%U takes %zd positional arguments, got %zd", kernel->name, kernel->count, count);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
        arguments[i] = PyLong_AsLongLong(args[i]);
        if (arguments[i] == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    int64_t bad = kernel->function(arguments);
    if (bad != 0) {
        PyErr_Format(bad & 1 ? PyExc_IndexError : PyExc_RuntimeError, "index out of range in kernel %U", kernel->name);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *address, *name, *owner;
    Py_ssize_t count;
    int grouped = 0;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OUnO|p:Kernel", &address, &name, &count, &owner, &grouped)) {
        return NULL;
    }
    if (count < 0 || count > MAX_ARGUMENTS) {
        PyErr_Format(PyExc_ValueError, "a kernel takes at most %d arguments, got %zd", MAX_ARGUMENTS, count);
        return NULL;
    }
    void *pointer = PyLong_AsVoidPtr(address);
    if (pointer == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "kernel at address 0");
        }
        return NULL;
    }
    Kernel *kernel = (Kernel *)type->tp_alloc(type, 0);
    if (kernel == NULL) {
        return NULL;
    }
    kernel->function = (kernel_function)pointer;
    kernel->count = count;
    kernel->grouped = grouped;
    kernel->name = Py_NewRef(name);
    kernel->owner = Py_NewRef(owner);
    kernel->vectorcall = kernel_call;
    return (PyObject *)kernel;
}

static void kernel_dealloc(PyObject *self) {
    Kernel *kernel = (Kernel *)self;
    Py_XDECREF(kernel->name);
    Py_XDECREF(kernel->owner);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *kernel_repr(PyObject *self) {
    return PyUnicode_FromFormat("<kernel %U>", ((Kernel *)self)->name);
}

static PyTypeObject KernelType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "fxloom_codegen_cpp._launch.Kernel",
    .tp_basicsize = sizeof(Kernel),
    .tp_dealloc = kernel_dealloc,
    .tp_repr = kernel_repr,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Kernel, vectorcall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "A generated kernel, called with integers.",
    .tp_new = kernel_new,
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_launch", .m_doc = "Launching generated kernels.", .m_size = -1};

PyMODINIT_FUNC PyInit__launch(void) {
    if (PyType_Ready(&KernelType) < 0) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&module_definition);
    if (module == NULL) {
        return NULL;
    }
    if (PyModule_AddObjectRef(module, "Kernel", (PyObject *)&KernelType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
