#include "guard_tree.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace fxloom {

namespace {

// Owns one reference; for reading on the way down.
class Ref {
public:
    explicit Ref(PyObject* stolen) : object_(stolen) {}
    ~Ref() { Py_XDECREF(object_); }
    Ref(const Ref&) = delete;
    Ref& operator=(const Ref&) = delete;
    PyObject* get() const { return object_; }

private:
    PyObject* object_;
};

// Equal values of equal types, all the way into tuples; NaN equals NaN, 0.0 differs from -0.0. False on error (cleared).
bool constants_equal(PyObject* a, PyObject* b) {
    if (a == b) return true;
    if (Py_TYPE(a) != Py_TYPE(b)) return false;
    if (PyTuple_CheckExact(a)) {
        const Py_ssize_t n = PyTuple_GET_SIZE(a);
        if (n != PyTuple_GET_SIZE(b)) return false;
        for (Py_ssize_t i = 0; i < n; ++i)
            if (!constants_equal(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
        return true;
    }
    if (PyFloat_CheckExact(a)) {
        const double x = PyFloat_AS_DOUBLE(a);
        const double y = PyFloat_AS_DOUBLE(b);
        if (x != x || y != y) return x != x && y != y;
        return x == y && (x != 0.0 || std::signbit(x) == std::signbit(y));
    }
    const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
    if (equal < 0) PyErr_Clear();
    return equal == 1;
}

bool keys_are(PyObject* dict, PyObject* expected) {
    if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(expected)) return false;
    Py_ssize_t at = 0;
    Py_ssize_t i = 0;
    PyObject* key = nullptr;  // borrowed
    while (PyDict_Next(dict, &at, &key, nullptr)) {
        PyObject* wanted = PyTuple_GET_ITEM(expected, i++);
        if (key != wanted && !constants_equal(key, wanted)) return false;
    }
    return true;
}

bool contains_is(PyObject* container, PyObject* expected) {
    PyObject* key = PyTuple_GET_ITEM(expected, 0);
    const bool wanted = PyTuple_GET_ITEM(expected, 1) == Py_True;
    const int found = PyDict_Check(container) ? PyDict_Contains(container, key) : PySequence_Contains(container, key);
    if (found < 0) PyErr_Clear();
    return found >= 0 && (found == 1) == wanted;
}

bool has_attribute_is(PyObject* value, PyObject* expected) {
    const bool wanted = PyTuple_GET_ITEM(expected, 1) == Py_True;
    const Ref found{PyObject_GetAttr(value, PyTuple_GET_ITEM(expected, 0))};
    if (found.get() == nullptr) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Clear();
            return false;
        }
        PyErr_Clear();
    }
    return (found.get() != nullptr) == wanted;
}

}  // namespace

int GuardTree::add_node(int parent, int access, Py_ssize_t index, py::object key, int guard) {
    const int number = static_cast<int>(nodes_.size());
    if (parent >= number) throw py::value_error("parent node " + std::to_string(parent) + " does not exist");
    nodes_.push_back(Node{static_cast<Access>(access), index, std::move(key), guard, {}, {}, {}});
    (parent < 0 ? roots_ : nodes_[static_cast<std::size_t>(parent)].children).push_back(number);
    return number;
}

void GuardTree::add_check(int node, int kind, Py_ssize_t number, py::object expected, int guard) {
    nodes_.at(static_cast<std::size_t>(node))
        .checks.push_back(Check{static_cast<CheckKind>(kind), guard, number, std::move(expected), nullptr});
}

void GuardTree::add_tensor_check(int node, const py::object& properties, int guard) {
    nodes_.at(static_cast<std::size_t>(node))
        .checks.push_back(Check{CheckKind::kTensor, guard, 0, py::none(), make_tensor_check(properties)});
}

void GuardTree::add_state_check(const py::object& state, int guard) {
    state_ = copy_global_state(state);
    state_guard_ = guard;
}

void GuardTree::add_relation(int kind, std::vector<int> slots, int guard) {
    relations_.push_back(Relation{static_cast<Relation::Kind>(kind), std::move(slots), guard});
}

void GuardTree::export_value(int node, int slot) { nodes_.at(static_cast<std::size_t>(node)).exports.push_back(slot); }

void GuardTree::set_slots(int inputs, int total) {
    inputs_ = inputs;
    slots_ = total;
}

