// The questions that guards ask of torch. The only header here whose implementation sees torch's C++ API.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace fxloom {

namespace py = pybind11;

// Expected properties of one tensor. Sizes and strides that are not checked are kAny.
class TensorCheck {
public:
    virtual ~TensorCheck() = default;
    virtual bool holds(PyObject* value) const = 0;
};

// properties: fxloom_dynamo.guard.guards.TensorProperties.
std::unique_ptr<TensorCheck> make_tensor_check(const py::object& properties);

// Tensors whose checks held, to be compared with what they were then: metadata and storage. Borrowed; `holds` may only be
// asked while they are alive.
class TensorList {
public:
    virtual ~TensorList() = default;
    // False when the tensor can't be compared this way.
    virtual bool add(PyObject* tensor) = 0;
    virtual bool holds() const = 0;
};

std::unique_ptr<TensorList> make_tensor_list();

// Everything global in torch that a trace may depend on: grad mode, inference mode, autocast, default dtype,
// determinism, number of threads, active modes.
class GlobalState {
public:
    virtual ~GlobalState() = default;
    virtual bool is_current() const = 0;
};

std::unique_ptr<GlobalState> copy_global_state(const py::object& state);

// what: 0 size, 1 stride, 2 storage offset. New reference; nullptr (no error set) when value is no tensor or has no such dim.
PyObject* tensor_number(PyObject* value, int what, Py_ssize_t dim);

// A tensor's `.grad`, without a word where it is no leaf. New reference; nullptr (no error set) when value is no tensor.
PyObject* tensor_gradient(PyObject* value);

// An address that two tensors share exactly when they share storage; nullptr for what has none.
const void* tensor_storage(PyObject* value);

// How many pairs of saved-tensor hooks are in force in this thread.
std::size_t saved_tensor_hooks();

void register_tensor_checks(py::module_& m);

}  // namespace fxloom
