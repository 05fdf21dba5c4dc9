/* Whether something follows the program line by line. In C: from 3.12 on the header that knows does not compile as C++. */
#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE 1
#include "watched.h"

#if PY_VERSION_HEX >= 0x030C0000
#include <internal/pycore_interp.h>
#endif

int fxloom_is_watched(PyThreadState* ts) {
    if (ts->c_tracefunc != NULL) return 1;
#if PY_VERSION_HEX >= 0x030C0000
    /* Ids and events of sys.monitoring. A profiler (tool 2) only asks which functions ran and how long. */
    enum { kDebugger = 0, kCoverage = 1, kLine = 5, kInstruction = 6 };
    const PyInterpreterState* interpreter = ts->interp;
    return interpreter->monitoring_tool_names[kDebugger] != NULL || interpreter->monitoring_tool_names[kCoverage] != NULL ||
           interpreter->monitors.tools[kLine] != 0 || interpreter->monitors.tools[kInstruction] != 0;
#else
    return 0;
#endif
}
