// Arguments that a caller's value stack holds for the length of a call.
//
// Without a frame hook the interpreter moves the arguments of a Python-to-Python call into the callee's frame. With one,
// every call is a C call and the caller's stack keeps a second reference until it returns: what the callee lets go of
// would live on. `give_up_arguments` puts None in those slots, which the caller drops afterwards.
#pragma once

#include "python_versions.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace fxloom {

// For each code unit of a code object: depth of the value stack before the call that it is, and its argument.
class CallSites {
public:
    struct Site {
        std::int32_t depth = -1;  // -1: no call, or never reached
        std::int32_t arguments = 0;
        bool named = false;  // the names of keyword arguments lie on top
    };

    static std::unique_ptr<CallSites> of(PyCodeObject* code);  // nullptr with an error set

    const Site* at(Py_ssize_t unit) const {
        return unit < 0 || unit >= static_cast<Py_ssize_t>(sites_.size()) ? nullptr : &sites_[static_cast<std::size_t>(unit)];
    }

private:
    std::vector<Site> sites_;
};

// What the instruction of a code unit does to control, as `bytecode/opcode_facts.py` has it for Python; a test compares the two.
enum class Jump { kNone, kForward, kBackward };
Jump jump_of(int opcode);
bool falls_through(int opcode);

// Lets go of the arguments of `callee`, which has not started, on the stack of `caller`, if `caller` is calling it.
void give_up_arguments(frames::Frame* caller, const CallSites& sites, frames::Frame* callee);

// True when the callee may have an argument that nothing else holds.
bool has_temporaries(frames::Frame* callee);

// True when a frame of the code can let go of an argument before it ends: it binds a parameter anew, deletes it, shares it
// with another function's cell, or has its keyword arguments in a dict. -1 with an error set.
int may_let_go(PyCodeObject* code);

}  // namespace fxloom
