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

// PyDict_Next knows nothing of the order that OrderedDict.move_to_end makes.
bool ordered_keys_are(PyObject* dict, PyObject* expected) {
    const Ref iterator{PyODict_Type.tp_iter(dict)};
    if (iterator.get() == nullptr) {
        PyErr_Clear();
        return false;
    }
    for (Py_ssize_t i = 0;; ++i) {
        const Ref key{PyIter_Next(iterator.get())};
        if (key.get() == nullptr) {
            if (PyErr_Occurred() != nullptr) PyErr_Clear();
            return i == PyTuple_GET_SIZE(expected);
        }
        if (i >= PyTuple_GET_SIZE(expected) || !constants_equal(key.get(), PyTuple_GET_ITEM(expected, i))) return false;
    }
}

bool keys_are(PyObject* dict, PyObject* expected) {
    if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(expected)) return false;
    if (PyODict_Check(dict)) return ordered_keys_are(dict, expected);
    Py_ssize_t at = 0;
    Py_ssize_t i = 0;
    PyObject* key = nullptr;  // borrowed
    while (PyDict_Next(dict, &at, &key, nullptr)) {
        PyObject* wanted = PyTuple_GET_ITEM(expected, i++);
        if (key != wanted && !constants_equal(key, wanted)) return false;
    }
    return true;
}

PyTypeObject* deque_type() {
    static PyObject* const type = py::object(py::module_::import("collections").attr("deque")).release().ptr();
    return reinterpret_cast<PyTypeObject*>(type);
}

// An exact constant of Python's: what it equals and whether it is true can't change, and asking runs no Python code.
bool is_plain(PyObject* value) {
    return value == Py_None || PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyBool_Check(value) ||
           PyBytes_CheckExact(value) || PyComplex_CheckExact(value);
}

bool all_distinct(const std::vector<const void*>& sorted) {
    return std::adjacent_find(sorted.begin(), sorted.end(), [](const void* a, const void* b) { return a == b && a != nullptr; }) == sorted.end();
}

bool is_dict_access(Access access) { return access == Access::kDictItem || access == Access::kDictKey; }

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

