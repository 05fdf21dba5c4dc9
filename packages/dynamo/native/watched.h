#pragma once

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A trace function, a debugger or coverage follows the program line by line: frames run as the program wrote them. */
int fxloom_is_watched(PyThreadState* ts);

#ifdef __cplusplus
}
#endif
