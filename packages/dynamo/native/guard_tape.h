// The short way through a guard tree: what has to be compared again when nothing was written since the guards held last.
//
// In: a tree whose guards just held, and the values it read. Out: a flat list of comparisons: versions of dicts, addresses of
// instance dicts, types, sizes and items of lists, metadata of tensors; for a model of many layers they are all that a hit
// costs. What they can't tell (properties, items of deques, truth of objects with `__bool__`) stays with the tree, as `rest`.
//
// Lifetimes: a tape borrows every pointer. It compares in preorder from roots that the frame holds, and each comparison that
// holds proves that what it leads to is alive: so nothing is read through a pointer before its owner was found unchanged.
// No Python code runs on the way. An address alone proves nothing, since another object may have come to lie there:
// what an object *is* follows from a dict version (unique among all dicts of the process) or is compared itself.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensor_checks.h"

namespace fxloom {

struct Check;

class GuardTape {
public:
    enum class Kind : std::uint32_t {
        kDictVersion,  // object: a dict; expected: its version
        kPointer,      // object: where a pointer lies; expected: the pointer
        kType,         // object; expected: its type
        kDictLength,   // object: a dict, ordered or not; expected
        kLength,       // object: a list or tuple; expected
        kListItem,     // object: a list, index; expected: the item's address
        kTupleItem,
        kCheck,        // object; expected: a Check that runs no Python code
    };

    void compare(Kind kind, int node, const void* object, std::uint64_t expected, std::size_t index = 0);

    // True when all that the tape compares is as it was; else `node` is where the first difference is.
    bool holds(int* node) const;

    std::vector<bool> taped;                         // by root: whether the tape stands for it
    std::vector<std::pair<int, PyObject*>> roots;    // node and value
    std::vector<std::pair<int, PyObject*>> rest;     // nodes that the tree has to walk, and their values,
    std::vector<std::pair<int, PyObject*>> read;     // or what they have to be read from
    std::vector<std::pair<int, PyObject*>> exports;  // slot and value

    std::unordered_map<int, PyObject*> known;        // slot and value of tensors in the list below

    // A relation between values; those that the tape knows are as they were, and it held for them.
    struct Relation {
        std::vector<const void*> known;  // sorted; what is compared of the values, see Relation::pointer of the tree
        std::vector<int> slots;          // of the others
    };
    std::vector<Relation> relations;  // one for each of the tree's
    std::unique_ptr<TensorList> tensors = make_tensor_list();

private:
    struct Step {
        Kind kind;
        int node;
        const void* object;
        std::uint64_t expected;
        std::size_t index;
    };
    std::vector<Step> steps_;
};

}  // namespace fxloom
