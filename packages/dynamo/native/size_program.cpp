#include "size_program.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

namespace fxloom {

namespace {

constexpr std::size_t kMaxDepth = 64;
constexpr double kExactInteger = 9007199254740992.0;  // 2^53

using Unary = double (*)(double);
// The order is that of UNARY in fxloom_shapes/expressions/floats.py.
constexpr std::array<Unary, 16> kUnary = {std::sqrt, std::exp,  std::log,  std::log2, std::log10, std::log1p, std::expm1, std::sin,
                                          std::cos,  std::tan,  std::asin, std::acos, std::atan,  std::sinh,  std::cosh,  std::tanh};

union Value {
    std::int64_t i;
    double d;
};

bool has_operand(SizeOp op) {
    return op == SizeOp::kConst || op == SizeOp::kLoad || op == SizeOp::kRealConst || op == SizeOp::kRealLoad || op == SizeOp::kRealUnary;
}

int arity(SizeOp op) {
    switch (op) {
        case SizeOp::kConst:
        case SizeOp::kLoad:
        case SizeOp::kRealConst:
        case SizeOp::kRealLoad: return 0;
        case SizeOp::kIsZero:
        case SizeOp::kNotZero:
        case SizeOp::kNotNegative:
        case SizeOp::kNot:
        case SizeOp::kBitLength:
        case SizeOp::kIsqrt:
        case SizeOp::kToReal:
        case SizeOp::kRealNeg:
        case SizeOp::kRealAbs:
        case SizeOp::kRealUnary:
        case SizeOp::kFloor:
        case SizeOp::kCeil:
        case SizeOp::kTrunc:
        case SizeOp::kRound:
        case SizeOp::kIsFinite: return 1;
        default: return 2;
    }
}

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

// float_divmod of CPython
void real_divmod(double a, double b, double* quotient, double* remainder) {
    if (b == 0.0) {
        *quotient = *remainder = NAN;
        return;
    }
    double mod = std::fmod(a, b);
    double div = (a - mod) / b;
    if (mod != 0.0) {
        if ((b < 0) != (mod < 0)) {
            mod += b;
            div -= 1.0;
        }
    } else {
        mod = std::copysign(0.0, b);
    }
    if (div != 0.0) {
        *quotient = std::floor(div);
        if (div - *quotient > 0.5) *quotient += 1.0;
    } else {
        *quotient = std::copysign(0.0, a / b);
    }
    *remainder = mod;
}

bool integer_power(std::int64_t base, std::int64_t exponent, std::int64_t* result) {
    if (exponent < 0) return false;
    std::int64_t value = 1;
    while (exponent > 0) {
        if ((exponent & 1) != 0 && __builtin_mul_overflow(value, base, &value)) return false;
        exponent >>= 1;
        if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return false;
    }
    *result = value;
    return true;
}

std::int64_t integer_root(std::int64_t n) {
    auto root = static_cast<std::int64_t>(std::sqrt(static_cast<double>(n)));
    while (root > 0 && root > n / root) --root;
    while (root + 1 <= n / (root + 1)) ++root;
    return root;
}

std::int64_t bit_length(std::int64_t n) {
    const auto size = n < 0 ? 0 - static_cast<std::uint64_t>(n) : static_cast<std::uint64_t>(n);
    return size == 0 ? 0 : 64 - __builtin_clzll(size);
}

bool to_integer(double rounded, std::int64_t* result) {
    if (!(std::fabs(rounded) < 4611686018427387904.0)) return false;  // 2^62; not a number is not below it either
    *result = static_cast<std::int64_t>(rounded);
    return true;
}

// round(x, digits): the decimal number nearest to the very value, half to even, as CPython and the C library print it.
double rounded(double x, double digits) {
    constexpr double kMostDigits = 22;  // MOST_DIGITS of fxloom_shapes/expressions/floats.py
    if (!std::isfinite(x)) return x;
    if (!(digits >= 0.0 && digits <= kMostDigits)) return NAN;
    std::array<char, 352> text;  // 309 before the point
    std::snprintf(text.data(), text.size(), "%.*f", static_cast<int>(digits), x);
    return std::strtod(text.data(), nullptr);
}

}  // namespace

SizeProgram::SizeProgram(std::vector<int> slots, std::vector<std::int64_t> code, int guard)
    : slots_(std::move(slots)), code_(std::move(code)), guard_(guard) {
    std::size_t depth = 0;
    for (std::size_t i = 0; i < code_.size(); ++i) {
        const auto op = static_cast<SizeOp>(code_[i]);
        const auto taken = static_cast<std::size_t>(arity(op));
        if (op > SizeOp::kRealRound || op < SizeOp::kConst || depth < taken)
            throw std::invalid_argument("size program: operation " + std::to_string(code_[i]) + " can't stand at " + std::to_string(i));
        depth = depth - taken + 1;
        depth_ = std::max(depth_, depth);
        if (!has_operand(op)) continue;
        if (++i == code_.size()) throw std::invalid_argument("size program: an operand is missing");
        const bool loads = op == SizeOp::kLoad || op == SizeOp::kRealLoad;
        if (loads && (code_[i] < 0 || static_cast<std::size_t>(code_[i]) >= slots_.size()))
            throw std::invalid_argument("size program: there is no value " + std::to_string(code_[i]));
        if (op == SizeOp::kRealUnary && (code_[i] < 0 || static_cast<std::size_t>(code_[i]) >= kUnary.size()))
            throw std::invalid_argument("size program: there is no function " + std::to_string(code_[i]));
    }
    if (depth != 1 || depth_ > kMaxDepth) throw std::invalid_argument("size program: leaves " + std::to_string(depth) + " values");
}

bool SizeProgram::holds(PyObject* const* values) const {
    std::array<Value, kMaxDepth> stack;
    std::size_t top = 0;
    for (std::size_t i = 0; i < code_.size(); ++i) {
        const auto op = static_cast<SizeOp>(code_[i]);
        std::int64_t quotient = 0;
        std::int64_t remainder = 0;
        switch (op) {
            case SizeOp::kConst: stack[top++].i = code_[++i]; continue;
            case SizeOp::kRealConst: std::memcpy(&stack[top++].d, &code_[++i], sizeof(double)); continue;
            case SizeOp::kLoad: {
                PyObject* value = values[slots_[static_cast<std::size_t>(code_[++i])]];
                if (value == nullptr || !PyLong_CheckExact(value)) return false;
                int overflow = 0;
                stack[top++].i = PyLong_AsLongLongAndOverflow(value, &overflow);
                if (overflow != 0) return false;
                continue;
            }
            case SizeOp::kRealLoad: {
                PyObject* value = values[slots_[static_cast<std::size_t>(code_[++i])]];
                if (value == nullptr || !PyFloat_CheckExact(value)) return false;
                stack[top++].d = PyFloat_AS_DOUBLE(value);
                continue;
            }
            default: break;
        }
        if (arity(op) == 1) {
            Value& x = stack[top - 1];
            switch (op) {
                case SizeOp::kIsZero: x.i = x.i == 0; break;
                case SizeOp::kNotZero: x.i = x.i != 0; break;
                case SizeOp::kNotNegative: x.i = x.i >= 0; break;
                case SizeOp::kNot: x.i = x.i == 0; break;
                case SizeOp::kBitLength: x.i = bit_length(x.i); break;
                case SizeOp::kIsqrt:
                    if (x.i < 0) return false;
                    x.i = integer_root(x.i);
                    break;
                case SizeOp::kToReal:
                    x.d = static_cast<double>(x.i);
                    if (std::fabs(x.d) > kExactInteger) return false;
                    break;
                case SizeOp::kRealNeg: x.d = -x.d; break;
                case SizeOp::kRealAbs: x.d = std::fabs(x.d); break;
                case SizeOp::kRealUnary: x.d = kUnary[static_cast<std::size_t>(code_[++i])](x.d); break;
                case SizeOp::kFloor:
                    if (!to_integer(std::floor(x.d), &x.i)) return false;
                    break;
                case SizeOp::kCeil:
                    if (!to_integer(std::ceil(x.d), &x.i)) return false;
                    break;
                case SizeOp::kTrunc:
                    if (!to_integer(std::trunc(x.d), &x.i)) return false;
                    break;
                case SizeOp::kRound:  // half to even, the rounding mode that CPython runs in
                    if (!to_integer(std::nearbyint(x.d), &x.i)) return false;
                    break;
                case SizeOp::kIsFinite: x.i = std::isfinite(x.d); break;
                default: return false;
            }
            continue;
        }
        const Value b = stack[--top];
        Value& a = stack[top - 1];
        double real_quotient = 0.0;
        double real_remainder = 0.0;
        switch (op) {
            case SizeOp::kAdd:
                if (__builtin_add_overflow(a.i, b.i, &a.i)) return false;
                break;
            case SizeOp::kMul:
                if (__builtin_mul_overflow(a.i, b.i, &a.i)) return false;
                break;
            case SizeOp::kFloorDiv:
            case SizeOp::kMod:
                if (!floor_div(a.i, b.i, &quotient, &remainder)) return false;
                a.i = op == SizeOp::kMod ? remainder : quotient;
                break;
            case SizeOp::kMin: a.i = std::min(a.i, b.i); break;
            case SizeOp::kMax: a.i = std::max(a.i, b.i); break;
            case SizeOp::kAnd: a.i = (a.i != 0 && b.i != 0) ? 1 : 0; break;
            case SizeOp::kOr: a.i = (a.i != 0 || b.i != 0) ? 1 : 0; break;
            case SizeOp::kBitAnd: a.i &= b.i; break;
            case SizeOp::kBitOr: a.i |= b.i; break;
            case SizeOp::kBitXor: a.i ^= b.i; break;
            case SizeOp::kPower:
                if (!integer_power(a.i, b.i, &a.i)) return false;
                break;
            case SizeOp::kGcd:
                if (a.i == INT64_MIN || b.i == INT64_MIN) return false;
                a.i = std::gcd(a.i, b.i);
                break;
            case SizeOp::kRealAdd: a.d = a.d + b.d; break;
            case SizeOp::kRealSub: a.d = a.d - b.d; break;
            case SizeOp::kRealMul: a.d = a.d * b.d; break;
            case SizeOp::kRealDiv: a.d = b.d == 0.0 ? NAN : a.d / b.d; break;
            case SizeOp::kRealFloorDiv:
            case SizeOp::kRealMod:
                real_divmod(a.d, b.d, &real_quotient, &real_remainder);
                a.d = op == SizeOp::kRealMod ? real_remainder : real_quotient;
                break;
            case SizeOp::kRealPow: a.d = std::pow(a.d, b.d); break;
            case SizeOp::kRealMin: a.d = b.d < a.d ? b.d : a.d; break;
            case SizeOp::kRealMax: a.d = b.d > a.d ? b.d : a.d; break;
            case SizeOp::kRealRound: a.d = rounded(a.d, b.d); break;
            case SizeOp::kRealEqual: a.i = a.d == b.d; break;
            case SizeOp::kRealLess: a.i = a.d < b.d; break;
            case SizeOp::kRealLessEqual: a.i = a.d <= b.d; break;
            default: return false;
        }
    }
    return stack[0].i != 0;
}

}  // namespace fxloom
