// Guards as a tree of accessors: each value is read once, checked, and handed to the accessors below it.
//
// The tree is built once by Python (fxloom_dynamo/guard/tree.py) from guard data and then only evaluated. Evaluation runs on a
// frame that has not started: the roots are its parameters, its function's cells, its globals and constants.
// Values asked for (`export_value`) are collected on the way; they are the compiled graph's inputs.
//
// Most of a model's guards look into dicts that nobody changes: instance dicts, `_modules`, the dicts of classes and
// modules. What held for one version of a dict holds while the dict has that version, so such a dict costs one comparison,
// and only what can change without it (tensors, lists, further objects) is visited again.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dict_versions.h"
#include "guard_tape.h"
#include "size_program.h"
#include "tensor_checks.h"

namespace fxloom {

namespace py = pybind11;

enum class Access : std::uint8_t {
    kLocal,         // index: of the parameter in localsplus
    kClosure,       // index: of the free variable; the cell's content
    kCell,          // index: of the free variable; the cell
    kGlobals,
    kBuiltins,
    kFunction,
    kConstant,      // key: the object itself
    kAttribute,     // key: the name
    kInstanceDict,
    kDictItem,      // key
    kDictKey,       // index: in iteration order
    kSequenceItem,  // index
    kType,
    kCall,          // key: a callable of one argument
    kTensorSize,    // index: dimension; the size as an int
    kTensorStride,
    kTensorOffset,
};

enum class CheckKind : std::uint8_t {
    kIdentity,      // expected: the object
    kWeakIdentity,  // expected: a weak reference to it
    kType,          // expected: the exact type
    kEquality,      // expected: a constant; types must agree all the way down
    kLength,        // number
    kDictKeys,      // expected: a tuple of the keys in order
    kContains,      // expected: (key, bool)
    kHasAttribute,  // expected: (name, bool)
    kTruth,         // number: 0 or 1
    kFunctionCode,  // expected: a code object
    kTensor,
};

struct Check {
    CheckKind kind;
    int guard;          // index of the guard in the data, for the report
    Py_ssize_t number;
    py::object expected;
    std::unique_ptr<TensorCheck> tensor;
};

// One accessor. Nodes lie in preorder, so a subtree is a range and the first child is the next node.
struct Node {
    Access access;
    // A child of a dict that is decided by which object the dict holds: nothing to look at while the dict is unchanged.
    bool settled = false;
    bool gradient = false;  // `.grad`, which Python reads with a warning where the tensor is no leaf
    Py_ssize_t index;
    py::object key;
    int first_guard;               // reported when the value can't be read
    int end = 0;                   // one past the subtree
    std::vector<Check> checks;
    std::vector<int> exports;      // slots that take this node's value
};

// What was found in a dict when all its checks held. CPython gives a dict a new version, unique among all dicts, with
// every change (PEP 509), so an equal version means equal contents. Borrowed: the dict holds its values.
struct Memo {
    PyObject* dict = nullptr;
    std::uint64_t version = 0;
    PyObject* value = nullptr;  // of a dict's child: what the dict held
};

// A relation between exported values, checked after the walk.
struct Relation {
    enum class Kind : std::uint8_t { kSame, kDistinct, kDistinctStorage, kSameStorage } kind;
    std::vector<int> slots;
    int guard;
    std::vector<const void*> held{};  // the pointers for which it held last: for the same ones it still does

    bool of_storages() const { return kind == Kind::kDistinctStorage || kind == Kind::kSameStorage; }
    bool of_one() const { return kind == Kind::kSame || kind == Kind::kSameStorage; }
    // What is compared of a value; nullptr for a tensor without storage, which shares it with none.
    const void* pointer(PyObject* value) const { return of_storages() ? tensor_storage(value) : value; }
};

bool check_holds(const Check& check, PyObject* value);

// What a frame that has not started offers. All borrowed.
struct FrameRoots {
    PyObject* const* locals;
    PyObject* closure;   // tuple or nullptr
    PyObject* globals;
    PyObject* builtins;
    PyObject* function;
};

constexpr int kAllHold = -1;

class GuardTree {
public:
    // Returns the index of the new node. parent -1 for roots.
    int add_node(int parent, int access, Py_ssize_t index, py::object key, int guard);
    void add_check(int node, int kind, Py_ssize_t number, py::object expected, int guard);
    void add_tensor_check(int node, const py::object& properties, int guard);
    void add_state_check(const py::object& state, int guard);
    void add_relation(int kind, std::vector<int> slots, int guard);
    // A statement about exported integers, checked last; see size_program.h.
    void add_size_program(std::vector<int> slots, std::vector<std::int64_t> code, int guard);
    // The first `inputs` slots are the graph's inputs; further ones serve relations.
    void export_value(int node, int slot);
    // Ends building: no node or check may be added after it.
    void freeze(int inputs, int total);

    // kAllHold or the index of the first guard that fails; -2 with a Python error set (from user code, e.g. a property).
    // On success `inputs` is a new tuple of the input slots.
    int evaluate(const FrameRoots& roots, PyObject** inputs);

    int traverse(visitproc visit, void* arg) const;

    long short_hits() const { return short_hits_; }

private:
    bool walk(int number, PyObject* value, PyObject** slots, int* failed);
    bool walk_dict(int number, PyObject* dict, PyObject** slots, int* failed);
    bool descend(int child, PyObject* value, PyObject** slots, int* failed);  // value is stolen; nullptr: can't be read
    bool check_relation(Relation& relation, PyObject* const* slots);
    bool check_relation(const Relation& relation, const GuardTape::Relation& part, PyObject* const* slots);
    PyObject* read(const Node& node, PyObject* base, const FrameRoots& roots) const;  // new reference or nullptr
    // The tape of the frame's values, for which all guards just held.
    std::shared_ptr<const GuardTape> record(const FrameRoots& roots) const;
    void record(GuardTape& tape, int number, PyObject* value, bool lasting) const;
    void record_child(GuardTape& tape, int parent, int child, PyObject* base, bool lasting) const;
    bool record_checks(GuardTape& tape, int number, PyObject* value, bool lasting) const;
    bool walk_rest(const GuardTape& tape, PyObject** slots, int* failed);
    bool is_as_recorded(const GuardTape& tape, const FrameRoots& roots);
    // True for roots that are likely the same at the next call: modules and other objects of the program, namespaces.
    bool stays(const Node& node, PyObject* value) const;

    std::vector<Node> nodes_;
    std::vector<std::vector<int>> children_;  // while building; the last one is the roots'
    std::vector<Memo> memos_;
    std::vector<int> roots_;
    std::size_t first_root_ = 0;  // where the last failure was: looked at first
    std::vector<Relation> relations_;
    std::vector<SizeProgram> size_programs_;
    std::unique_ptr<GlobalState> state_;
    int state_guard_ = 0;
    int inputs_ = 0;
    int slots_ = 0;
    std::shared_ptr<const GuardTape> tape_;
    long short_hits_ = 0;  // how often a tape held
    static constexpr int kMostPatience = 1 << 16;
    int calm_ = 0;       // hits without a tape
    int patience_ = 2;   // hits before a tape is made; twice as many each time that one failed
    int strangers_ = 0;  // calls with other roots than the tape's
    std::vector<bool> filled_;    // slots that are inputs or integers of size programs; others serve relations only
    std::vector<bool> unstable_;  // nodes whose dicts change between calls
};

void register_guard_tree(py::module_& m);

}  // namespace fxloom
