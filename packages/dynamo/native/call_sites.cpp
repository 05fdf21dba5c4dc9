#include "call_sites.h"

#include <opcode.h>

namespace fxloom {

Jump jump_of(int opcode) {
    switch (opcode) {
        case JUMP_FORWARD:
        case FOR_ITER:
        case SEND:
#if PY_VERSION_HEX >= 0x030C0000
        case POP_JUMP_IF_TRUE:
        case POP_JUMP_IF_FALSE:
        case POP_JUMP_IF_NONE:
        case POP_JUMP_IF_NOT_NONE:
#else
        case POP_JUMP_FORWARD_IF_TRUE:
        case POP_JUMP_FORWARD_IF_FALSE:
        case POP_JUMP_FORWARD_IF_NONE:
        case POP_JUMP_FORWARD_IF_NOT_NONE:
        case JUMP_IF_FALSE_OR_POP:
        case JUMP_IF_TRUE_OR_POP:
#endif
            return Jump::kForward;
        case JUMP_BACKWARD:
        case JUMP_BACKWARD_NO_INTERRUPT:
#if PY_VERSION_HEX < 0x030C0000
        case POP_JUMP_BACKWARD_IF_TRUE:
        case POP_JUMP_BACKWARD_IF_FALSE:
        case POP_JUMP_BACKWARD_IF_NONE:
        case POP_JUMP_BACKWARD_IF_NOT_NONE:
#endif
            return Jump::kBackward;
        default:
            return Jump::kNone;
    }
}

bool falls_through(int opcode) {
    switch (opcode) {
        case RETURN_VALUE:
        case RAISE_VARARGS:
        case RERAISE:
        case JUMP_FORWARD:
        case JUMP_BACKWARD:
        case JUMP_BACKWARD_NO_INTERRUPT:
#if PY_VERSION_HEX >= 0x030C0000
        case RETURN_CONST:
        case INTERPRETER_EXIT:
#endif
            return false;
        default:
            return true;
    }
}

namespace {

constexpr int kCell = 0x40;  // CO_FAST_CELL of co_localspluskinds

bool is_call(int opcode) {
#if PY_VERSION_HEX >= 0x030D0000
    return opcode == CALL || opcode == CALL_KW;
#else
    return opcode == CALL;
#endif
}

bool takes_names(int opcode) {
#if PY_VERSION_HEX >= 0x030D0000
    return opcode == CALL_KW;
#else
    (void)opcode;
    return false;
#endif
}

// True when the instruction binds, or unbinds, one of the first `count` variables.
bool binds_one_below(int opcode, int argument, int count) {
    switch (opcode) {
        case STORE_FAST:
        case DELETE_FAST:
#if PY_VERSION_HEX >= 0x030C0000
        case LOAD_FAST_AND_CLEAR:
#endif
            return argument < count;
#if PY_VERSION_HEX >= 0x030D0000
        case STORE_FAST_LOAD_FAST:
            return argument >> 4 < count;
        case STORE_FAST_STORE_FAST:
            return argument >> 4 < count || (argument & 15) < count;
#endif
        default:
            return false;
    }
}

struct Handler {
    int start, end, target, depth;  // in code units; depth: of the stack at the target
};

int read_number(const unsigned char*& at) {  // see Objects/exception_handling_notes.txt
    int value = *at & 63;
    while ((*at++ & 64) != 0) value = (value << 6) | (*at & 63);
    return value;
}

std::vector<Handler> handlers_of(PyCodeObject* code) {
    std::vector<Handler> found;
    const auto* at = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(code->co_exceptiontable));
    const unsigned char* end = at + PyBytes_GET_SIZE(code->co_exceptiontable);
    while (at < end) {
        const int start = read_number(at);
        const int length = read_number(at);
        const int target = read_number(at);
        const int depth_lasti = read_number(at);
        found.push_back({start, start + length, target, (depth_lasti >> 1) + (depth_lasti & 1) + 1});
    }
    return found;
}

PyObject** stack_of(frames::Frame* f) { return f->localsplus + frames::code(f)->co_nlocalsplus; }

// An object whose end can be noticed, or that can hold one, and that nothing but this call holds: the caller's stack and
// the callee's parameter are two references. What a variable or a container holds too is left alone, for speed.
bool is_temporary(PyObject* value) {
    return value != nullptr && Py_REFCNT(value) <= 2 &&
           (PyType_IS_GC(Py_TYPE(value)) || (Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0);
}

// True when the frame's parameters hold `value` themselves.
bool has_parameter(frames::Frame* f, PyObject* value, int likely) {
    PyCodeObject* code = frames::code(f);
    const int count = code->co_argcount + code->co_kwonlyargcount;
    if (likely < count && f->localsplus[likely] == value) return true;
    for (int i = 0; i < count; ++i)
        if (f->localsplus[i] == value) return true;
    int next = count;
    if ((code->co_flags & CO_VARARGS) != 0) {
        PyObject* more = f->localsplus[next++];
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(more); ++i)
            if (PyTuple_GET_ITEM(more, i) == value) return true;
    }
    if ((code->co_flags & CO_VARKEYWORDS) != 0) {
        PyObject* key = nullptr;
        PyObject* held = nullptr;
        Py_ssize_t at = 0;
        while (PyDict_Next(f->localsplus[next], &at, &key, &held) != 0)
            if (held == value) return true;
    }
    return false;
}

}  // namespace

