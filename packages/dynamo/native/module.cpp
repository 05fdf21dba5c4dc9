#include <pybind11/pybind11.h>

#include "frame_hook.h"
#include "guard_tree.h"
#include "tensor_checks.h"

PYBIND11_MODULE(_native, m) {
    m.doc() = "Frame hook and guard evaluation of fxloom-dynamo.";
    fxloom::register_tensor_checks(m);
    fxloom::register_guard_tree(m);
    fxloom::register_frame_hook(m);
}
