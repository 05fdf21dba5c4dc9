#include "dict_versions.h"

namespace fxloom {

std::uint64_t dict_version(PyObject* object) {
    if (!PyDict_CheckExact(object)) return 0;
    const auto* dict = reinterpret_cast<PyDictObject*>(object);
#if PY_VERSION_HEX >= 0x030D0000
    // The values of a split dict may lie in its object, and attribute writes to that change them without a new version; 3.13.0
    // does not tell the dict's watchers (PyDict_Watch) of them either.
    if (dict->ma_values != nullptr) return 0;
#endif
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return dict->ma_version_tag;
#pragma GCC diagnostic pop
}

void give_version(PyObject* object) {
#if PY_VERSION_HEX >= 0x030D0000
    if (!PyDict_CheckExact(object) || reinterpret_cast<PyDictObject*>(object)->ma_values == nullptr) return;
    // A split dict becomes a combined one when its last item is popped (`dict_popitem_impl` in Objects/dictobject.c of 3.13);
    // put back, the item is the last again, at the position where it was. The object's attributes are in the dict from now on.
    static PyObject* const name = PyUnicode_InternFromString("popitem");
    PyObject* item = PyDict_GET_SIZE(object) == 0 ? nullptr : PyObject_CallMethodNoArgs(object, name);
    if (item == nullptr || PyDict_SetItem(object, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1)) < 0) PyErr_Clear();
    Py_XDECREF(item);
#else
    (void)object;
#endif
}

}  // namespace fxloom
