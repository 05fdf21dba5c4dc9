// Lifetimes and invariants.
//
// - A Region stands for one `optimize(...)`: it has the Python callback for misses. It is live in a thread while a
//   CompiledCallable of it runs there (`t_region`); the interpreter-wide hook is installed while any region is live.
// - A code object owns, through its "extra" slot, a CodeState with the entries of all regions. A Region remembers the
//   codes it has entries on and removes them when it dies, so a dropped compiled function frees its graphs.
// - An entry is only ever run on a frame that has not started: parameters are bound, no instruction has run. The frame
//   is rewritten in place (ARCHITECTURE 5, FACTS 1): same parameters, other code, one more local that takes the inputs.
//   Where the data stack's chunk has no room for the larger frame, a function made from the new code is called instead.
// - Replacement code that stopped at a graph break returns a TailCall: the rest of the function with its stack and locals.
//   The hook calls it once the frame is over, in the frame's place: `f_back`, tracebacks and the depth of the stack are
//   those of the one function that the program knows, and what the frame held dies when the rest lets go of it.
// - While the callback runs, or a callable wrapped by Uncaptured, the thread's region is switched off.
// - Frames that run under saved-tensor hooks which were pushed inside of the region are left alone: the hooks (of
//   activation checkpointing, say) may run the same function again in backward, outside of any region, and pair what it
//   saves then with what it saved first.
// - `intercepted` runs C code for the evaluator: Python functions that the C code calls are not run but handed over
//   (`t_interceptor`), which evaluates them. It is off while the interceptor itself runs.
#include "python_versions.h"

#include <structmember.h>

#include "frame_hook.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "call_sites.h"
#include "guard_tree.h"
#include "tensor_checks.h"
#include "watched.h"

