// The PEP 523 hook: runs replacement code in place of frames of a region, and asks Python when it has none.
#pragma once

#include <pybind11/pybind11.h>

namespace fxloom {

void register_frame_hook(pybind11::module_& m);

}  // namespace fxloom