PyObject* GuardTree::read(const Node& node, PyObject* base, const FrameRoots& roots) const {
    switch (node.access) {
        case Access::kLocal: return Py_XNewRef(roots.locals[node.index]);
        case Access::kClosure: {
            if (roots.closure == nullptr || node.index >= PyTuple_GET_SIZE(roots.closure)) return nullptr;
            return PyCell_Get(PyTuple_GET_ITEM(roots.closure, node.index));
        }
        case Access::kCell: {
            if (roots.closure == nullptr || node.index >= PyTuple_GET_SIZE(roots.closure)) return nullptr;
            return Py_NewRef(PyTuple_GET_ITEM(roots.closure, node.index));
        }
        case Access::kGlobals: return Py_NewRef(roots.globals);
        case Access::kBuiltins: return Py_NewRef(roots.builtins);
        case Access::kFunction: return Py_NewRef(roots.function);
        case Access::kConstant: return Py_NewRef(node.key.ptr());
        case Access::kAttribute: return PyObject_GetAttr(base, node.key.ptr());
        case Access::kInstanceDict: return PyObject_GenericGetDict(base, nullptr);
        case Access::kDictItem: {
            if (!PyDict_Check(base)) return nullptr;
            return Py_XNewRef(PyDict_GetItemWithError(base, node.key.ptr()));
        }
        case Access::kDictKey: {
            if (!PyDict_Check(base)) return nullptr;
            Py_ssize_t at = 0;
            PyObject* key = nullptr;  // borrowed
            for (Py_ssize_t i = 0; i <= node.index; ++i)
                if (!PyDict_Next(base, &at, &key, nullptr)) return nullptr;
            return Py_NewRef(key);
        }
        case Access::kSequenceItem: {
            if (PyTuple_Check(base))
                return node.index < PyTuple_GET_SIZE(base) ? Py_NewRef(PyTuple_GET_ITEM(base, node.index)) : nullptr;
            if (PyList_Check(base))
                return node.index < PyList_GET_SIZE(base) ? Py_NewRef(PyList_GET_ITEM(base, node.index)) : nullptr;
            return nullptr;
        }
        case Access::kType: return Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(base)));
        case Access::kCall: return PyObject_CallOneArg(node.key.ptr(), base);
        case Access::kTensorSize:
        case Access::kTensorStride:
        case Access::kTensorOffset:
            return tensor_number(base, static_cast<int>(node.access) - static_cast<int>(Access::kTensorSize), node.index);
    }
    return nullptr;
}

bool GuardTree::holds(const Check& check, PyObject* value) const {
    PyObject* expected = check.expected.ptr();
    switch (check.kind) {
        case CheckKind::kIdentity: return value == expected;
        case CheckKind::kWeakIdentity: {
#if PY_VERSION_HEX >= 0x030D0000
            PyObject* alive = nullptr;
            if (PyWeakref_GetRef(expected, &alive) < 0) PyErr_Clear();
            const Ref owned{alive};
            return alive == value;
#else
            PyObject* alive = PyWeakref_GetObject(expected);  // borrowed; None when it is gone
            return alive != Py_None && alive == value;
#endif
        }
        case CheckKind::kType: return reinterpret_cast<PyObject*>(Py_TYPE(value)) == expected;
        case CheckKind::kEquality: return constants_equal(value, expected);
        case CheckKind::kLength: {
            const Py_ssize_t n = PyObject_Size(value);
            if (n < 0) PyErr_Clear();
            return n == check.number;
        }
        case CheckKind::kDictKeys: return keys_are(value, expected);
        case CheckKind::kContains: return contains_is(value, expected);
        case CheckKind::kHasAttribute: return has_attribute_is(value, expected);
        case CheckKind::kTruth: {
            const int truth = PyObject_IsTrue(value);
            if (truth < 0) PyErr_Clear();
            return truth == check.number;
        }
        case CheckKind::kFunctionCode: return PyFunction_Check(value) && PyFunction_GET_CODE(value) == expected;
        case CheckKind::kTensor: return check.tensor->holds(value);
    }
    return false;
}

bool GuardTree::walk(int number, PyObject* value, PyObject** slots, int* failed) const {
    const Node& node = nodes_[static_cast<std::size_t>(number)];
    for (const Check& check : node.checks) {
        if (!holds(check, value)) {
            *failed = check.guard;
            return false;
        }
    }
    for (const int slot : node.exports) {
        Py_INCREF(value);
        Py_XSETREF(slots[slot], value);
    }
    static constexpr FrameRoots kNone{nullptr, nullptr, nullptr, nullptr, nullptr};
    for (const int child : node.children) {
        const Ref below{read(nodes_[static_cast<std::size_t>(child)], value, kNone)};
        if (below.get() == nullptr) {
            PyErr_Clear();  // a value that can't be read any more is a guard that fails
            *failed = nodes_[static_cast<std::size_t>(child)].first_guard;
            return false;
        }
        if (!walk(child, below.get(), slots, failed)) return false;
    }
    return true;
}

