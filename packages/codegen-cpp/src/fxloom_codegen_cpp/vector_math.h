// Functions of the SLEEF library that torch brings, as scalar functions with vector variants: loops that call `fx_log1p_f32` become
// loops over vectors. Eager's kernels call the same functions, so results are theirs. Variants are found under the names of the
// x86-64 vector function ABI, which is what `declare simd` promises. All of them go by way of the widest vectors that there are:
// a value does not depend on where a loop was split.

typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef double f64x2 __attribute__((vector_size(16)));
typedef double f64x4 __attribute__((vector_size(32)));
typedef double f64x8 __attribute__((vector_size(64)));

#define FX_PASTE(a, b) FX_PASTE_(a, b)
#define FX_PASTE_(a, b) a##b

#if defined(__AVX512F__)
#define FX_WIDEST_F32 f32x16
#define FX_WIDEST_F64 f64x8
#define FX_SLEEF_F32(name, suffix) FX_PASTE(Sleef_##name##f16, suffix)
#define FX_SLEEF_F64(name, suffix) FX_PASTE(Sleef_##name##d8, suffix)
#define FX_VARIANTS(op, type, make) \
    make(op, type, b, FX_SSE_##type) make(op, type, c, FX_AVX_##type) make(op, type, d, FX_AVX_##type) make(op, type, e, FX_WIDE_##type)
#elif defined(__AVX__)
#define FX_WIDEST_F32 f32x8
#define FX_WIDEST_F64 f64x4
#define FX_SLEEF_F32(name, suffix) FX_PASTE(Sleef_##name##f8, suffix)
#define FX_SLEEF_F64(name, suffix) FX_PASTE(Sleef_##name##d4, suffix)
#if defined(__AVX2__)
#define FX_VARIANTS(op, type, make) make(op, type, b, FX_SSE_##type) make(op, type, c, FX_AVX_##type) make(op, type, d, FX_AVX_##type)
#else
#define FX_VARIANTS(op, type, make) make(op, type, b, FX_SSE_##type) make(op, type, c, FX_AVX_##type)
#endif
#endif
#define FX_SSE_f32 4, f32x4
#define FX_AVX_f32 8, f32x8
#define FX_WIDE_f32 16, f32x16
#define FX_SSE_f64 2, f64x2
#define FX_AVX_f64 4, f64x4
#define FX_WIDE_f64 8, f64x8

// The first lanes of a wider vector, and back; lanes that nobody reads are 1, for which no function is slow.
template <typename Wide, typename Narrow> FXLOOM_INLINE Wide fx_widened(Narrow x) {
    Wide wide = Wide{} + 1;
    __builtin_memcpy(&wide, &x, sizeof(x));
    return wide;
}
template <typename Narrow, typename Wide> FXLOOM_INLINE Narrow fx_narrowed(Wide wide) {
    Narrow x;
    __builtin_memcpy(&x, &wide, sizeof(x));
    return x;
}

#define FX_HIDDEN extern "C" __attribute__((used, visibility("hidden")))
#define FX_VARIANT1(op, type, isa, shape) FX_VARIANT1_(op, type, isa, shape)
#define FX_VARIANT1_(op, type, isa, lanes, vector)                                                 \
    FX_HIDDEN vector fx_##op##_##type##_##isa(vector) __asm__("_ZGV" #isa "N" #lanes "v_fx_" #op "_" #type); \
    vector fx_##op##_##type##_##isa(vector x) { return fx_narrowed<vector>(fx_##op##_##type##_widest(fx_widened<FX_WIDEST(type)>(x))); }
#define FX_VARIANT2(op, type, isa, shape) FX_VARIANT2_(op, type, isa, shape)
#define FX_VARIANT2_(op, type, isa, lanes, vector)                                                          \
    FX_HIDDEN vector fx_##op##_##type##_##isa(vector, vector) __asm__("_ZGV" #isa "N" #lanes "vv_fx_" #op "_" #type); \
    vector fx_##op##_##type##_##isa(vector x, vector y) {                                                   \
        return fx_narrowed<vector>(fx_##op##_##type##_widest(fx_widened<FX_WIDEST(type)>(x), fx_widened<FX_WIDEST(type)>(y))); \
    }
#define FX_WIDEST(type) FX_WIDEST_##type
#define FX_WIDEST_f32 FX_WIDEST_F32
#define FX_WIDEST_f64 FX_WIDEST_F64
#define FX_SCALAR_f32 float
#define FX_SCALAR_f64 double
#define FX_SLEEF_f32(name, suffix) FX_SLEEF_F32(name, suffix)
#define FX_SLEEF_f64(name, suffix) FX_SLEEF_F64(name, suffix)

#if defined(__AVX__)
// A function of one operand: fx_OP_TYPE, by SLEEF's NAME with the bound of its error in SUFFIX.
#define FX_FUNCTION1(op, type, name, suffix)                                                                     \
    extern "C" FX_WIDEST(type) FX_SLEEF_##type(name, suffix)(FX_WIDEST(type));                                   \
    FXLOOM_INLINE FX_WIDEST(type) fx_##op##_##type##_widest(FX_WIDEST(type) x) { return FX_SLEEF_##type(name, suffix)(x); } \
    FX_VARIANTS(op, type, FX_VARIANT1)                                                                           \
    FX_HIDDEN FX_SCALAR_##type fx_##op##_##type##_one(FX_SCALAR_##type) __asm__("fx_" #op "_" #type);            \
    FX_SCALAR_##type fx_##op##_##type##_one(FX_SCALAR_##type x) {                                                \
        return fx_##op##_##type##_widest(fx_widened<FX_WIDEST(type)>(x))[0];                                     \
    }                                                                                                            \
    _Pragma("omp declare simd notinbranch") extern "C" __attribute__((const, nothrow)) FX_SCALAR_##type fx_##op##_##type(FX_SCALAR_##type);
