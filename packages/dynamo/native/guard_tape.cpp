#include "guard_tape.h"

#include "guard_tree.h"

namespace fxloom {

namespace {

std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

}  // namespace

void GuardTape::compare(Kind kind, int node, const void* object, std::uint64_t expected, std::size_t index) {
    steps_.push_back({kind, node, object, expected, index});
}

bool GuardTape::holds(int* node) const {
    for (const Step& step : steps_) {
        bool same = false;
        auto* object = static_cast<PyObject*>(const_cast<void*>(step.object));  // written by none of the readers below
        switch (step.kind) {
            case Kind::kDictVersion: same = dict_version(object) == step.expected; break;
            case Kind::kPointer: same = number(*static_cast<void* const*>(step.object)) == step.expected; break;
            case Kind::kType: same = number(Py_TYPE(object)) == step.expected; break;
            case Kind::kDictLength: same = static_cast<std::uint64_t>(PyDict_GET_SIZE(object)) == step.expected; break;
            case Kind::kLength: same = static_cast<std::uint64_t>(Py_SIZE(object)) == step.expected; break;
            case Kind::kListItem:
                same = number(PyList_GET_ITEM(object, static_cast<Py_ssize_t>(step.index))) == step.expected;
                break;
            case Kind::kTupleItem:
                same = number(PyTuple_GET_ITEM(object, static_cast<Py_ssize_t>(step.index))) == step.expected;
                break;
            case Kind::kCheck: same = check_holds(*reinterpret_cast<const Check*>(step.expected), object); break;
        }
        if (!same) {
            *node = step.node;
            return false;
        }
    }
    if (tensors->holds()) return true;
    *node = -1;
    return false;
}

}  // namespace fxloom
