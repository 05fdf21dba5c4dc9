// A number for what a dict holds: while it stays, nothing was written.
#pragma once

#include <Python.h>

#include <cstdint>

namespace fxloom {

// The version of a plain dict: unique among all dicts of the process, another with every change (PEP 509). 0 for others.
std::uint64_t dict_version(PyObject* object);

// Makes a plain dict one that has a version, where it can. What the dict holds and in which order stays as it is; no Python
// code runs.
void give_version(PyObject* object);

}  // namespace fxloom