// The same of two operands.
#define FX_FUNCTION2(op, type, name, suffix)                                                                     \
    extern "C" FX_WIDEST(type) FX_SLEEF_##type(name, suffix)(FX_WIDEST(type), FX_WIDEST(type));                  \
    FXLOOM_INLINE FX_WIDEST(type) fx_##op##_##type##_widest(FX_WIDEST(type) x, FX_WIDEST(type) y) {              \
        return FX_SLEEF_##type(name, suffix)(x, y);                                                              \
    }                                                                                                            \
    FX_VARIANTS(op, type, FX_VARIANT2)                                                                           \
    FX_HIDDEN FX_SCALAR_##type fx_##op##_##type##_one(FX_SCALAR_##type, FX_SCALAR_##type) __asm__("fx_" #op "_" #type); \
    FX_SCALAR_##type fx_##op##_##type##_one(FX_SCALAR_##type x, FX_SCALAR_##type y) {                            \
        return fx_##op##_##type##_widest(fx_widened<FX_WIDEST(type)>(x), fx_widened<FX_WIDEST(type)>(y))[0];     \
    }                                                                                                            \
    _Pragma("omp declare simd notinbranch") extern "C" __attribute__((const, nothrow)) FX_SCALAR_##type fx_##op##_##type(FX_SCALAR_##type, FX_SCALAR_##type);
#else  // torch brings no narrower ones
#define FX_C_f32(op) __builtin_##op##f
#define FX_C_f64(op) __builtin_##op
#define FX_FUNCTION1(op, type, name, suffix) \
    FXLOOM_INLINE FX_SCALAR_##type fx_##op##_##type(FX_SCALAR_##type x) { return FX_C_##type(op)(x); }
#define FX_FUNCTION2(op, type, name, suffix) \
    FXLOOM_INLINE FX_SCALAR_##type fx_##op##_##type(FX_SCALAR_##type x, FX_SCALAR_##type y) { return FX_C_##type(op)(x, y); }
#endif
