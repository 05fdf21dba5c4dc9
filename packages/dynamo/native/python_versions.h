// What differs between CPython 3.11, 3.12 and 3.13 in frames, code extras and recursion counters; nothing else may look.
// Source: Include/internal/pycore_frame.h and Python/ceval.c of 3.11.7, 3.12.1 and 3.13.0.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
// The internal headers are C; two of their inline functions trip C++ warnings that are not ours to mend.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wold-style-cast"
#include <internal/pycore_frame.h>
#pragma GCC diagnostic pop
#undef Py_BUILD_CORE

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "fxloom-dynamo knows the frames of CPython 3.11, 3.12 and 3.13 only"
#endif

namespace fxloom::frames {

using Frame = _PyInterpreterFrame;

#if PY_VERSION_HEX >= 0x030D0000
inline PyCodeObject* code(Frame* f) { return reinterpret_cast<PyCodeObject*>(f->f_executable); }
inline void set_code(Frame* f, PyCodeObject* c) { f->f_executable = reinterpret_cast<PyObject*>(c); }
inline bool at_start(Frame* f) { return f->instr_ptr == _PyCode_CODE(code(f)); }
inline Py_ssize_t unit(Frame* f) { return f->instr_ptr - _PyCode_CODE(code(f)); }  // the code unit that is being run
inline Frame* current(PyThreadState* ts) { return ts->current_frame; }  // the caller of a frame that has not started
inline void rewind(Frame* f) { f->instr_ptr = _PyCode_CODE(code(f)); f->return_offset = 0; }
#elif PY_VERSION_HEX >= 0x030C0000
inline PyCodeObject* code(Frame* f) { return f->f_code; }
inline void set_code(Frame* f, PyCodeObject* c) { f->f_code = c; }
inline bool at_start(Frame* f) { return f->prev_instr == _PyCode_CODE(code(f)) - 1; }
inline Py_ssize_t unit(Frame* f) { return f->prev_instr - _PyCode_CODE(code(f)); }
inline Frame* current(PyThreadState* ts) { return ts->cframe->current_frame; }
inline void rewind(Frame* f) { f->prev_instr = _PyCode_CODE(code(f)) - 1; f->return_offset = 0; }
#else
inline PyCodeObject* code(Frame* f) { return f->f_code; }
inline void set_code(Frame* f, PyCodeObject* c) { f->f_code = c; }
inline bool at_start(Frame* f) { return f->prev_instr == _PyCode_CODE(code(f)) - 1; }
inline Py_ssize_t unit(Frame* f) { return f->prev_instr - _PyCode_CODE(code(f)); }
inline Frame* current(PyThreadState* ts) { return ts->cframe->current_frame; }
inline void rewind(Frame* f) { f->prev_instr = _PyCode_CODE(code(f)) - 1; }
#endif

#if PY_VERSION_HEX >= 0x030C0000
inline PyFunctionObject* function(Frame* f) { return reinterpret_cast<PyFunctionObject*>(f->f_funcobj); }  // borrowed
inline int size(PyCodeObject* c) { return c->co_framesize; }
inline Py_ssize_t request_extra_index(freefunc free) { return PyUnstable_Eval_RequestCodeExtraIndex(free); }
inline int get_extra(PyCodeObject* c, Py_ssize_t i, void** out) {
    return PyUnstable_Code_GetExtra(reinterpret_cast<PyObject*>(c), i, out);
}
inline int set_extra(PyCodeObject* c, Py_ssize_t i, void* value) {
    return PyUnstable_Code_SetExtra(reinterpret_cast<PyObject*>(c), i, value);
}
#else
inline PyFunctionObject* function(Frame* f) { return f->f_func; }  // borrowed
inline int size(PyCodeObject* c) {
    return static_cast<int>(c->co_nlocalsplus + c->co_stacksize + FRAME_SPECIALS_SIZE);
}
inline Py_ssize_t request_extra_index(freefunc free) { return _PyEval_RequestCodeExtraIndex(free); }
inline int get_extra(PyCodeObject* c, Py_ssize_t i, void** out) {
    return _PyCode_GetExtra(reinterpret_cast<PyObject*>(c), i, out);
}
inline int set_extra(PyCodeObject* c, Py_ssize_t i, void* value) {
    return _PyCode_SetExtra(reinterpret_cast<PyObject*>(c), i, value);
}
#endif

// The extra slot as the two functions above see it, without their checks: it is read for every frame. The layout is that of
// `_PyCodeObjectExtra` in Objects/codeobject.c; `extras_are_known` has to have said so once.
inline void* extra(PyCodeObject* c, Py_ssize_t i) {
    struct Extras {
        Py_ssize_t size;
        void* values[1];
    };
    const auto* extras = static_cast<const Extras*>(c->co_extra);
    return extras == nullptr || extras->size <= i ? nullptr : extras->values[i];
}

// True when `extra` finds in `c` what was stored there.
inline bool extras_are_known(PyCodeObject* c, Py_ssize_t i) {
    void* value = nullptr;
    return get_extra(c, i, &value) == 0 && value != nullptr && extra(c, i) == value;
}

// False for the frames that mark a C call on the stack.
inline bool is_python(Frame* f) {
#if PY_VERSION_HEX >= 0x030C0000
    return f->owner != FRAME_OWNED_BY_CSTACK;
#else
    (void)f;
    return true;
#endif
}

// The frame belongs to a trace, profile, monitoring or audit function, which looks at the program and is no part of it.
inline bool is_observer(PyThreadState* ts) { return ts->tracing != 0; }

// From 3.12 on the evaluation function owns the frame that it is given and has to clear it.
constexpr bool kHookOwnsFrame = PY_VERSION_HEX >= 0x030C0000;

// Python code of ours runs where the program is deep in a recursion: it has frames of its own to use for a scope.
class Headroom {
public:
    explicit Headroom(PyThreadState* ts) : ts_(ts) { remaining() += kFrames; }
    ~Headroom() { remaining() -= kFrames; }
    Headroom(const Headroom&) = delete;
    Headroom& operator=(const Headroom&) = delete;

private:
    static constexpr int kFrames = 3000;
    int& remaining() {
#if PY_VERSION_HEX >= 0x030C0000
        return ts_->py_recursion_remaining;
#else
        return ts_->recursion_remaining;
#endif
    }
    PyThreadState* ts_;
};

// Lets go of all that a finished frame holds; who clears it later finds nothing.
inline void unbind(Frame* f) {
    const int count = f->stacktop;
    for (int i = 0; i < count; ++i) Py_CLEAR(f->localsplus[i]);
}

// Runs a frame. With a hook installed every Python call is a C call, which 3.12 and 3.13 charge against a C recursion
// budget too (2 units); give them back, so that sys.setrecursionlimit means what it says.
inline PyObject* evaluate(PyThreadState* ts, Frame* f, int throwflag) {
#if PY_VERSION_HEX >= 0x030C0000
    ts->c_recursion_remaining += 2;
    PyObject* result = _PyEval_EvalFrameDefault(ts, f, throwflag);
    ts->c_recursion_remaining -= 2;
    return result;
#else
    return _PyEval_EvalFrameDefault(ts, f, throwflag);
#endif
}

}  // namespace fxloom::frames