std::unique_ptr<CallSites> CallSites::of(PyCodeObject* code) {
    PyObject* bytes = PyCode_GetCode(code);  // as the compiler made it, not specialised
    if (bytes == nullptr) return nullptr;
    const auto* units = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes));
    const int count = static_cast<int>(PyBytes_GET_SIZE(bytes) / 2);
    const std::vector<Handler> handlers = handlers_of(code);
    auto found = std::make_unique<CallSites>();
    found->sites_.resize(static_cast<std::size_t>(count));
    std::vector<int> depths(static_cast<std::size_t>(count), -1);
    constexpr int kSuspends = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
    // up to 3.11 a generator starts with the value sent to it
    const int entry = PY_VERSION_HEX < 0x030C0000 && (code->co_flags & kSuspends) != 0 ? 1 : 0;
    std::vector<std::pair<int, int>> waiting{{0, entry}};
    const auto reach = [&](int unit, int depth) {
        if (unit < count && depths[static_cast<std::size_t>(unit)] < 0) waiting.emplace_back(unit, depth);
    };
    while (!waiting.empty()) {
        auto [unit, depth] = waiting.back();
        waiting.pop_back();
        int argument = 0;
        while (unit < count && depths[static_cast<std::size_t>(unit)] < 0) {
            depths[static_cast<std::size_t>(unit)] = depth;
            for (const Handler& handler : handlers)
                if (handler.start <= unit && unit < handler.end) reach(handler.target, handler.depth);
            const int opcode = units[2 * unit];
            argument = (argument << 8) | units[2 * unit + 1];
            if (opcode == EXTENDED_ARG) {
                ++unit;
                continue;
            }
            if (is_call(opcode)) found->sites_[static_cast<std::size_t>(unit)] = {depth, argument, takes_names(opcode)};
            int next = unit + 1;
            while (next < count && units[2 * next] == CACHE) ++next;
            const Jump jump = jump_of(opcode);
            if (jump != Jump::kNone) {
                const int target = jump == Jump::kForward ? next + argument : next - argument;
                const int effect = PyCompile_OpcodeStackEffectWithJump(opcode, argument, 1);
                if (effect != PY_INVALID_STACK_EFFECT) reach(target, depth + effect);
            }
            if (!falls_through(opcode)) break;
            int effect = PyCompile_OpcodeStackEffectWithJump(opcode, opcode < HAVE_ARGUMENT ? 0 : argument, 0);
#if PY_VERSION_HEX < 0x030C0000
            // the compiler counts the arguments as taken by PRECALL, but it is CALL that takes them
            if (opcode == PRECALL) effect = 0;
            if (opcode == CALL) effect -= argument;
#endif
            if (effect == PY_INVALID_STACK_EFFECT) break;  // unknown: calls behind it are left alone
            depth += effect;
            argument = 0;
            unit = next;
        }
    }
    Py_DECREF(bytes);
    return found;
}

int may_let_go(PyCodeObject* code) {
    const int star = (code->co_flags & CO_VARARGS) != 0 ? 1 : 0;
    if ((code->co_flags & CO_VARKEYWORDS) != 0) return 1;
    const int parameters = code->co_argcount + code->co_kwonlyargcount + star;
    const char* kinds = PyBytes_AS_STRING(code->co_localspluskinds);
    for (int i = 0; i < parameters; ++i)
        if ((kinds[i] & kCell) != 0) return 1;
    PyObject* bytes = PyCode_GetCode(code);
    if (bytes == nullptr) return -1;
    const auto* units = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes));
    const Py_ssize_t count = PyBytes_GET_SIZE(bytes) / 2;
    int argument = 0;
    int found = 0;
    for (Py_ssize_t unit = 0; unit < count && found == 0; ++unit) {
        const int opcode = units[2 * unit];
        argument = (argument << 8) | units[2 * unit + 1];
        if (binds_one_below(opcode, argument, parameters)) found = 1;
        if (opcode != EXTENDED_ARG) argument = 0;
    }
    Py_DECREF(bytes);
    return found;
}

bool has_temporaries(frames::Frame* callee) {
    PyCodeObject* code = frames::code(callee);
    if ((code->co_flags & (CO_VARARGS | CO_VARKEYWORDS)) != 0) return true;  // in a tuple or dict
    const int count = code->co_argcount + code->co_kwonlyargcount;
    for (int i = 0; i < count; ++i)
        if (is_temporary(callee->localsplus[i])) return true;
    return false;
}

void give_up_arguments(frames::Frame* caller, const CallSites& sites, frames::Frame* callee) {
    const CallSites::Site* site = sites.at(frames::unit(caller));
    if (site == nullptr || site->depth < 0) return;
    PyObject** stack = stack_of(caller);
    const int first = site->depth - site->arguments - (site->named ? 1 : 0);
    if (first < 2 || site->depth > frames::code(caller)->co_stacksize) return;
#if PY_VERSION_HEX >= 0x030D0000
    PyObject* callable = stack[first - 2];
    PyObject* receiver = stack[first - 1];
#else
    PyObject* callable = stack[first - 2] != nullptr ? stack[first - 2] : stack[first - 1];
    PyObject* receiver = stack[first - 2] != nullptr ? stack[first - 1] : nullptr;
#endif
    // Otherwise C code that the caller called is calling, and its arguments are no concern of ours.
    if (callable != reinterpret_cast<PyObject*>(frames::function(callee))) return;
    const int shift = receiver != nullptr ? 1 : 0;
    for (int i = 0; i < site->arguments + shift; ++i) {
        PyObject*& slot = stack[first - shift + i];
        if (!is_temporary(slot) || !has_parameter(callee, slot, i)) continue;
        PyObject* given = slot;
        slot = Py_NewRef(Py_None);
        Py_DECREF(given);
    }
}

}  // namespace fxloom