namespace fxloom {

namespace {

class Region;

struct Entry {
    py::object original;     // the code object that it is installed on
    py::object replacement;
    std::shared_ptr<GuardTree> guards;
    int inputs_slot;         // in the replacement's localsplus; -1: takes no inputs
    Region* region;          // not owned; the region removes its entries before it dies
    py::object record;       // what Python knows of the entry
    long hits = 0;
};

struct CodeState {
    bool skip = false;    // as it is
    bool closed = false;  // as it is, and all that it calls too
    bool lets_go = true;  // of arguments before its frame ends, see call_sites.h
    bool plain = false;   // skip, and the caller's stack may go on holding the arguments: nothing to do for its frames
    std::vector<std::shared_ptr<Entry>> entries;  // most recently used first
    std::vector<Region*> gave_up;                 // regions that run this code as it is
    Region* plain_in = nullptr;                   // one of them, where `plain` holds too
    std::unique_ptr<CallSites> call_sites;        // made when the code first calls a Python function in a region
};

Py_ssize_t g_extra_index = -1;
PyCodeObject* g_retire_code = nullptr;  // `NOP; RETURN_CONST None`: run to clear a frame that the hook owns

_PyFrameEvalFunction g_previous = nullptr;  // what was installed before us
long g_live_regions = 0;                    // over all threads; guarded by the GIL
long g_full_chunks = 0;                     // frames that had to be replaced by a call
long g_expected = 0;                        // threads that wait for a frame or intercept them: the hook looks at all then

thread_local Region* t_region = nullptr;
thread_local std::size_t t_saved_tensor_hooks = 0;  // in force where the thread entered its region
thread_local PyObject* t_pending_code = nullptr;    // borrowed; the frame about to come takes t_pending_inputs
thread_local PyObject* t_pending_inputs = nullptr;  // owned
thread_local int t_pending_slot = -1;

PyObject* g_as_it_is = nullptr;  // answers of an interceptor: run the frame as it is,
PyObject* g_unseen = nullptr;    // or also without intercepting what it calls
thread_local PyObject* t_handed_code = nullptr;     // borrowed; the frame about to come was called by `run_to_end`,
thread_local std::vector<PyObject*>* t_handed = nullptr;  // which gives its arguments (owned) up when the frame has them
thread_local PyObject* t_interceptor = nullptr;     // borrowed from the call of `intercepted` that set it

void free_code_state(void* state) { delete static_cast<CodeState*>(state); }

CodeState* find_state(PyCodeObject* code) { return static_cast<CodeState*>(frames::extra(code, g_extra_index)); }

// True for functions whose frames can have an entry: neither generators nor the bodies of modules and classes.
bool is_candidate(PyCodeObject* code) {
    constexpr int kFunction = CO_OPTIMIZED | CO_NEWLOCALS;
    constexpr int kSuspends = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
    return (code->co_flags & kFunction) == kFunction && (code->co_flags & kSuspends) == 0;
}

CodeState& state_of(PyCodeObject* code) {
    CodeState* state = find_state(code);
    if (state == nullptr) {
        const int lets_go = may_let_go(code);
        if (lets_go < 0) throw py::error_already_set();
        state = new CodeState();
        state->lets_go = lets_go != 0;
        state->plain = !state->lets_go && !is_candidate(code);
        if (frames::set_extra(code, g_extra_index, state) < 0) {
            delete state;
            throw py::error_already_set();
        }
    }
    return *state;
}

PyCodeObject* as_code(const py::handle& object) {
    if (!PyCode_Check(object.ptr())) throw py::type_error("expected a code object");
    return reinterpret_cast<PyCodeObject*>(object.ptr());
}

PyObject* hook(PyThreadState* ts, frames::Frame* f, int throwflag);

// The thread's frame about to come is one of `code` (borrowed), or none is waited for any more.
void expect(PyObject*& which, PyObject* code) {
    g_expected += (code != nullptr) - (which != nullptr);
    which = code;
}

void enter_region() {
    if (g_live_regions++ == 0) {
        PyInterpreterState* interpreter = PyInterpreterState_Get();
        g_previous = _PyInterpreterState_GetEvalFrameFunc(interpreter);
        _PyInterpreterState_SetEvalFrameFunc(interpreter, hook);
    }
}

void leave_region() {
    if (--g_live_regions == 0) {
        PyInterpreterState* interpreter = PyInterpreterState_Get();
        // Someone else's hook on top of ours remembers ours; it passes frames on to us and we pass them on too.
        if (_PyInterpreterState_GetEvalFrameFunc(interpreter) == hook)
            _PyInterpreterState_SetEvalFrameFunc(interpreter, g_previous);
    }
}

// Makes `region` (or none) the thread's region for a scope.
class RegionScope {
public:
    explicit RegionScope(Region* region) : saved_(t_region) {
        if (saved_ == nullptr && region != nullptr) enter_region();
        if (saved_ != nullptr && region == nullptr) leave_region();
        t_region = region;
        if (region != nullptr) t_saved_tensor_hooks = saved_tensor_hooks();
    }
    ~RegionScope() {
        if (saved_ == nullptr && t_region != nullptr) leave_region();
        if (saved_ != nullptr && t_region == nullptr) enter_region();
        t_region = saved_;
        t_saved_tensor_hooks = saved_hooks_;
    }
    RegionScope(const RegionScope&) = delete;
    RegionScope& operator=(const RegionScope&) = delete;

private:
    Region* saved_;
    std::size_t saved_hooks_ = t_saved_tensor_hooks;
};

// Makes `interceptor` (or none) the thread's interceptor for a scope.
class InterceptorScope {
public:
    explicit InterceptorScope(PyObject* interceptor) : saved_(t_interceptor) {
        if (saved_ == nullptr && interceptor != nullptr) enter_region();
        if (saved_ != nullptr && interceptor == nullptr) leave_region();
        expect(t_interceptor, interceptor);
    }
    ~InterceptorScope() {
        if (saved_ == nullptr && t_interceptor != nullptr) leave_region();
        if (saved_ != nullptr && t_interceptor == nullptr) enter_region();
        expect(t_interceptor, saved_);
    }
    InterceptorScope(const InterceptorScope&) = delete;
    InterceptorScope& operator=(const InterceptorScope&) = delete;

private:
    PyObject* saved_;
};

class Region {
public:
    explicit Region(py::object on_miss) : on_miss(std::move(on_miss)) {}
    ~Region() { clear(); }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    std::shared_ptr<Entry> install(const py::object& original, const py::object& replacement,
                                   std::shared_ptr<GuardTree> guards, int inputs_slot, py::object record) {
        PyCodeObject* old_code = as_code(original);
        PyCodeObject* new_code = as_code(replacement);
        constexpr int kSignature = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
        if (old_code->co_argcount != new_code->co_argcount || old_code->co_kwonlyargcount != new_code->co_kwonlyargcount ||
            ((old_code->co_flags ^ new_code->co_flags) & kSignature) != 0 || old_code->co_nfreevars != new_code->co_nfreevars)
            throw py::value_error("replacement code must have the signature and free variables of the original");
        if (inputs_slot >= new_code->co_nlocalsplus) throw py::value_error("inputs_slot is no variable of the replacement");
        auto entry = std::make_shared<Entry>(
            Entry{original, replacement, std::move(guards), inputs_slot, this, std::move(record)});
        CodeState& state = state_of(old_code);
        state.entries.insert(state.entries.begin(), entry);
        codes_.push_back(original);
        return entry;
    }

    void give_up(const py::object& code) {
        CodeState& state = state_of(as_code(code));
        state.gave_up.push_back(this);
        if (!state.lets_go) state.plain_in = this;
        codes_.push_back(code);
    }