bool check_holds(const Check& check, PyObject* value) {
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

int GuardTree::add_node(int parent, int access, Py_ssize_t index, py::object key, int guard) {
    const int number = static_cast<int>(nodes_.size());
    if (parent >= number) throw py::value_error("parent node " + std::to_string(parent) + " does not exist");
    const bool gradient = static_cast<Access>(access) == Access::kAttribute && PyUnicode_CompareWithASCIIString(key.ptr(), "grad") == 0;
    nodes_.push_back(Node{static_cast<Access>(access), false, gradient, index, std::move(key), guard, 0, {}, {}});
    children_.emplace_back();
    (parent < 0 ? roots_ : children_[static_cast<std::size_t>(parent)]).push_back(number);
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

void GuardTree::add_size_program(std::vector<int> slots, std::vector<std::int64_t> code, int guard) {
    size_programs_.emplace_back(std::move(slots), std::move(code), guard);
}

void GuardTree::export_value(int node, int slot) { nodes_.at(static_cast<std::size_t>(node)).exports.push_back(slot); }

void GuardTree::freeze(int inputs, int total) {
    inputs_ = inputs;
    slots_ = total;
    std::vector<Node> ordered;
    ordered.reserve(nodes_.size());
    struct Level {
        const std::vector<int>* siblings;
        std::size_t next;
        int parent;
    };
    // Without recursion: chains are as deep as models are.
    std::vector<Level> levels{{&roots_, 0, -1}};
    std::vector<int> roots;
    while (!levels.empty()) {
        Level& level = levels.back();
        if (level.next == level.siblings->size()) {
            if (level.parent >= 0) ordered[static_cast<std::size_t>(level.parent)].end = static_cast<int>(ordered.size());
            levels.pop_back();
            continue;
        }
        const auto number = static_cast<std::size_t>((*level.siblings)[level.next++]);
        const int placed = static_cast<int>(ordered.size());
        if (level.parent < 0) roots.push_back(placed);
        ordered.push_back(std::move(nodes_[number]));
        levels.push_back({&children_[number], 0, placed});
    }
    for (Node& node : ordered) {
        const int own = static_cast<int>(&node - ordered.data());
        node.settled = is_dict_access(node.access) && node.exports.empty() && node.end == own + 1 &&
                       std::all_of(node.checks.begin(), node.checks.end(), [](const Check& check) {
                           return check.kind == CheckKind::kIdentity || check.kind == CheckKind::kWeakIdentity ||
                                  (check.kind == CheckKind::kEquality && !PyAnySet_Check(check.expected.ptr()));
                       });
    }
    nodes_ = std::move(ordered);
    roots_ = std::move(roots);
    children_.clear();
    memos_.assign(nodes_.size(), Memo{});
    unstable_.assign(nodes_.size(), false);
    filled_.assign(static_cast<std::size_t>(total), false);
    std::fill_n(filled_.begin(), inputs, true);
    for (const SizeProgram& program : size_programs_)
        for (const int slot : program.slots()) filled_[static_cast<std::size_t>(slot)] = true;
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
        case Access::kAttribute: {
            PyObject* gradient = node.gradient ? tensor_gradient(base) : nullptr;
            return gradient != nullptr ? gradient : PyObject_GetAttr(base, node.key.ptr());
        }
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
            PyTypeObject* deque = deque_type();
            return PyObject_TypeCheck(base, deque) ? deque->tp_as_sequence->sq_item(base, node.index) : nullptr;
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

bool GuardTree::walk(int number, PyObject* value, PyObject** slots, int* failed) {
    const Node& node = nodes_[static_cast<std::size_t>(number)];
    if (dict_version(value) != 0) return walk_dict(number, value, slots, failed);
    for (const Check& check : node.checks) {
        if (!check_holds(check, value)) {
            *failed = check.guard;
            return false;
        }
    }
    for (const int slot : node.exports) Py_XSETREF(slots[slot], Py_NewRef(value));
    for (int child = number + 1; child < node.end; child = nodes_[static_cast<std::size_t>(child)].end)
        if (!descend(child, read(nodes_[static_cast<std::size_t>(child)], value, {}), slots, failed)) return false;
    return true;
}

// Guards below may run Python code, and other threads with it, that changes the dict or the memo: so the version is
// compared again before each use of what was remembered.
bool GuardTree::walk_dict(int number, PyObject* dict, PyObject** slots, int* failed) {
    const Node& node = nodes_[static_cast<std::size_t>(number)];
    Memo& memo = memos_[static_cast<std::size_t>(number)];
    const std::uint64_t version = dict_version(dict);
    const bool known = memo.dict == dict && memo.version == version;
    if (!known) {
        if (memo.dict == dict) unstable_[static_cast<std::size_t>(number)] = true;  // written between two calls
        memo.dict = nullptr;
        for (const Check& check : node.checks) {
            if (!check_holds(check, dict)) {
                *failed = check.guard;
                return false;
            }
        }
    }
    for (const int slot : node.exports) Py_XSETREF(slots[slot], Py_NewRef(dict));
    for (int child = number + 1; child < node.end; child = nodes_[static_cast<std::size_t>(child)].end) {
        const Node& below = nodes_[static_cast<std::size_t>(child)];
        if (known && below.settled) continue;
        PyObject*& value = memos_[static_cast<std::size_t>(child)].value;
        if (known && is_dict_access(below.access) && memo.dict == dict && dict_version(dict) == version) {
            if (!descend(child, Py_NewRef(value), slots, failed)) return false;
            continue;
        }
        PyObject* fresh = read(below, dict, {});
        value = fresh;
        if (!descend(child, fresh, slots, failed)) return false;
    }
    if (!known && dict_version(dict) == version) {
        memo.dict = dict;
        memo.version = version;
    }
    return true;
}

bool GuardTree::descend(int child, PyObject* value, PyObject** slots, int* failed) {
    const Ref owned{value};
    if (value == nullptr) {
        PyErr_Clear();  // a value that can't be read any more is a guard that fails
        *failed = nodes_[static_cast<std::size_t>(child)].first_guard;
        return false;
    }
    return walk(child, value, slots, failed);
}

bool GuardTree::check_relation(Relation& relation, PyObject* const* slots) {
    const auto pointer = [&](std::size_t i) { return relation.pointer(slots[relation.slots[i]]); };
    bool same = relation.held.size() == relation.slots.size();
    for (std::size_t i = 0; same && i < relation.held.size(); ++i) same = relation.held[i] == pointer(i);
    if (same) return true;
    std::vector<const void*> now;
    for (std::size_t i = 0; i < relation.slots.size(); ++i) now.push_back(pointer(i));
    std::vector<const void*> sorted = now;
    std::sort(sorted.begin(), sorted.end());
    const bool ok = relation.of_one() ? sorted.front() == sorted.back() : all_distinct(sorted);
    if (ok) relation.held = std::move(now);
    return ok;
}

bool GuardTree::check_relation(const Relation& relation, const GuardTape::Relation& part, PyObject* const* slots) {
    std::vector<const void*> fresh;
    for (const int slot : part.slots) fresh.push_back(relation.pointer(slots[slot]));
    std::sort(fresh.begin(), fresh.end());
    if (relation.of_one()) {
        return std::all_of(fresh.begin(), fresh.end(), [&](const void* pointer) { return pointer == part.known.front(); });
    }
    const auto is_known = [&](const void* pointer) {
        return pointer != nullptr && std::binary_search(part.known.begin(), part.known.end(), pointer);
    };
    return all_distinct(fresh) && std::none_of(fresh.begin(), fresh.end(), is_known);
}

int GuardTree::evaluate(const FrameRoots& roots, PyObject** inputs) {
    if (state_ != nullptr && !state_->is_current()) return state_guard_;
    std::array<PyObject*, 64> small{};
    std::vector<PyObject*> large;
    PyObject** slots = small.data();
    if (static_cast<std::size_t>(slots_) > small.size()) {
        large.assign(static_cast<std::size_t>(slots_), nullptr);
        slots = large.data();
    }
    int failed = kAllHold;
    const std::shared_ptr<const GuardTape> tape = tape_;  // a guard may run Python code that gets here again
    bool short_way = false;  // the tape held
    const auto walk_root = [&](std::size_t at) {
        const int root = roots_[at];
        if (!descend(root, read(nodes_[static_cast<std::size_t>(root)], nullptr, roots), slots, &failed)) first_root_ = at;
    };
    const auto is_taped = [&](std::size_t at) { return tape != nullptr && tape->taped[at]; };
    for (std::size_t i = 0; i < roots_.size() && failed == kAllHold; ++i) {
        const std::size_t at = i == 0 ? first_root_ : (i <= first_root_ ? i - 1 : i);
        if (!is_taped(at)) walk_root(at);
    }
    if (tape != nullptr && failed == kAllHold) {
        if (is_as_recorded(*tape, roots)) {
            short_way = walk_rest(*tape, slots, &failed);
        } else {
            for (std::size_t at = 0; at < roots_.size() && failed == kAllHold; ++at)
                if (is_taped(at)) walk_root(at);
        }
    }
    for (std::size_t i = 0; i < relations_.size() && failed == kAllHold; ++i) {
        const bool part = short_way && !tape->relations[i].known.empty();
        const bool ok = part ? check_relation(relations_[i], tape->relations[i], slots) : check_relation(relations_[i], slots);
        if (!ok) failed = relations_[i].guard;
    }
    for (std::size_t i = 0; i < size_programs_.size() && failed == kAllHold; ++i)
        if (!size_programs_[i].holds(slots)) failed = size_programs_[i].guard();
    if (failed == kAllHold) {
        PyObject* tuple = PyTuple_New(inputs_);
        if (tuple == nullptr) failed = -2;
        for (int i = 0; tuple != nullptr && i < inputs_; ++i) {
            PyTuple_SET_ITEM(tuple, i, slots[i]);  // the slot's reference moves into the tuple
            slots[i] = nullptr;
        }
        *inputs = tuple;
    }
    if (failed == kAllHold && short_way) ++short_hits_;
    if (failed == kAllHold && tape_ == nullptr && ++calm_ >= patience_) tape_ = record(roots);
    for (int i = 0; i < slots_; ++i) Py_CLEAR(slots[i]);
    return failed;
}

bool GuardTree::is_as_recorded(const GuardTape& tape, const FrameRoots& roots) {
    int node = -1;
    bool same = true;
    for (const auto& [root, value] : tape.roots) {
        const Ref now{read(nodes_[static_cast<std::size_t>(root)], nullptr, roots)};
        same = same && now.get() == value;
    }
    if (same && tape.holds(&node)) return true;
    if (tape_.get() != &tape) return false;
    // What changed may go on changing: that part is walked from now on, and a new tape has to wait longer.
    if (same && node >= 0) unstable_[static_cast<std::size_t>(node)] = true;
    if (!same && ++strangers_ < patience_) return false;
    tape_.reset();
    calm_ = strangers_ = 0;
    patience_ = std::min(2 * patience_, kMostPatience);
    return false;
}

bool GuardTree::walk_rest(const GuardTape& tape, PyObject** slots, int* failed) {
    for (const auto& [slot, value] : tape.exports) Py_XSETREF(slots[slot], Py_NewRef(value));
    // Walking may run Python code, after which a borrowed pointer may be any.
    std::vector<py::object> kept;
    kept.reserve(tape.rest.size() + tape.read.size());
    for (const auto& [node, value] : tape.rest) kept.push_back(py::reinterpret_borrow<py::object>(value));
    for (const auto& [node, base] : tape.read) kept.push_back(py::reinterpret_borrow<py::object>(base));
    for (const auto& [node, value] : tape.rest)
        if (!walk(node, value, slots, failed)) return false;
    for (const auto& [node, base] : tape.read)
        if (!descend(node, this->read(nodes_[static_cast<std::size_t>(node)], base, {}), slots, failed)) return false;
    return true;
}

std::shared_ptr<const GuardTape> GuardTree::record(const FrameRoots& roots) const {
    auto tape = std::make_shared<GuardTape>();
    tape->taped.assign(roots_.size(), false);
    for (std::size_t at = 0; at < roots_.size(); ++at) {
        const int root = roots_[at];
        const Node& node = nodes_[static_cast<std::size_t>(root)];
        const bool lasting = node.access == Access::kConstant;
        const Ref value{read(node, nullptr, roots)};  // the frame, a cell or the node holds it
        if (value.get() == nullptr || !(lasting || stays(node, value.get()))) continue;
        if (!lasting) tape->roots.emplace_back(root, value.get());
        tape->taped[at] = true;
        record(*tape, root, value.get(), lasting);
    }
    for (const Relation& relation : relations_) {
        GuardTape::Relation part;
        for (const int slot : relation.slots) {
            const auto known = tape->known.find(slot);
            if (known == tape->known.end()) part.slots.push_back(slot);
            else part.known.push_back(relation.pointer(known->second));
        }
        std::sort(part.known.begin(), part.known.end());
        tape->relations.push_back(std::move(part));
    }
    return tape;
}

void GuardTree::record(GuardTape& tape, int number, PyObject* value, bool lasting) const {
    const Node& node = nodes_[static_cast<std::size_t>(number)];
    const bool stable = !unstable_[static_cast<std::size_t>(number)];
    if (stable) give_version(value);
    const std::uint64_t version = dict_version(value);
    if (stable && version != 0) tape.compare(GuardTape::Kind::kDictVersion, number, value, version);
    if (!stable || !record_checks(tape, number, value, lasting)) {
        tape.rest.emplace_back(number, value);
        return;
    }
    // A tensor with a check is in the tape's list, which compares its storage too.
    const bool listed = std::any_of(node.checks.begin(), node.checks.end(), [](const Check& check) { return check.kind == CheckKind::kTensor; });
    for (const int slot : node.exports) {
        if (listed) tape.known.emplace(slot, value);
        if (!listed || filled_[static_cast<std::size_t>(slot)]) tape.exports.emplace_back(slot, value);
    }
    for (int child = number + 1; child < node.end; child = nodes_[static_cast<std::size_t>(child)].end)
        if (version == 0 || !nodes_[static_cast<std::size_t>(child)].settled) record_child(tape, number, child, value, lasting);
}

// Reading must run no Python code here, nor when the tape is compared.
void GuardTree::record_child(GuardTape& tape, int parent, int child, PyObject* base, bool lasting) const {
    const Node& node = nodes_[static_cast<std::size_t>(child)];
    const Node& above = nodes_[static_cast<std::size_t>(parent)];
    using Kind = GuardTape::Kind;
    if (unstable_[static_cast<std::size_t>(child)]) {
        tape.read.emplace_back(child, base);
        return;
    }
    switch (node.access) {
        case Access::kDictItem:
        case Access::kDictKey: {
            if (dict_version(base) == 0 || (node.access == Access::kDictItem && !is_plain(node.key.ptr()))) break;
            const Ref value{read(node, base, {})};  // the dict holds it
            if (value.get() == nullptr) break;
            record(tape, child, value.get(), true);
            return;
        }
        case Access::kInstanceDict: {
            const bool typed = std::any_of(above.checks.begin(), above.checks.end(), [](const Check& c) { return c.kind == CheckKind::kType; });
            PyObject** where = lasting || typed ? _PyObject_GetDictPtr(base) : nullptr;
            if (where == nullptr || *where == nullptr) break;
            tape.compare(Kind::kPointer, child, where, reinterpret_cast<std::uint64_t>(*where));
            record(tape, child, *where, false);
            return;
        }
        case Access::kAttribute: {
            const bool bases = lasting && PyType_Check(base) && PyUnicode_CompareWithASCIIString(node.key.ptr(), "__mro__") == 0;
            if (!bases || Py_TYPE(base)->tp_getattro != PyType_Type.tp_getattro) break;
            PyObject** where = &reinterpret_cast<PyTypeObject*>(base)->tp_mro;
            tape.compare(Kind::kPointer, child, where, reinterpret_cast<std::uint64_t>(*where));
            record(tape, child, *where, true);
            return;
        }
        case Access::kSequenceItem: {
            const bool tuple = PyTuple_CheckExact(base);
            if ((!tuple && !PyList_CheckExact(base)) || node.index >= Py_SIZE(base)) break;
            const auto index = static_cast<std::size_t>(node.index);
            PyObject* value = tuple ? PyTuple_GET_ITEM(base, node.index) : PyList_GET_ITEM(base, node.index);
            if (!lasting) tape.compare(Kind::kType, parent, base, reinterpret_cast<std::uint64_t>(Py_TYPE(base)));
            if (!tuple || !lasting) {
                tape.compare(Kind::kLength, parent, base, static_cast<std::uint64_t>(Py_SIZE(base)));
                tape.compare(tuple ? Kind::kTupleItem : Kind::kListItem, parent, base, reinterpret_cast<std::uint64_t>(value), index);
            }
            record(tape, child, value, tuple && lasting);
            return;
        }
        default: break;
    }
    tape.read.emplace_back(child, base);
}

// False when a check has to be made by the tree. lasting: the value is the same object as when the tape was made, alive ever since.
bool GuardTree::record_checks(GuardTape& tape, int number, PyObject* value, bool lasting) const {
    using Kind = GuardTape::Kind;
    const auto same_type = [&] {
        if (!lasting || PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE) || PyModule_Check(value))
            tape.compare(Kind::kType, number, value, reinterpret_cast<std::uint64_t>(Py_TYPE(value)));
    };
    const auto same_length = [&] {
        const bool dict = PyDict_CheckExact(value) || PyODict_CheckExact(value);
        if (!dict && !PyList_CheckExact(value) && !PyTuple_CheckExact(value)) return false;
        same_type();
        if (dict) tape.compare(Kind::kDictLength, number, value, static_cast<std::uint64_t>(PyDict_GET_SIZE(value)));
        else if (!lasting || PyList_CheckExact(value)) tape.compare(Kind::kLength, number, value, static_cast<std::uint64_t>(Py_SIZE(value)));
        return true;
    };
    for (const Check& check : nodes_[static_cast<std::size_t>(number)].checks) {
        bool again = !lasting;  // ask the check itself
        switch (check.kind) {
            case CheckKind::kIdentity:
            case CheckKind::kWeakIdentity: break;
            case CheckKind::kType:
                same_type();
                again = false;
                break;
            case CheckKind::kTensor:
                if (!tape.tensors->add(value)) return false;
                again = false;
                break;
            case CheckKind::kEquality:
                if (!is_plain(value)) return false;
                break;
            case CheckKind::kTruth:
                if (is_plain(value)) break;
                if (!same_length()) return false;
                again = false;
                break;
            case CheckKind::kLength:
                if (!same_length()) return false;
                again = false;
                break;
            case CheckKind::kDictKeys:
            case CheckKind::kContains:
                if (dict_version(value) == 0) return false;
                again = false;
                break;
            case CheckKind::kFunctionCode: again = true; break;
            case CheckKind::kHasAttribute:
            default: return false;
        }
        if (again) tape.compare(Kind::kCheck, number, value, reinterpret_cast<std::uint64_t>(&check));
    }
    return true;
}

bool GuardTree::stays(const Node& node, PyObject* value) const {
    if (node.access == Access::kGlobals || node.access == Access::kBuiltins) return true;
    if (node.access != Access::kLocal && node.access != Access::kClosure) return false;
    const bool object = PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE) && _PyObject_GetDictPtr(value) != nullptr;
    return object && std::none_of(node.checks.begin(), node.checks.end(), [](const Check& check) { return check.kind == CheckKind::kTensor; });
}

int GuardTree::traverse(visitproc visit, void* arg) const {
    for (const Node& node : nodes_) {
        Py_VISIT(node.key.ptr());
        for (const Check& check : node.checks) Py_VISIT(check.expected.ptr());
    }
    return 0;
}

void register_guard_tree(py::module_& m) {
    py::class_<GuardTree, std::shared_ptr<GuardTree>>(m, "GuardTree", "Guards compiled to a tree of accessors; see guard/tree.py.")
        .def(py::init<>())
        .def("add_node", &GuardTree::add_node, py::arg("parent"), py::arg("access"), py::arg("index"), py::arg("key"), py::arg("guard"))
        .def("add_check", &GuardTree::add_check, py::arg("node"), py::arg("kind"), py::arg("number"), py::arg("expected"), py::arg("guard"))
        .def("add_tensor_check", &GuardTree::add_tensor_check, py::arg("node"), py::arg("properties"), py::arg("guard"))
        .def("add_state_check", &GuardTree::add_state_check, py::arg("state"), py::arg("guard"))
        .def("add_relation", &GuardTree::add_relation, py::arg("kind"), py::arg("slots"), py::arg("guard"))
        .def("add_size_program", &GuardTree::add_size_program, py::arg("slots"), py::arg("code"), py::arg("guard"))
        .def("export_value", &GuardTree::export_value, py::arg("node"), py::arg("slot"))
        .def("freeze", &GuardTree::freeze, py::arg("inputs"), py::arg("total"))
        .def(
            "check",
            [](GuardTree& self, const py::list& locals, const py::tuple& closure, const py::dict& globals, const py::dict& builtins,
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
