#include "size_program.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

namespace fxloom {

namespace {

constexpr std::size_t kMaxDepth = 64;

bool floor_div(std::int64_t a, std::int64_t b, std::int64_t* quotient, std::int64_t* remainder) {
    if (b == 0 || (a == INT64_MIN && b == -1)) return false;
    *quotient = a / b;
    *remainder = a % b;
    if (*remainder != 0 && (*remainder < 0) != (b < 0)) {
        *quotient -= 1;
        *remainder += b;
    }
    return true;
}

}  // namespace

SizeProgram::SizeProgram(std::vector<int> slots, std::vector<std::int64_t> code, int guard)
    : slots_(std::move(slots)), code_(std::move(code)), guard_(guard) {
    std::size_t depth = 0;
    for (std::size_t i = 0; i < code_.size(); ++i) {
        const auto op = static_cast<SizeOp>(code_[i]);
        if (op == SizeOp::kConst || op == SizeOp::kLoad) {
            if (++i == code_.size()) throw std::invalid_argument("size program: an operand is missing");
            if (op == SizeOp::kLoad && (code_[i] < 0 || static_cast<std::size_t>(code_[i]) >= slots_.size()))
                throw std::invalid_argument("size program: there is no value " + std::to_string(code_[i]));
            depth_ = std::max(depth_, ++depth);
        } else {
            const bool unary = op == SizeOp::kIsZero || op == SizeOp::kNotZero || op == SizeOp::kNotNegative;
            if (op > SizeOp::kOr || op < SizeOp::kConst || depth < (unary ? 1U : 2U))
                throw std::invalid_argument("size program: operation " + std::to_string(code_[i]) + " can't stand at " + std::to_string(i));
            if (!unary) --depth;
        }
    }
    if (depth != 1 || depth_ > kMaxDepth) throw std::invalid_argument("size program: leaves " + std::to_string(depth) + " values");
}

bool SizeProgram::holds(PyObject* const* values) const {
    std::array<std::int64_t, kMaxDepth> stack;
    std::size_t top = 0;
    for (std::size_t i = 0; i < code_.size(); ++i) {
        const auto op = static_cast<SizeOp>(code_[i]);
        if (op == SizeOp::kConst) {
            stack[top++] = code_[++i];
            continue;
        }
        if (op == SizeOp::kLoad) {
            PyObject* value = values[slots_[static_cast<std::size_t>(code_[++i])]];
            if (value == nullptr || !PyLong_CheckExact(value)) return false;
            int overflow = 0;
            stack[top++] = PyLong_AsLongLongAndOverflow(value, &overflow);
            if (overflow != 0) return false;
            continue;
        }
        if (op == SizeOp::kIsZero || op == SizeOp::kNotZero || op == SizeOp::kNotNegative) {
            std::int64_t& x = stack[top - 1];
            x = op == SizeOp::kIsZero ? x == 0 : op == SizeOp::kNotZero ? x != 0 : x >= 0;
            continue;
        }
        const std::int64_t b = stack[--top];
        std::int64_t& a = stack[top - 1];
        std::int64_t quotient = 0;
        std::int64_t remainder = 0;
        switch (op) {
            case SizeOp::kAdd:
                if (__builtin_add_overflow(a, b, &a)) return false;
                break;
            case SizeOp::kMul:
                if (__builtin_mul_overflow(a, b, &a)) return false;
                break;
            case SizeOp::kFloorDiv:
            case SizeOp::kMod:
                if (!floor_div(a, b, &quotient, &remainder)) return false;
                a = op == SizeOp::kMod ? remainder : quotient;
                break;
            case SizeOp::kMin: a = std::min(a, b); break;
            case SizeOp::kMax: a = std::max(a, b); break;
            case SizeOp::kAnd: a = (a != 0 && b != 0) ? 1 : 0; break;
            case SizeOp::kOr: a = (a != 0 || b != 0) ? 1 : 0; break;
            default: return false;
        }
    }
    return stack[0] != 0;
}

}  // namespace fxloom