    py::list records(const py::object& code) const {
        py::list out;
        if (const CodeState* state = find_state(as_code(code)))
            for (const auto& entry : state->entries)
                if (entry->region == this) out.append(entry->record);
        return out;
    }

    // Forgets everything compiled for this region.
    void clear() {
        std::vector<py::object> codes;
        codes.swap(codes_);
        std::vector<std::shared_ptr<Entry>> dropped;  // freed last: freeing runs Python code
        for (const py::object& code : codes) {
            CodeState* state = find_state(as_code(code));
            if (state == nullptr) continue;
            auto& entries = state->entries;
            const auto mine = std::stable_partition(entries.begin(), entries.end(), [this](const auto& e) { return e->region != this; });
            std::move(mine, entries.end(), std::back_inserter(dropped));
            entries.erase(mine, entries.end());
            if (state->plain_in == this) state->plain_in = nullptr;
            state->gave_up.erase(std::remove(state->gave_up.begin(), state->gave_up.end(), this), state->gave_up.end());
        }
    }

    py::object on_miss;

private:
    std::vector<py::object> codes_;
};

// The frame that the thread has passed on to the hook before ours (borrowed).
thread_local frames::Frame* t_passed = nullptr;

// Runs the frame as whoever had the hook before would. A hook that was put on top of ours before we took the place above
// it (torch.compile's, in a function that we compile) passes what it does not want on to us again: it is run then.
PyObject* pass(PyThreadState* ts, frames::Frame* f, int throwflag) {
    if (g_previous == nullptr || g_previous == _PyEval_EvalFrameDefault || g_previous == hook || t_passed == f)
        return frames::evaluate(ts, f, throwflag);
    frames::Frame* const before = std::exchange(t_passed, f);
    PyObject* result = g_previous(ts, f, throwflag);
    t_passed = before;
    return result;
}

// Ends a frame that has not started with `result` (stolen), or with the error that is set when it is nullptr.
PyObject* finish(PyThreadState* ts, frames::Frame* f, PyObject* result) {
    if constexpr (!frames::kHookOwnsFrame) return result;  // 3.11: the caller clears the frame
    PyCodeObject* old = frames::code(f);
    Py_INCREF(g_retire_code);
    frames::set_code(f, g_retire_code);
    Py_DECREF(old);
    frames::rewind(f);
    if (result == nullptr) return frames::evaluate(ts, f, 1);
    PyObject* none = frames::evaluate(ts, f, 0);
    if (none == nullptr) {  // a signal handler raised
        Py_DECREF(result);
        return nullptr;
    }
    Py_DECREF(none);
    return result;
}

// True when the frame now runs `code`; false when the data stack has no room here.
bool rewrite(PyThreadState* ts, frames::Frame* f, PyCodeObject* code) {
    PyCodeObject* old = frames::code(f);
    const int old_size = frames::size(old);
    const int new_size = frames::size(code);
    PyObject** bottom = reinterpret_cast<PyObject**>(f);
    if (bottom + old_size != ts->datastack_top) return false;
    if (new_size > old_size && new_size - old_size >= ts->datastack_limit - ts->datastack_top) return false;
    ts->datastack_top = bottom + new_size;  // exactly, also when shrinking: debug builds assert it at the pop
    for (int i = old->co_nlocalsplus; i < code->co_nlocalsplus; ++i) f->localsplus[i] = nullptr;
    f->stacktop = code->co_nlocalsplus;
    Py_INCREF(code);
    frames::set_code(f, code);
    frames::rewind(f);
    Py_DECREF(old);
    return true;
}

// Calls a function made from `code` with the frame's parameters. New reference.
PyObject* call_instead(frames::Frame* f, PyCodeObject* code) {
    PyFunctionObject* original = frames::function(f);
    const py::object function = py::reinterpret_steal<py::object>(
        PyFunction_NewWithQualName(reinterpret_cast<PyObject*>(code), original->func_globals, original->func_qualname));
    if (!function) return nullptr;
    auto* made = reinterpret_cast<PyFunctionObject*>(function.ptr());
    Py_XSETREF(made->func_closure, Py_XNewRef(original->func_closure));
    Py_SETREF(made->func_builtins, Py_NewRef(original->func_builtins));
    const int positional = code->co_argcount;
    const int keywords = code->co_kwonlyargcount;
    const bool star = (code->co_flags & CO_VARARGS) != 0;
    const bool stars = (code->co_flags & CO_VARKEYWORDS) != 0;
    PyObject** values = f->localsplus;
    PyObject* more = star ? values[positional + keywords] : nullptr;
    const Py_ssize_t extra = more != nullptr ? PyTuple_GET_SIZE(more) : 0;
    const py::object args = py::reinterpret_steal<py::object>(PyTuple_New(positional + extra));
    const py::object kwargs = py::reinterpret_steal<py::object>(PyDict_New());
    if (!args || !kwargs) return nullptr;
    for (int i = 0; i < positional; ++i) PyTuple_SET_ITEM(args.ptr(), i, Py_NewRef(values[i]));
    for (Py_ssize_t i = 0; i < extra; ++i) PyTuple_SET_ITEM(args.ptr(), positional + i, Py_NewRef(PyTuple_GET_ITEM(more, i)));
    for (int i = 0; i < keywords; ++i)
        if (PyDict_SetItem(kwargs.ptr(), PyTuple_GET_ITEM(code->co_localsplusnames, positional + i), values[positional + i]) < 0)
            return nullptr;
    if (stars && PyDict_Update(kwargs.ptr(), values[positional + keywords + (star ? 1 : 0)]) < 0) return nullptr;
    return PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr());
}

// What replacement code returns instead of a value: call `function` with `arguments` (a tuple) and return its result.
struct TailCall {
    PyObject_HEAD
    PyObject* function;
    PyObject* arguments;
};

PyTypeObject* g_tail_call = nullptr;

// Takes the arguments out of a tail call and frees it. Returns the function.
py::object open_tail_call(PyObject* result, std::vector<PyObject*>& arguments) {
    auto* call = reinterpret_cast<TailCall*>(result);
    const Py_ssize_t count = PyTuple_GET_SIZE(call->arguments);
    for (Py_ssize_t i = 0; i < count; ++i) arguments.push_back(Py_NewRef(PyTuple_GET_ITEM(call->arguments, i)));
    py::object function = py::reinterpret_borrow<py::object>(call->function);
    Py_DECREF(result);
    return function;
}

void release(std::vector<PyObject*>& values) {
    for (PyObject*& value : values) Py_CLEAR(value);
}

thread_local Py_tracefunc t_tracer = nullptr;  // the thread's trace function while `miss_call` stands in for it

// Lets the next call pass unseen: the trace function is back in its place from then on.
int miss_call(PyObject* object, PyFrameObject* frame, int event, PyObject* argument) {
    PyThreadState* ts = PyThreadState_Get();
    if (ts->c_tracefunc == miss_call) ts->c_tracefunc = t_tracer;
    return event == PyTrace_CALL ? 0 : t_tracer(object, frame, event, argument);
}

// Frames that are watched line by line have no parts. So where one does, whoever watches now began inside of it, and is to
// see neither that the rest of it is called nor its lines, as with any frame that was running already.
class UnseenCall {
public:
    explicit UnseenCall(PyThreadState* ts) : ts_(ts) {
        if (ts_->c_tracefunc == nullptr || ts_->c_tracefunc == miss_call) return;
        t_tracer = ts_->c_tracefunc;
        ts_->c_tracefunc = miss_call;
    }
    ~UnseenCall() {
        if (ts_->c_tracefunc == miss_call) ts_->c_tracefunc = t_tracer;  // the call never reached its frame
    }
    UnseenCall(const UnseenCall&) = delete;
    UnseenCall& operator=(const UnseenCall&) = delete;

private:
    PyThreadState* ts_;
};

// Follows tail calls, in a loop, so that a loop of the program with a break in it does not nest. `result` is stolen.
PyObject* run_to_end(PyThreadState* ts, PyObject* result) {
    while (result != nullptr && Py_TYPE(result) == g_tail_call) {
        std::vector<PyObject*> arguments;
        const py::object function = open_tail_call(result, arguments);
        const std::vector<PyObject*> given = arguments;
        expect(t_handed_code, PyFunction_GET_CODE(function.ptr()));
        t_handed = &arguments;
        {
            const UnseenCall unseen{ts};
            result = PyObject_Vectorcall(function.ptr(), given.data(), given.size(), nullptr);
        }
        expect(t_handed_code, nullptr);
        t_handed = nullptr;
        release(arguments);  // still there when the call never reached the frame
    }
    return result;
}

// Runs `entry` on the frame; `inputs` is stolen. handed: the frame was called by `run_to_end`, which goes on with what
// it returns.
PyObject* run_entry(PyThreadState* ts, frames::Frame* f, Entry& entry, PyObject* inputs, bool handed) {
    ++entry.hits;
    const py::object keep = entry.replacement;
    PyCodeObject* code = as_code(keep);
    PyObject* result = nullptr;
    if (rewrite(ts, f, code)) {
        if (entry.inputs_slot >= 0) {
            f->localsplus[entry.inputs_slot] = inputs;
        } else {
            Py_DECREF(inputs);
        }
        result = frames::evaluate(ts, f, 0);
    } else {
        ++g_full_chunks;
        expect(t_pending_code, keep.ptr());
        t_pending_inputs = inputs;
        t_pending_slot = entry.inputs_slot;
        result = call_instead(f, code);
        expect(t_pending_code, nullptr);
        Py_CLEAR(t_pending_inputs);  // still there when the call never reached the frame
        result = finish(ts, f, result);
    }
    if (handed || result == nullptr || Py_TYPE(result) != g_tail_call) return result;
    if constexpr (!frames::kHookOwnsFrame) frames::unbind(f);  // the caller clears it, but only when all is done
    return run_to_end(ts, result);
}

py::tuple frame_view(frames::Frame* f) {
    PyCodeObject* code = frames::code(f);
    py::dict locals;
    const int parameters = code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
                           ((code->co_flags & CO_VARKEYWORDS) != 0);
    for (int i = 0; i < parameters; ++i)
        if (f->localsplus[i] != nullptr)
            locals[py::handle(PyTuple_GET_ITEM(code->co_localsplusnames, i))] = py::handle(f->localsplus[i]);
    PyFunctionObject* function = frames::function(f);
    const py::object closure =
        function->func_closure != nullptr ? py::reinterpret_borrow<py::object>(function->func_closure) : py::tuple();
    return py::make_tuple(py::handle(reinterpret_cast<PyObject*>(code)), py::handle(reinterpret_cast<PyObject*>(function)), locals,
                          py::handle(f->f_globals), py::handle(f->f_builtins), closure);
}

struct Found {
    std::shared_ptr<Entry> entry;
    PyObject* inputs = nullptr;                 // owned
    std::vector<std::pair<py::object, int>> failures;  // record and guard of each entry that did not match
    bool error = false;
};

// Guards may run Python code (an audit hook sees reads of a function's `__defaults__`): it is not the region's.
class GuardScope {
public:
    GuardScope() : saved_(t_region) { t_region = nullptr; }
    ~GuardScope() { t_region = saved_; }
    GuardScope(const GuardScope&) = delete;
    GuardScope& operator=(const GuardScope&) = delete;

private:
    Region* saved_;  // the hook stays installed: guards are checked on every call
};

Found find_entry(frames::Frame* f, CodeState* state, Region* region) {
    Found found;
    const GuardScope off;
    PyFunctionObject* function = frames::function(f);
    const FrameRoots roots{f->localsplus, function->func_closure, f->f_globals, f->f_builtins, reinterpret_cast<PyObject*>(function)};
    for (std::size_t i = 0; i < state->entries.size(); ++i) {
        std::shared_ptr<Entry> entry = state->entries[i];
        if (entry->region != region) continue;
        const int failed = entry->guards->evaluate(roots, &found.inputs);
        if (failed == kAllHold) {
            if (i != 0 && i < state->entries.size() && state->entries[i] == entry)
                std::rotate(state->entries.begin(), state->entries.begin() + static_cast<std::ptrdiff_t>(i),
                            state->entries.begin() + static_cast<std::ptrdiff_t>(i) + 1);
            found.entry = std::move(entry);
            return found;
        }
        if (failed < kAllHold) {
            found.error = true;
            return found;
        }
        found.failures.emplace_back(entry->record, failed);
    }
    return found;
}

// Asks Python for an entry. None: run the frame as it is. Ellipsis: and what it calls, this once. True: look again. Throws
// what Python raised.
py::object ask(frames::Frame* f, Region* region, const Found& found) {
    const py::object on_miss = region->on_miss;
    const RegionScope off{nullptr};
    const frames::Headroom room{PyThreadState_Get()};
    py::list failures;
    for (const auto& [record, guard] : found.failures) failures.append(py::make_tuple(record, guard));
    return on_miss(frame_view(f), failures);
}

// Hands a frame that C code called to the thread's interceptor. What it returns is the call's result, or one of the two
// answers above.
PyObject* intercept(PyThreadState* ts, frames::Frame* f) {
    const py::object interceptor = py::reinterpret_borrow<py::object>(t_interceptor);
    PyObject* result = nullptr;
    {
        const InterceptorScope off{nullptr};
        try {
            result = PyObject_CallObject(interceptor.ptr(), frame_view(f).ptr());
        } catch (py::error_already_set& error) {
            error.restore();
        }
    }
    if (result == nullptr || (result != g_as_it_is && result != g_unseen)) return finish(ts, f, result);
    const bool unseen = result == g_unseen;
    Py_DECREF(result);
    if (!unseen) return pass(ts, f, 0);
    const InterceptorScope off{nullptr};
    return pass(ts, f, 0);
}

// Runs the frame, and what it calls, with no region live.
PyObject* pass_closed(PyThreadState* ts, frames::Frame* f) {
    const RegionScope off{nullptr};
    return pass(ts, f, 0);
}

// The frame alone holds its arguments, as if its caller had no hook to go through.
void take_arguments(PyThreadState* ts, frames::Frame* f) {
    frames::Frame* caller = frames::current(ts);
    if (caller == nullptr || !frames::is_python(caller) || !has_temporaries(f)) return;
    try {
        CodeState& state = state_of(frames::code(caller));
        if (state.call_sites == nullptr) state.call_sites = CallSites::of(frames::code(caller));
        if (state.call_sites != nullptr) give_up_arguments(caller, *state.call_sites, f);
    } catch (py::error_already_set& error) {  // out of memory
        error.restore();
    }
    PyErr_Clear();
}

// A frame that `hook` has something to do for, or may have.
PyObject* look_at(PyThreadState* ts, frames::Frame* f) {
    PyCodeObject* code = frames::code(f);
    bool handed = false;
    if (t_handed_code != nullptr && reinterpret_cast<PyObject*>(code) == t_handed_code) {
        handed = true;
        expect(t_handed_code, nullptr);
        release(*t_handed);
    }
    if (t_interceptor != nullptr && !frames::is_observer(ts)) {
        constexpr int kBody = CO_OPTIMIZED | CO_NEWLOCALS;
        if ((code->co_flags & kBody) == kBody && frames::at_start(f)) return intercept(ts, f);
        return pass(ts, f, 0);
    }
    CodeState* state = find_state(code);
    if (state == nullptr) {
        try {
            state = &state_of(code);
        } catch (py::error_already_set&) {  // out of memory
            return pass(ts, f, 0);
        }
    }
    if (!state->skip || state->lets_go) take_arguments(ts, f);
    if (t_pending_code != nullptr && reinterpret_cast<PyObject*>(code) == t_pending_code) {
        if (t_pending_slot >= 0) {
            f->localsplus[t_pending_slot] = t_pending_inputs;
            t_pending_inputs = nullptr;
        }
        expect(t_pending_code, nullptr);
        return frames::evaluate(ts, f, 0);
    }
    Region* region = t_region;
    if (region == nullptr || state->skip || frames::is_observer(ts) || fxloom_is_watched(ts) != 0) return pass(ts, f, 0);
    if (state->closed) return pass_closed(ts, f);
    if (!is_candidate(code) || !frames::at_start(f)) return pass(ts, f, 0);
    if (saved_tensor_hooks() != t_saved_tensor_hooks) return pass(ts, f, 0);
    if (std::find(state->gave_up.begin(), state->gave_up.end(), region) != state->gave_up.end())
        return pass(ts, f, 0);
    bool asked = false;
    while (true) {
        Found found = find_entry(f, state, region);
        if (found.error) return finish(ts, f, nullptr);
        if (found.entry != nullptr) return run_entry(ts, f, *found.entry, found.inputs, handed);
        try {
            if (asked) {
                // Python checked the fresh entry on this very frame, so only code run by a guard can get us here.
                PyErr_SetString(PyExc_RuntimeError, "fxloom: the guards of a fresh entry hold, then fail, for one call");
                return finish(ts, f, nullptr);
            }
            const py::object answer = ask(f, region, found);
            if (answer.is(py::ellipsis())) return pass_closed(ts, f);
            if (answer.is_none()) return state->closed ? pass_closed(ts, f) : pass(ts, f, 0);
            asked = answer.is(py::bool_(false));
        } catch (py::error_already_set& error) {
            error.restore();
            return finish(ts, f, nullptr);
        } catch (const std::exception& error) {
            PyErr_SetString(PyExc_RuntimeError, error.what());
            return finish(ts, f, nullptr);
        }
    }
}

// Every frame of the interpreter comes by here while a region is live: what most of them need is decided first.
PyObject* hook(PyThreadState* ts, frames::Frame* f, int throwflag) {
    if (throwflag != 0 || f->owner != FRAME_OWNED_BY_THREAD) return pass(ts, f, throwflag);
    const CodeState* state = find_state(frames::code(f));
    if (state != nullptr && g_expected == 0 && (state->plain || (state->plain_in != nullptr && state->plain_in == t_region)))
        return pass(ts, f, 0);
    return look_at(ts, f);
}

// ---- CompiledCallable and Uncaptured: callables that switch the thread's region -------------------------------------

struct Callable {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject* function;
    PyObject* region;  // the Python object of the Region; nullptr in Uncaptured
    Region* native;    // borrowed from `region`
    PyObject* dict;
    PyObject* weakrefs;
};

PyObject* call_captured(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* names) {
    auto* callable = reinterpret_cast<Callable*>(self);
    const RegionScope scope{callable->native};
    return PyObject_Vectorcall(callable->function, args, nargsf, names);
}

PyObject* call_uncaptured(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* names) {
    auto* callable = reinterpret_cast<Callable*>(self);
    if (t_region == nullptr) return PyObject_Vectorcall(callable->function, args, nargsf, names);
    const RegionScope scope{nullptr};
    return PyObject_Vectorcall(callable->function, args, nargsf, names);
}

int traverse_callable(PyObject* self, visitproc visit, void* arg) {
    auto* callable = reinterpret_cast<Callable*>(self);
    Py_VISIT(callable->function);
    Py_VISIT(callable->region);
    Py_VISIT(callable->dict);
    return 0;
}

int clear_callable(PyObject* self) {
    auto* callable = reinterpret_cast<Callable*>(self);
    callable->native = nullptr;
    Py_CLEAR(callable->function);
    Py_CLEAR(callable->region);
    Py_CLEAR(callable->dict);
    return 0;
}

void dealloc_callable(PyObject* self) {
    PyObject_GC_UnTrack(self);
    auto* callable = reinterpret_cast<Callable*>(self);
    if (callable->weakrefs != nullptr) PyObject_ClearWeakRefs(self);
    clear_callable(self);
    Py_TYPE(self)->tp_free(self);
}

PyObject* bind_callable(PyObject* self, PyObject* instance, PyObject*) {
    return instance == nullptr || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

PyObject* new_captured(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject* function = nullptr;
    PyObject* region = nullptr;
    if (PyArg_ParseTuple(args, "OO", &function, &region) == 0) return nullptr;
    Region* native = nullptr;
    try {
        native = py::handle(region).cast<Region*>();
    } catch (const py::cast_error&) {
        PyErr_SetString(PyExc_TypeError, "CompiledCallable(function, region): region must be a Region");
        return nullptr;
    }
    auto* self = reinterpret_cast<Callable*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->vectorcall = call_captured;
    self->function = Py_NewRef(function);
    self->region = Py_NewRef(region);
    self->native = native;
    return reinterpret_cast<PyObject*>(self);
}

PyObject* new_uncaptured(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject* function = nullptr;
    if (PyArg_ParseTuple(args, "O", &function) == 0) return nullptr;
    auto* self = reinterpret_cast<Callable*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->vectorcall = call_uncaptured;
    self->function = Py_NewRef(function);
    return reinterpret_cast<PyObject*>(self);
}

PyObject* new_tail_call(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject* function = nullptr;
    PyObject* arguments = nullptr;
    if (PyArg_ParseTuple(args, "O!O!", &PyFunction_Type, &function, &PyTuple_Type, &arguments) == 0) return nullptr;
    auto* self = reinterpret_cast<TailCall*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->function = Py_NewRef(function);
    self->arguments = Py_NewRef(arguments);
    return reinterpret_cast<PyObject*>(self);
}

int traverse_tail_call(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(reinterpret_cast<TailCall*>(self)->function);
    Py_VISIT(reinterpret_cast<TailCall*>(self)->arguments);
    return 0;
}

void dealloc_tail_call(PyObject* self) {
    PyObject_GC_UnTrack(self);
    PyTypeObject* type = Py_TYPE(self);
    Py_CLEAR(reinterpret_cast<TailCall*>(self)->function);
    Py_CLEAR(reinterpret_cast<TailCall*>(self)->arguments);
    type->tp_free(self);
    Py_DECREF(type);
}

PyTypeObject* make_tail_call_type() {
    PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_tail_call)},
                           {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_tail_call)},
                           {Py_tp_traverse, reinterpret_cast<void*>(traverse_tail_call)},
                           {Py_tp_doc, const_cast<char*>("TailCall(function, arguments): what replacement code returns at a break.")},
                           {0, nullptr}};
    PyType_Spec spec{"fxloom_dynamo._native.TailCall", static_cast<int>(sizeof(TailCall)), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
    PyObject* type = PyType_FromSpec(&spec);
    if (type == nullptr) throw py::error_already_set();
    return reinterpret_cast<PyTypeObject*>(type);
}