int GuardTree::evaluate(const FrameRoots& roots, PyObject** inputs) const {
    if (state_ != nullptr && !state_->is_current()) return state_guard_;
    std::array<PyObject*, 64> small{};
    std::vector<PyObject*> large;
    PyObject** slots = small.data();
    if (static_cast<std::size_t>(slots_) > small.size()) {
        large.assign(static_cast<std::size_t>(slots_), nullptr);
        slots = large.data();
    }
    int failed = kAllHold;
    for (const int root : roots_) {
        const Node& node = nodes_[static_cast<std::size_t>(root)];
        const Ref value{read(node, nullptr, roots)};
        if (value.get() == nullptr) {
            PyErr_Clear();
            failed = node.first_guard;
            break;
        }
        if (!walk(root, value.get(), slots, &failed)) break;
    }
    if (failed == kAllHold) {
        for (const Relation& relation : relations_) {
            std::vector<const void*> seen;
            seen.reserve(relation.slots.size());
            for (const int slot : relation.slots)
                seen.push_back(relation.kind == Relation::Kind::kDistinctStorage || relation.kind == Relation::Kind::kSameStorage
                                   ? tensor_storage(slots[slot])
                                   : slots[slot]);
            bool ok = true;
            if (relation.kind == Relation::Kind::kSame || relation.kind == Relation::Kind::kSameStorage) {
                ok = std::all_of(seen.begin(), seen.end(), [&](const void* p) { return p == seen.front(); });
            } else {
                std::sort(seen.begin(), seen.end());
                ok = std::adjacent_find(seen.begin(), seen.end(), [](const void* a, const void* b) { return a == b && a != nullptr; }) == seen.end();
            }
            if (!ok) {
                failed = relation.guard;
                break;
            }
        }
    }
    if (failed == kAllHold) {
        PyObject* tuple = PyTuple_New(inputs_);
        if (tuple == nullptr) failed = -2;
        for (int i = 0; tuple != nullptr && i < inputs_; ++i) {
            PyTuple_SET_ITEM(tuple, i, slots[i]);  // the slot's reference moves into the tuple
            slots[i] = nullptr;
        }
        *inputs = tuple;
    }
    for (int i = 0; i < slots_; ++i) Py_CLEAR(slots[i]);
    return failed;
}

int GuardTree::traverse(visitproc visit, void* arg) const {
    for (const Node& node : nodes_) {
        Py_VISIT(node.key.ptr());
        for (const Check& check : node.checks) Py_VISIT(check.expected.ptr());
    }
    return 0;
}

void register_guard_tree(py::module_& m) {
    py::class_<GuardTree, std::shared_ptr<GuardTree>>(m, "GuardTree", "Guards compiled to a tree of accessors; see guards.py.")
        .def(py::init<>())
        .def("add_node", &GuardTree::add_node, py::arg("parent"), py::arg("access"), py::arg("index"), py::arg("key"), py::arg("guard"))
        .def("add_check", &GuardTree::add_check, py::arg("node"), py::arg("kind"), py::arg("number"), py::arg("expected"), py::arg("guard"))
        .def("add_tensor_check", &GuardTree::add_tensor_check, py::arg("node"), py::arg("properties"), py::arg("guard"))
        .def("add_state_check", &GuardTree::add_state_check, py::arg("state"), py::arg("guard"))
        .def("add_relation", &GuardTree::add_relation, py::arg("kind"), py::arg("slots"), py::arg("guard"))
        .def("export_value", &GuardTree::export_value, py::arg("node"), py::arg("slot"))
        .def("set_slots", &GuardTree::set_slots, py::arg("inputs"), py::arg("total"))
        .def(
            "check",
            [](const GuardTree& self, const py::list& locals, const py::tuple& closure, const py::dict& globals, const py::dict& builtins,
               const py::object& function) {
                std::vector<PyObject*> values;
                for (const py::handle value : locals) values.push_back(value.ptr());
                PyObject* inputs = nullptr;
                const int failed = self.evaluate({values.data(), closure.ptr(), globals.ptr(), builtins.ptr(), function.ptr()}, &inputs);
                Py_XDECREF(inputs);
                if (failed < kAllHold) throw py::error_already_set();
                return failed;
            },
            py::arg("locals"), py::arg("closure"), py::arg("globals"), py::arg("builtins"), py::arg("function"),
            "Index of the first guard that fails on a frame with these variables (locals by slot), -1 when all hold.");
}

}  // namespace fxloom
