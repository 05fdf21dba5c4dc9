// A statement about integers and floats as code of a small stack machine, so that guards on sizes need no Python.
//
// Built by fxloom_dynamo/guard/sizes.py. Integers are 64-bit; an overflow, a division by zero or a rounded float that is no
// integer makes the statement false, which only means that the frame is compiled again. Floats are computed as CPython does
// (Objects/floatobject.c, Modules/mathmodule.c); where Python raises, the result is not finite, and only kIsFinite says no.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

namespace fxloom {

// The order is that of _OPCODES in guard/sizes.py. kConst, kLoad, kRealConst (the bits of a double), kRealLoad and kRealUnary
// (which function: the order is that of reals.UNARY) are followed by their operand.
enum class SizeOp : std::int64_t {
    kConst, kLoad, kAdd, kMul, kFloorDiv, kMod, kMin, kMax, kIsZero, kNotZero, kNotNegative, kAnd, kOr, kNot,
    kBitAnd, kBitOr, kBitXor, kPower, kBitLength, kIsqrt, kGcd,
    kRealConst, kRealLoad, kToReal, kRealAdd, kRealSub, kRealMul, kRealDiv, kRealFloorDiv, kRealMod, kRealPow, kRealMin, kRealMax,
    kRealNeg, kRealAbs, kRealUnary, kFloor, kCeil, kTrunc, kRound, kRealEqual, kRealLess, kRealLessEqual, kIsFinite,
    kRealRound,
};

class SizeProgram {
public:
    // slots: of the exported values that kLoad counts. Throws std::invalid_argument for code that is no program.
    SizeProgram(std::vector<int> slots, std::vector<std::int64_t> code, int guard);

    bool holds(PyObject* const* values) const;
    int guard() const { return guard_; }
    const std::vector<int>& slots() const { return slots_; }

private:
    std::vector<int> slots_;
    std::vector<std::int64_t> code_;
    std::size_t depth_ = 0;
    int guard_;
};

}  // namespace fxloom