PyMemberDef g_members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(Callable, function), READONLY, "the callable that is run"},
    {"region", T_OBJECT, offsetof(Callable, region), READONLY, "the Region, or None"},
    {"__dictoffset__", T_PYSSIZET, offsetof(Callable, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Callable, weakrefs), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Callable, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef g_getset[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                          {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyObject* make_type(const char* name, const char* doc, newfunc make) {
    PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(make)},
                           {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_callable)},
                           {Py_tp_traverse, reinterpret_cast<void*>(traverse_callable)},
                           {Py_tp_clear, reinterpret_cast<void*>(clear_callable)},
                           {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                           {Py_tp_descr_get, reinterpret_cast<void*>(bind_callable)},
                           {Py_tp_members, g_members},
                           {Py_tp_getset, g_getset},
                           {Py_tp_doc, const_cast<char*>(doc)},
                           {0, nullptr}};
    PyType_Spec spec{name, static_cast<int>(sizeof(Callable)), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots};
    PyObject* type = PyType_FromSpec(&spec);
    if (type == nullptr) throw py::error_already_set();
    return type;
}

}  // namespace

void register_frame_hook(py::module_& m) {
    m.def(
        "opcode_facts",
        [](int opcode) { return py::make_tuple(jump_of(opcode) != Jump::kNone, falls_through(opcode)); },
        py::arg("opcode"),
        "(jumps, falls_through) of an opcode of this version, as the walk over call sites takes it.");
    g_extra_index = frames::request_extra_index(free_code_state);
    if (g_extra_index < 0) throw py::import_error("CPython has no free code-extra slot for fxloom's frame hook");
    py::class_<Entry, std::shared_ptr<Entry>>(m, "Entry", "Replacement code with its guards, installed on a code object.")
        .def_readonly("record", &Entry::record)
        .def_readonly("replacement", &Entry::replacement)
        .def_readonly("hits", &Entry::hits)
        .def_property_readonly("short_hits", [](const Entry& self) { return self.guards->short_hits(); },
                               "Hits whose guards were checked by comparing what they had read before.");
    py::class_<Region, std::shared_ptr<Region>>(m, "Region", "What one `optimize` compiled, and the callback for misses.")
        .def(py::init<py::object>(), py::arg("on_miss"))
        .def("install", &Region::install, py::arg("original"), py::arg("replacement"), py::arg("guards"), py::arg("inputs_slot"),
             py::arg("record"))
        .def("give_up", &Region::give_up, py::arg("code"), "Run `code` as it is from now on in this region.")
        .def("records", &Region::records, py::arg("code"), "Records of the entries on `code`, most recently used first.")
        .def("clear", &Region::clear);
    m.attr("CompiledCallable") = py::reinterpret_steal<py::object>(make_type(
        "fxloom_dynamo._native.CompiledCallable", "CompiledCallable(function, region): calls function with the region live.", new_captured));
    m.attr("Uncaptured") = py::reinterpret_steal<py::object>(make_type(
        "fxloom_dynamo._native.Uncaptured", "Uncaptured(function): calls function with no region live.", new_uncaptured));
    g_tail_call = make_tail_call_type();
    m.attr("TailCall") = py::handle(reinterpret_cast<PyObject*>(g_tail_call));
    m.def(
        "skip_code",
        [](const py::object& code) {
            CodeState& state = state_of(as_code(code));
            state.skip = true;
            state.plain = !state.lets_go;
        },
        py::arg("code"), "Never look at frames of `code` again, in any region.");
    m.def(
        "look_at_code",
        [](const py::object& code) {
            CodeState& state = state_of(as_code(code));
            state.skip = false;
            state.plain = false;
        },
        py::arg("code"), "Undo `skip_code`.");
    m.def("close_code", [](const py::object& code) { state_of(as_code(code)).closed = true; }, py::arg("code"),
          "Never look at frames of `code` again, nor at what they call, in any region.");
    m.def("set_retire_code", [](const py::object& code) {
        state_of(as_code(code));
        if (!frames::extras_are_known(as_code(code), g_extra_index))
            throw py::import_error("fxloom's frame hook does not know where this CPython keeps what belongs to a code object");
        Py_XSETREF(g_retire_code, as_code(code));
        Py_INCREF(g_retire_code);
    });
    m.def(
        "intercepted",
        [](const py::object& interceptor, const py::object& function, const py::tuple& args, const py::dict& kwargs) {
            PyObject* result = nullptr;
            {
                const InterceptorScope scope{interceptor.is_none() ? nullptr : interceptor.ptr()};
                result = PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr());
            }
            if (result == nullptr) throw py::error_already_set();
            return py::reinterpret_steal<py::object>(result);
        },
        py::arg("interceptor"), py::arg("function"), py::arg("args"), py::arg("kwargs"),
        "function(*args, **kwargs), Python functions that C code calls meanwhile handed to `interceptor`, which returns their "
        "result, AS_IT_IS, or UNSEEN (as it is, and nothing that it calls is handed over). None: no interceptor.");
    g_as_it_is = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
    g_unseen = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
    if (g_as_it_is == nullptr || g_unseen == nullptr) throw py::error_already_set();
    m.attr("AS_IT_IS") = py::handle(g_as_it_is);
    m.attr("UNSEEN") = py::handle(g_unseen);
    m.def("in_region", [] { return t_region != nullptr; });
    m.def("full_chunks", [] { return g_full_chunks; }, "How often a frame had no room to grow and was replaced by a call.");
}

}  // namespace fxloom
